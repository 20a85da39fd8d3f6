"""Pixels of a network's output that are asked for, and their outlines in the image."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ebcli.datatypes.arrays import DoubleArray
from ebcli.datatypes.explanation import Box, Size
from ebcli.errors import ImageError, sides
from ebcli.files.images import read_mask

Mask = NDArray[np.bool_]


def mask_at(place: Size | Box | Path, shape: Size, size: Size, region: Box) -> Mask:
    """The pixels (H, W) of the network's output that a pixel or a mask of the image asks for.

    Args:
        place: the pixel (x, y), or the file of the mask.
        shape: H and W.
        size: the image's width and height.
        region: the rectangle of the image that the network sees.

    Raises:
        ImageError: the pixel is outside the image, or what the network sees of it; or the mask cannot be read.
    """
    if isinstance(place, Path):
        mask = read_mask(place, size, region, shape)
        if not mask.any():
            problem = f"the mask '{place}' has no bright pixels"
            raise ImageError(f"{problem} in the part of the image that the network sees")
        return mask
    x, y = place[:2]
    width, height = size
    if not (0 <= x < width and 0 <= y < height):
        raise ImageError(f"the pixel {x},{y} is outside the image of {sides(size)} pixels")
    region_width, region_height = region.size
    row = int((y + 0.5 - region.top) / region_height * shape[0])
    column = int((x + 0.5 - region.left) / region_width * shape[1])
    if not (0 <= row < shape[0] and 0 <= column < shape[1]):
        raise ImageError(f"the pixel {x},{y} is outside what the network sees of the image")
    mask = np.zeros(shape, bool)
    mask[row, column] = True
    return mask


def polygons(mask: Mask, region: Box) -> list[DoubleArray]:
    """The outlines of a mask (H, W), in pixels of the image."""
    from contourpy import contour_generator

    values = np.pad(mask.astype(float), 1)
    cell = np.divide(region.size, mask.shape[::-1])
    corner = region[:2] - cell / 2
    return [corner + cell * np.asarray(line) for line in contour_generator(z=values).lines(0.5)]
