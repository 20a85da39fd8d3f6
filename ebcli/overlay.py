"""A map at the layer's resolution, laid on the photo it came from."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageEnhance, ImageOps

from ebcli.errors import ConfigurationError, closest
from ebcli.images import Placement

# The photo steps back behind the map: its colours are halved, lest they be taken for the map's.
_SATURATION = 0.5
_BRIGHTNESS = 0.85
_OUTSIDE_BRIGHTNESS = 0.65  # darker still where the network did not look


@lru_cache
def palette(cmap: str) -> NDArray[np.uint8]:
    """A matplotlib colormap's 256 colours, (256, 3), from the least value to the greatest.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    from matplotlib import colormaps

    if cmap not in colormaps:
        raise ConfigurationError(f"there is no colormap {cmap!r}; {closest(cmap, colormaps)}".rstrip("; "))
    colours: NDArray[np.uint8] = colormaps[cmap](np.arange(256) / 255, bytes=True)[:, :3]
    return colours


def is_blank(saliency: ArrayLike) -> bool:
    """Whether a map (h, w) has nothing to show: no positive value, or one that is not finite."""
    values = np.asarray(saliency)
    return not (np.isfinite(values).all() and (values > 0).any())


def upsample(
    saliency: ArrayLike, place: Placement, size: tuple[int, int]
) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """The map at the image's own pixels.

    Args:
        saliency: (h, w), at the layer's resolution; values below 0 count as 0.
        place: the rectangle of the image that the map covers.
        size: the image's (width, height).

    Returns:
        The bicubically up-sampled map, at least 0, for the pixels whose centres lie in ``place``, and the
        (left, top) pixel at which it starts.
    """
    # A border of one cell, so that a pixel cut by the rectangle's edge still has its centre's own value.
    cells = np.pad(np.maximum(np.asarray(saliency, dtype=np.float32), 0), 1, mode="edge")
    starts, counts, box_starts, box_ends = [], [], [], []
    for low, high, pixels, padded in (
        (place.left, place.right, size[0], cells.shape[1]),
        (place.top, place.bottom, size[1], cells.shape[0]),
    ):
        first, last = math.ceil(low - 0.5), math.ceil(high - 0.5)
        if first >= last:  # the rectangle lies between two pixels' centres
            first, last = math.floor(low), math.floor(low) + 1
        first, last = max(0, first), min(pixels, last)
        cell = (high - low) / (padded - 2)
        starts.append(first)
        counts.append(last - first)
        box_starts.append(max(0.0, (first - low) / cell + 1))
        box_ends.append(min(float(padded), (last - low) / cell + 1))
    fine = Image.fromarray(cells).resize((counts[0], counts[1]), Image.Resampling.BICUBIC, box=(*box_starts, *box_ends))
    return np.maximum(np.asarray(fine), 0), (starts[0], starts[1])


def overlay(
    image: Image.Image, saliency: ArrayLike, place: Placement, cmap: str = "inferno", alpha: float = 0.85
) -> Image.Image:
    """The photo, muted, with its map painted over it, at the photo's own size.

    The map is scaled by its own maximum m; where it is v, its colour is painted with the opacity
    ``alpha * (v / m) ** 0.6``. Outside the network's crop there is no map, and the photo is darker. A map with
    nothing to show (``is_blank``) leaves the photo grey.

    Args:
        image: RGB.
        saliency: (h, w), unclamped.
        place: where the network looked.
        cmap: a matplotlib colormap's name.
        alpha: 0 to 1.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    if is_blank(saliency):
        return ImageOps.grayscale(image).convert("RGB")
    heat, corner = upsample(saliency, place, image.size)
    if not heat.any():  # all of it lies in the padding around the image
        return ImageOps.grayscale(image).convert("RGB")
    # Between the cells the bicubic curve swings a little above the map's maximum.
    shares = np.minimum(heat / np.asarray(saliency).max(), 1)
    level = Image.fromarray((shares * 255).round().astype(np.uint8))
    coloured = level.copy()
    coloured.putpalette(palette(cmap).tobytes())
    opacity = level.point([round(255 * alpha * (value / 255) ** 0.6) for value in range(256)])

    muted = ImageEnhance.Brightness(ImageEnhance.Color(image).enhance(_SATURATION)).enhance(_BRIGHTNESS)
    seen = muted.crop((*corner, corner[0] + level.width, corner[1] + level.height))
    picture = ImageEnhance.Brightness(muted).enhance(_OUTSIDE_BRIGHTNESS)
    picture.paste(Image.composite(coloured.convert("RGB"), seen, opacity), corner)
    return picture
