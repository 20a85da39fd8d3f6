"""One painter per style. A painter works on one part of the photo at a time, so memory stays small."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.color_scale import LEVELS, opacity, overlay_colors, palette
from ebcli.drawing.style import DrawingStyle

_NEUTRAL = (119, 119, 119)  # a middle gray, which no colormap for maps contains

CONTOURS = (0.2, 0.4, 0.6, 0.8)  # fractions of the way from 0 to the end of the scale
_LINES_ACROSS = 200  # the width of a contour is the width of the map divided by this
_LIGHTER = 0.45  # of the way from 0 in the colormap, lines have no color: it is as dark as their border
_HALO, _SHADOW = 0.4, 0.7  # opacities of the light and the dark border of a contour, seen on dark and light photos


@dataclass(frozen=True)
class Painter:
    """How one style paints.

    Attributes:
        inside: paints a part of the photo that the network saw, RGB, which it may modify, given the map there: an image
            of floats whose integer parts are ``color_scale.levels``, not clipped.
        outside: a copy of the photo as it is painted where the network did not see it; both return one mode.
        margin: how many rows above and below a part ``inside`` needs.
        frames: the part that the network saw has a thin frame where the photo goes on.
    """

    inside: Callable[[Image.Image, Image.Image, DrawingStyle], Image.Image]
    outside: Callable[[Image.Image, DrawingStyle], Image.Image]
    margin: int = 0
    frames: bool = False


def _overlay(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    return _blended(photo, levels, overlay_colors(style), style.alpha * opacity(style))


def _paper(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    """(1 - m^0.8) photo + m^0.8 color, as in the figures of Zhang et al."""
    return _blended(photo, levels, overlay_colors(style), opacity(style) ** 0.8)


def _heatmap(_photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    return _colored(_clipped(levels), palette(style.colormap))


def _mask(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    least = style.background
    photo.putalpha(_clipped(levels).point([round(255 * least + (1 - least) * level) for level in range(LEVELS)]))
    return photo


def _contour(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    """Antialiased lines of equal value: the distance to a line is about the difference in value over the slope."""
    values = [0.5 + side * share / 2 for side in (-1, 1) for share in CONTOURS] if style.signed else CONTOURS
    positions = ((np.asarray(levels) - np.float32(0.5)) / np.float32(LEVELS - 1)).clip(0, 1)
    padded = np.pad(positions, 1, mode="edge")  # a slope needs neighbors, even in a single row of pixels
    slope = np.hypot(*np.gradient(padded))[1:-1, 1:-1]
    distances = [np.abs(positions - value) / np.maximum(slope, np.finfo(np.float32).tiny) for value in values]
    width = max(1.5, photo.width / _LINES_ACROSS)

    def line(distance: NDArray[np.floating], width: float, alpha: float) -> Image.Image:
        opacities = alpha * np.clip((width + 1) / 2 - distance, 0, 1)
        return Image.fromarray((opacities * 255).round().astype(np.uint8))

    for distance in distances:
        _paint(photo, (255, 255, 255), line(distance, 3 * width, _HALO))
        _paint(photo, (0, 0, 0), line(distance, 2 * width, _SHADOW))
    colors, zero = palette(style.colormap), 0.5 * style.signed
    for value, distance in zip(values, distances, strict=True):
        place = value + _LIGHTER * (math.copysign(1 - zero, value - zero) - (value - zero))
        red, green, blue = colors[round(place * (LEVELS - 1))].tolist()
        _paint(photo, (red, green, blue), line(distance, width, 1))
    return photo


def _clipped(levels: Image.Image) -> Image.Image:
    """Levels in 8 bits; Pillow clips to 0 and 255 and drops the fractional part."""
    return levels.convert("L")


def _colored(levels: Image.Image, colors: NDArray[np.uint8]) -> Image.Image:
    levels = levels.copy()
    levels.putpalette(colors.tobytes())
    return levels.convert("RGB")


def _blended(
    photo: Image.Image, levels: Image.Image, colors: NDArray[np.uint8], alphas: NDArray[np.floating]
) -> Image.Image:
    """The map over a photo; `colors` (256, 3) and `alphas`, the opacities from 0 to 1, are those of its levels."""
    levels = _clipped(levels)
    opacities = levels.point((255 * alphas).round().astype(int).tolist())
    if box := opacities.getbbox():  # blending takes most of the time of a picture, and most of a map is often flat
        photo.paste(_colored(levels.crop(box), colors), box, opacities.crop(box))
    return photo


def _paint(photo: Image.Image, color: tuple[int, int, int], opacities: Image.Image) -> None:
    if box := opacities.getbbox():
        photo.paste(color, box, opacities.crop(box))


def _unchanged(photo: Image.Image, _style: DrawingStyle) -> Image.Image:
    return photo.copy()


def _gray(photo: Image.Image, _style: DrawingStyle) -> Image.Image:
    return Image.new("RGB", photo.size, _NEUTRAL)


def _transparent(photo: Image.Image, style: DrawingStyle) -> Image.Image:
    photo = photo.copy()
    photo.putalpha(round(255 * style.background))
    return photo


# side-by-side is the photo beside the heatmap, see overlay.picture()
PAINTERS = {
    "overlay": Painter(_overlay, _unchanged, frames=True),
    "heatmap": Painter(_heatmap, _gray),
    "mask": Painter(_mask, _transparent),
    "contour": Painter(_contour, _unchanged, margin=1, frames=True),
    "paper": Painter(_paper, _unchanged, frames=True),
}
