"""Pictures: a map at the layer's resolution, drawn over the photo it explains."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageOps

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Size
from ebcli.drawing.painters import FRAME_COLOR, PAINTERS, Color, scaled_levels
from ebcli.drawing.style import DrawingStyle

_PIXELS_AT_A_TIME = 1 << 20
_LONGEST_SIDE = 512  # pixels, of thumbnails
_GAP = 0.02  # of the width, between two pictures side by side
_FRAME = 0.003  # the width of the center crop's frame, of the shorter side
_STRIPES = 12  # across the photo of a blank map

Pixels = tuple[int, int, int, int]  # a box of whole pixels: left, top, right, bottom


def covered_pixels(region: Box, size: Size) -> Pixels:
    """The left, top, right and bottom of the pixels whose centers lie in a region of an image; at least one pixel.

    Args:
        region: the rectangle that the map covers.
        size: the image's (width, height).
    """
    spans = []
    for (low, high), pixels in zip(region.sides, size, strict=True):
        first = math.ceil(low - 0.5)
        last = math.ceil(high - 0.5)
        if first >= last:  # the region lies between the centers of two pixels
            first = math.floor(low)
            last = first + 1
        spans.append((max(0, first), min(pixels, last)))
    (left, right), (top, bottom) = spans
    return left, top, right, bottom


def fitted_size(size: Size, longest: int) -> tuple[int, int]:
    """A size (width, height) reduced or enlarged to this longest side."""
    width, height = (max(1, round(side * (longest / max(size)))) for side in size)
    return width, height


def reduced_size(size: Size, longest: int = _LONGEST_SIDE) -> tuple[int, int]:
    """A size (width, height) reduced to this longest side; by default, that of thumbnails."""
    return size if max(size) <= longest else fitted_size(size, longest)


def heatmap(
    saliency: FloatArray, region: Box, size: Size, signed: bool, zero: float | None = 0.0
) -> FloatArray:
    """A map as it is drawn, (height, width): 0 outside of its region, and below 0 only if that is drawn, too.

    Args:
        saliency: (h, w), unclamped.
        region: the rectangle that it covers in an image of the size.
        size: (width, height).
        signed: whether negative values are drawn.
        zero: as for ``interpolate``.
    """
    result = np.zeros(size[::-1], np.float32)
    left, top, right, bottom = box = covered_pixels(region, size)
    minimum = -np.inf if signed else 0
    values = interpolate(saliency.clip(minimum), region, box, zero=zero)
    result[top:bottom, left:right] = values.clip(minimum)
    return result


def interpolate(
    saliency: ArrayLike, region: Box, box: Pixels, cells: bool = False, zero: float | None = None
) -> FloatArray:
    """Upsample a map to some of the image's pixels by bicubic interpolation.

    Args:
        saliency: (h, w), at the layer's resolution.
        region: the rectangle of the image that the map covers.
        box: the pixels to compute, among those that are ``covered_pixels``.
        cells: keep the cells with hard edges, without interpolation.
        zero: where a pixel holds several cells, it gets the one that is farthest from this value, lest single strong
            cells be averaged away; None for the average.

    Returns:
        An array with the rows and columns of the box. Between cells, values can exceed the map's own range.
    """
    values = np.asarray(saliency, dtype=np.float32)
    height, width = values.shape
    is_finer = height > region.bottom - region.top or width > region.right - region.left
    if is_finer and zero is not None:
        return _pool(values, region, box, zero)
    # A border of one cell keeps the value at the center of a pixel that the region's edge cuts.
    image = Image.fromarray(np.pad(values, 1, mode="edge"))
    start, end = _in_cells(np.reshape(box, (2, 2)), values, region) + 1
    part = (*start.clip(0), *np.minimum(end, image.size))
    left, top, right, bottom = box
    resampling = Image.Resampling.NEAREST if cells else Image.Resampling.BICUBIC
    return np.asarray(image.resize((right - left, bottom - top), resampling, part))


def _in_cells(positions: ArrayLike, values: FloatArray, region: Box) -> DoubleArray:
    """Positions (..., 2) in an image, in pixels, as positions in a map (h, w) that covers a region, in cells."""
    low, high = np.reshape(region, (2, 2))
    result: DoubleArray = (positions - low) * values.shape[::-1] / (high - low)
    return result


def _pool(saliency: FloatArray, region: Box, box: Pixels, zero: float) -> FloatArray:
    """Of the cells of a map (h, w) in each pixel of the box, the one that is farthest from ``zero``."""
    starts = []
    ends = []
    size = saliency.shape[::-1]
    for (low, high), first, last, count in zip(region.sides, box[:2], box[2:], size, strict=True):
        edges = (np.arange(first, last + 1) - low) * count / (high - low)
        edges = edges.clip(0, count).astype(int)
        starts.append(edges[:-1].clip(max=count - 1))
        ends.append(max(edges[-1], starts[-1][-1] + 1))
    cells = saliency[: ends[1], : ends[0]]
    highest = np.maximum.reduceat(np.maximum.reduceat(cells, starts[1], 0), starts[0], 1)
    lowest = np.minimum.reduceat(np.minimum.reduceat(cells, starts[1], 0), starts[0], 1)
    return np.where(highest - zero >= zero - lowest, highest, lowest)


def is_blank(saliency: ArrayLike, signed: bool = False) -> bool:
    """Whether a map (h, w) has no positive value (if signed, no nonzero value), or one that is not finite."""
    values = np.asarray(saliency)
    if signed:
        values = abs(values)
    return not (np.isfinite(values).all() and (values > 0).any())


def is_blank_on(size: Size, saliency: ArrayLike, region: Box, signed: bool = False) -> bool:
    """Whether a map (h, w) is blank on an image of a size (width, height); padding can push cells outside it."""
    values = np.asarray(saliency)
    start, end = _in_cells([(0, 0), size], values, region)
    left, top = (max(0, math.floor(edge)) for edge in start)
    right, bottom = map(math.ceil, end)
    return is_blank(values, signed) or is_blank(values[top:bottom, left:right], signed)


def peaks_at_border(size: Size, saliency: ArrayLike, region: Box) -> bool:
    """Whether a map (h, w) has its maximum at an edge of the region, beyond which the image (width, height) goes on."""
    values = np.asarray(saliency)
    if is_blank(values) or min(values.shape) < 3:
        return False
    peak = np.unravel_index(values.argmax(), values.shape)[::-1]
    axes = zip(peak, values.shape[::-1], region.sides, size, strict=True)
    for position, cells, (low, high), length in axes:
        if (position == 0 and low > 0) or (position == cells - 1 and high < length):
            return True
    return False


def ranks(saliency: ArrayLike, generator: np.random.Generator | None = None) -> NDArray[np.int64]:
    """The rank of each value of a map (H, W), 0 for the highest.

    Args:
        saliency: signed or not; a map with NaN or infinity counts as constant.
        generator: orders equal values; None for a fixed order.
    """
    values = np.asarray(saliency, dtype=np.float64)
    if not np.isfinite(values).all():
        values = np.zeros_like(values)
    generator = generator or np.random.default_rng(0)
    ties = generator.permutation(values.size)
    result = np.empty(values.shape, dtype=np.int64)
    result.flat[np.lexsort((ties, -values.ravel()))] = np.arange(values.size)
    return result


def downscale(image: Image.Image, longest: int = _LONGEST_SIDE) -> Image.Image:
    """Reduce an image to this longest side; by default, that of thumbnails."""
    size = reduced_size(image.size, longest)
    if size == image.size:
        return image
    # Hamming is nearly as sharp as Lanczos and takes a third of its time; reducing_gap averages whole pixels first
    return image.resize(size, Image.Resampling.HAMMING, reducing_gap=2.0)


def resize(image: Image.Image, longest: int) -> Image.Image:
    """Reduce or enlarge an image to this longest side, as sharp as can be."""
    return image.resize(fitted_size(image.size, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)


def picture(
    image: Image.Image, saliency: ArrayLike, region: Box, style: DrawingStyle, is_blank: bool | None = None
) -> Image.Image:
    """Draw a map over its photo, at the photo's size; ``side-by-side`` is wider.

    A blank map is not painted: its photo is gray and striped.

    Args:
        image: RGB; not modified.
        saliency: (h, w), unclamped.
        region: the rectangle of the image that the network saw; nothing is drawn outside it.
        style: the style, the colors and the color scale.
        is_blank: whether the map is blank; None to find out. A frame without saliency does not make a video blank.

    Returns:
        RGB, or RGBA for the style ``mask``.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    if style.name == "side-by-side":
        heatmap_picture = picture(image, saliency, region, replace(style, name="heatmap"), is_blank)
        return side_by_side([image, heatmap_picture], math.ceil(image.width * _GAP))
    if is_blank is None:
        is_blank = is_blank_on(image.size, saliency, region, style.signed)
    if is_blank:
        return _stripes(image)
    cells, zero = scaled_levels(np.asarray(saliency), style)
    painter = PAINTERS[style.name]
    result = painter.outside(image, style)
    left, top, right, bottom = box = covered_pixels(region, image.size)
    rows = max(1, _PIXELS_AT_A_TIME // (right - left))
    for start in range(top, bottom, rows):
        end = min(start + rows, bottom)
        part_top = max(top, start - painter.margin)
        part = (left, part_top, right, min(bottom, end + painter.margin))
        shades = Image.fromarray(interpolate(cells, region, part, style.cells, zero))
        strip = painter.inside(image.crop(part), shades, style)
        strip = strip.crop((0, start - part_top, strip.width, end - part_top))
        result.paste(strip, (left, start))
    if painter.frames:
        frame_width = round(min(image.size) * _FRAME)
        draw_frame(result, box, image.size, FRAME_COLOR, max(1, frame_width))
    return result


def draw_frame(image: Image.Image, box: Pixels, size: Size, color: int | Color, width: int = 1) -> None:
    """Draw a frame inside of a box, unless that is all of the photo, (width, height)."""
    left, top, right, bottom = box
    if box != (0, 0, *size):
        ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), outline=color, width=width)


def side_by_side(pictures: Sequence[Image.Image], gap: int) -> Image.Image:
    """Pictures of one mode side by side on white, so many pixels apart."""
    width = sum(image.width + gap for image in pictures) - gap
    height = max(image.height for image in pictures)
    result = Image.new(pictures[0].mode, (width, height), "white")
    left = 0
    for image in pictures:
        result.paste(image, (left, 0))
        left += image.width + gap
    return result


def _stripes(image: Image.Image) -> Image.Image:
    """A gray photo with diagonal stripes."""
    gray = ImageOps.grayscale(image).convert("RGB")
    draw = ImageDraw.Draw(gray)
    width, height = gray.size
    step = max(2, (width + height) // _STRIPES)
    for start in range(step // 2 - height, width, step):
        draw.line((start, height, start + height, 0), "#c8c8c8", max(1, step // 8))
    return gray
