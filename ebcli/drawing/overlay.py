"""A map at the layer's resolution, laid on the photo it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageOps

from ebcli.drawing.color_scale import DrawingStyle
from ebcli.drawing.painters import STYLES
from ebcli.files.images import Placement

_AT_A_TIME = 1 << 20  # pixels that are painted at a time
_GAP = 0.02  # of the width, between two pictures side by side
_STRIPES = 12  # across a picture that shows no map

Box = tuple[int, int, int, int]


def covered(place: Placement, size: tuple[int, int]) -> Box:
    """The left, top, right and bottom of the pixels whose centres lie in a rectangle of an image; at least one.

    Args:
        place: the rectangle.
        size: the image's (width, height).
    """
    spans = []
    for low, high, pixels in ((place.left, place.right, size[0]), (place.top, place.bottom, size[1])):
        first, last = math.ceil(low - 0.5), math.ceil(high - 0.5)
        if first >= last:  # the rectangle lies between two pixels' centres
            first, last = math.floor(low), math.floor(low) + 1
        spans.append((max(0, first), min(pixels, last)))
    (left, right), (top, bottom) = spans
    return left, top, right, bottom


def interpolated(saliency: ArrayLike, place: Placement, box: Box) -> NDArray[np.float32]:
    """A map at some of the image's own pixels, by bicubic interpolation.

    Args:
        saliency: (h, w), at the layer's resolution.
        place: the rectangle of the image that the map covers.
        box: the pixels, among those that are ``covered``.

    Returns:
        As many rows and columns as the box has; between the cells, values may swing beyond the map's own.
    """
    # A border of one cell, so that a pixel cut by the rectangle's edge still has its centre's own value.
    cells = np.pad(np.asarray(saliency, dtype=np.float32), 1, mode="edge")
    starts, ends = [], []
    for low, high, first, last, padded in (
        (place.left, place.right, box[0], box[2], cells.shape[1]),
        (place.top, place.bottom, box[1], box[3], cells.shape[0]),
    ):
        cell = (high - low) / (padded - 2)
        starts.append(max(0.0, (first - low) / cell + 1))
        ends.append(min(float(padded), (last - low) / cell + 1))
    size = (box[2] - box[0], box[3] - box[1])
    return np.asarray(Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC, box=(*starts, *ends)))


def is_blank(saliency: ArrayLike, signed: bool = False) -> bool:
    """Whether a map (h, w) has nothing to show: no value above 0 (if signed, other than 0), or one not finite."""
    values = np.asarray(saliency)
    return not (np.isfinite(values).all() and (values != 0 if signed else values > 0).any())


def is_blank_on(size: tuple[int, int], saliency: ArrayLike, place: Placement, signed: bool = False) -> bool:
    """Whether a map (h, w) has nothing to show on an image of a size (width, height), beyond which it may reach."""
    values = np.asarray(saliency)
    seen = []
    for low, high, pixels, cells in (
        (place.top, place.bottom, size[1], values.shape[0]),
        (place.left, place.right, size[0], values.shape[1]),
    ):
        cell = (high - low) / cells
        seen.append(slice(max(0, math.floor(-low / cell)), math.ceil((min(high, pixels) - low) / cell)))
    return is_blank(values, signed) or is_blank(values[tuple(seen)], signed)


def picture(image: Image.Image, saliency: ArrayLike, place: Placement, look: DrawingStyle) -> Image.Image:
    """A photo with a map on it, in one of the styles; of the photo's size, but for ``side-by-side``.

    Outside of the network's crop there is no map. A map that is blank there is not painted: the photo is grey and
    striped.

    Args:
        image: RGB; left as it is.
        saliency: (h, w), unclamped.
        place: where the network looked.
        look: the style, the colours and their scale.

    Returns:
        RGB, or RGBA for the style ``mask``.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    if look.style == "side-by-side":
        return _beside(image, picture(image, saliency, place, replace(look, style="heatmap")))
    if is_blank_on(image.size, saliency, place, look.signed):
        return _striped(image)
    cells = np.asarray(saliency)
    limits = look.limits(cells)
    cells = cells if look.signed else look.shown(cells)  # before it is up-sampled: a dip must not dent a peak
    style = STYLES[look.style]
    painted = Image.new(style.mode, image.size)
    seen = covered(place, image.size)
    for part in _parts((0, 0, *image.size)):
        painted.paste(style.outside(image.crop(part)), part[:2])
    for left, top, right, bottom in _parts(seen):
        above, below = max(seen[1], top - 1), min(seen[3], bottom + 1)  # a contour must know its neighbours' rows
        part = (left, above, right, below)
        shares = look.normalize(interpolated(cells, place, part), limits)
        strip = style.inside(image.crop(part), shares, look).crop((0, top - above, right - left, bottom - above))
        painted.paste(strip, (left, top))
    return painted


def _parts(box: Box) -> Iterator[Box]:
    """Strips of a box, from its top to its bottom."""
    left, top, right, bottom = box
    rows = max(1, _AT_A_TIME // (right - left))
    for start in range(top, bottom, rows):
        yield left, start, right, min(start + rows, bottom)


def _beside(one: Image.Image, other: Image.Image) -> Image.Image:
    gap = math.ceil(one.width * _GAP)
    both = Image.new("RGB", (one.width + gap + other.width, one.height), "white")
    both.paste(one)
    both.paste(other, (one.width + gap, 0))
    return both


def _striped(image: Image.Image) -> Image.Image:
    """A grey photo, crossed out with stripes from one side to the other."""
    grey = ImageOps.grayscale(image).convert("RGB")
    draw = ImageDraw.Draw(grey)
    width, height = grey.size
    step = max(2, (width + height) // _STRIPES)
    for start in range(-height + step // 2, width, step):
        draw.line((start, height, start + height, 0), fill=(200, 200, 200), width=max(1, step // 8))
    return grey
