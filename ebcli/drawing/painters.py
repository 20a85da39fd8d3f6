"""From the values of a map to colors: the color scale, and one painter per style.

A painter works on one part of the photo at a time, so memory stays small.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, closest

LEVELS = 256  # pictures have 8 bits per channel

# An overlay's colors for the class and against it, from 0 to the ends of the scale: hues that photos seldom have, so
# saturated that they are as far from white as from black. benchmarks/overlays.py compares them with others.
_HUES = (130, 60, 255), (230, 0, 255)
_AGAINST = (0, 220, 140), (0, 220, 0)

Color = tuple[int, int, int]  # RGB
_Values = NDArray[np.floating]
_Colors = NDArray[np.uint8]

FRAME_COLOR = 150, 150, 150  # of the center crop
_NEUTRAL = (119, 119, 119)  # a middle gray, which no colormap for maps contains

CONTOURS = (0.2, 0.4, 0.6, 0.8)  # fractions of the way from 0 to the end of the scale
_LINES_ACROSS = 200  # the width of a contour is the width of the map divided by this
_LIGHTER = 0.45  # of the way from 0 in the colormap, lines have no color: it is as dark as their border
# Opacities of the light and the dark border of a contour, seen on dark and light photos
_HALO = 0.4
_SHADOW = 0.7


def visible(saliency: _Values, style: DrawingStyle) -> _Values:
    """The values that a style draws: their magnitude if it is signed, else the positive part."""
    return np.abs(saliency) if style.signed else np.maximum(saliency, 0)


def limits(saliency: _Values, style: DrawingStyle) -> tuple[float, float]:
    """The ends of the color scale for a map (h, w) that is not all 0, in the map's own units."""
    cells = saliency.size
    if style.vmax is None:
        values = visible(saliency, style)
        high = float(np.percentile(values[values > 0], style.percentile_of(cells)))
    else:
        high = style.vmax / cells
    if style.signed:
        return -high, high
    return style.vmin / cells, high


def rounded_up(value: float) -> float:
    """A value to two significant digits, as the end of a scale: 0.3333 -> 0.34."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")


def levels(values: _Values, ends: tuple[float, float], count: int = LEVELS) -> FloatArray:
    """Values as levels of a scale, not clipped: the integer part is the level, 0 at the lower end to 255 at the upper.

    This is affine, so a map can be scaled before it is upsampled.
    """
    low, high = ends
    if high <= low:  # the whole map lies below vmin
        return np.full(values.shape, 0.5, np.float32)
    scale = (count - 1) / (high - low)
    return ((values.astype(np.float64) - low) * scale + 0.5).astype(np.float32)


def scaled_levels(values: _Values, style: DrawingStyle, count: int = LEVELS) -> tuple[FloatArray, float]:
    """The levels of a map's cells (h, w), and that of 0. Clamped before upsampling, or a dip would dent a peak."""
    ends = limits(values, style)
    zero = float(levels(np.zeros(1), ends, count)[0])
    if not style.signed:
        values = visible(values, style)
    return levels(values, ends, count), zero


def opacity(style: DrawingStyle) -> DoubleArray:
    """How much each of the scale's 256 levels stands out, 0 to 1: its distance from 0, or from the lower end."""
    levels = np.arange(LEVELS)
    if not style.signed:
        return levels / (LEVELS - 1)
    middle = LEVELS // 2
    return (np.abs(levels - middle) / (middle - 1)).clip(max=1)


@lru_cache
def overlay_colors(style: DrawingStyle) -> _Colors:
    """The colors of an overlay's 256 levels, (256, 3): those of ``cmap``, or its own.

    Blended with an opacity that rises with the value, its own colors differ from any common photo the more, the higher
    the value.
    """
    if style.cmap is not None or style.name == "paper":
        return palette(style.colormap)
    is_against = style.signed & (np.arange(LEVELS) < LEVELS // 2)[:, None]
    starts = np.where(is_against, _AGAINST[0], _HUES[0])
    ends = np.where(is_against, _AGAINST[1], _HUES[1])
    colors: _Colors = (starts + opacity(style)[:, None] * (ends - starts)).round().astype(np.uint8)
    return colors


@lru_cache
def palette(cmap: str) -> _Colors:
    """The 256 colors of a matplotlib colormap, (256, 3), from the lowest value to the highest.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    from matplotlib import colormaps  # which takes as long to import as a photo to draw

    if cmap not in colormaps:
        near = closest(cmap, colormaps) or "choose one of matplotlib, such as viridis or turbo"
        raise ConfigurationError(f"unknown colormap {cmap!r}: {near}")
    colors: _Colors = colormaps[cmap](np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    return colors


class Painter(NamedTuple):
    """How one style paints.

    Attributes:
        inside: paints a part of the photo that the network saw, RGB, which it may modify, given the map there: an image
            of floats whose integer parts are ``levels``, not clipped.
        outside: a copy of the photo as it is painted where the network did not see it; both return one mode.
        margin: how many rows above and below a part ``inside`` needs.
        frames: the part that the network saw has a thin frame where the photo goes on.
    """

    inside: Callable[[Image.Image, Image.Image, DrawingStyle], Image.Image]
    outside: Callable[[Image.Image, DrawingStyle], Image.Image]
    margin: int = 0
    frames: bool = False


def _overlay(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    """The map over the photo. In ``paper``, (1 - m^0.8) photo + m^0.8 color, as in the figures of Zhang et al."""
    alphas = style.alpha * opacity(style)
    if style.name == "paper":
        alphas = opacity(style) ** 0.8
    levels = _clip(levels)
    opacities = levels.point((255 * alphas).tolist())
    box = opacities.getbbox()
    if box:  # blending takes most of the time of a picture, and most of a map is often flat
        photo.paste(_colorize(levels.crop(box), overlay_colors(style)), box, opacities.crop(box))
    return photo


def _heatmap(_photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    return _colorize(_clip(levels), palette(style.colormap))


def _mask(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    minimum = style.background
    photo.putalpha(_clip(levels).point(lambda level: 255 * minimum + (1 - minimum) * level))
    return photo


def _contour(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    """Antialiased lines of equal value: the distance to a line is about the difference in value over the slope."""
    positions = ((np.asarray(levels) - np.float32(0.5)) / np.float32(LEVELS - 1)).clip(0, 1)
    slopes = np.maximum(slope(positions), np.finfo(np.float32).tiny)
    values: tuple[float, ...] = CONTOURS
    if style.signed:
        values = *(0.5 - share / 2 for share in CONTOURS), *(0.5 + share / 2 for share in CONTOURS)
    distances = {value: np.abs(positions - value) / slopes for value in values}
    line_width = max(1.5, photo.width / _LINES_ACROSS)

    def draw_line(color: tuple[int, ...], distance: _Values, width: float, alpha: float = 1) -> None:
        opacities = alpha * np.clip((width + 1) / 2 - distance, 0, 1)
        mask = Image.fromarray((opacities * 255).round().astype(np.uint8))
        box = mask.getbbox()
        if box:
            photo.paste(color, box, mask.crop(box))

    for distance in distances.values():
        draw_line((255, 255, 255), distance, 3 * line_width, _HALO)
        draw_line((0, 0, 0), distance, 2 * line_width, _SHADOW)
    for value, distance in distances.items():
        end = 0 if style.signed and value < 0.5 else 1
        place = value + _LIGHTER * (end - value)
        color = palette(style.colormap)[round(place * (LEVELS - 1))]
        draw_line(tuple(color.tolist()), distance, line_width)
    return photo


def slope(values: _Values) -> _Values:
    """The length of the gradient (h, w) of an array, also where that is a single row."""
    with_edge = np.pad(values, 1, mode="edge")
    return np.hypot(*np.gradient(with_edge))[1:-1, 1:-1]


def _clip(levels: Image.Image) -> Image.Image:
    """Levels in 8 bits; Pillow clips to 0 and 255 and drops the fractional part."""
    return levels.convert("L")


def _colorize(levels: Image.Image, colors: _Colors) -> Image.Image:
    levels = levels.copy()
    levels.putpalette(colors.tobytes())
    return levels.convert("RGB")


def _copy(photo: Image.Image, style: DrawingStyle) -> Image.Image:
    photo = photo.copy()
    if style.name == "mask":
        photo.putalpha(round(255 * style.background))
    return photo


# side-by-side is the photo beside the heatmap, see overlay.picture()
PAINTERS = {
    "overlay": Painter(_overlay, _copy, frames=True),
    "heatmap": Painter(_heatmap, lambda photo, _: Image.new("RGB", photo.size, _NEUTRAL)),
    "mask": Painter(_mask, _copy),
    "contour": Painter(_contour, _copy, margin=1, frames=True),
    "paper": Painter(_overlay, _copy, frames=True),
}
