"""One painter per style. A painter works on one part of the photo at a time, so memory stays small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.color_scale import LEVELS, opacity, palette
from ebcli.drawing.style import DrawingStyle

# Behind an overlay the photo is muted, or its colors would be mistaken for the map's.
_SATURATION = 0.5
_BRIGHTNESS = 0.85
_OUTSIDE_BRIGHTNESS = 0.65  # darker still outside the center crop
_GRAY = (0.299, 0.587, 0.114)  # of red, green and blue, as Pillow converts to gray (ITU-R 601-2)
_NEUTRAL = (119, 119, 119)  # a middle gray, which no colormap for maps contains

CONTOURS = (0.2, 0.4, 0.6, 0.8)  # fractions of the way from 0 to the end of the scale
_LINES_ACROSS = 200  # the width of a contour is the width of the map divided by this
_SHADOW = 0.6  # opacity of the dark border of a contour


@dataclass(frozen=True)
class Painter:
    """How one style paints.

    Attributes:
        inside: paints a part of the photo that the network saw, RGB, which it may modify, given the map there: an image
            of floats whose integer parts are ``color_scale.levels``, not clipped.
        outside: paints a part that the network did not see.
        mode: the mode of what both return.
        margin: how many rows above and below a part ``inside`` needs.
    """

    inside: Callable[[Image.Image, Image.Image, DrawingStyle], Image.Image]
    outside: Callable[[Image.Image], Image.Image]
    mode: Literal["RGB", "RGBA"] = "RGB"
    margin: int = 0


def _overlay(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    return _blended(_muted(photo), levels, style, style.alpha * opacity(style) ** 0.6)


def _paper(photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    """(1 - m^0.8) photo + m^0.8 color, as in the figures of Zhang et al."""
    return _blended(photo, levels, style, opacity(style) ** 0.8)


def _heatmap(_photo: Image.Image, levels: Image.Image, style: DrawingStyle) -> Image.Image:
    return _colored(_clipped(levels), style)


def _mask(photo: Image.Image, levels: Image.Image, _style: DrawingStyle) -> Image.Image:
    photo.putalpha(_clipped(levels))
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
        _paint(photo, (0, 0, 0), line(distance, 2 * width, _SHADOW))
    for value, distance in zip(values, distances, strict=True):
        red, green, blue = palette(style.colormap)[round(value * (LEVELS - 1))].tolist()
        _paint(photo, (red, green, blue), line(distance, width, 1))
    return photo


def _clipped(levels: Image.Image) -> Image.Image:
    """Levels in 8 bits; Pillow clips to 0 and 255 and drops the fractional part."""
    return levels.convert("L")


def _colored(levels: Image.Image, style: DrawingStyle) -> Image.Image:
    levels = levels.copy()
    levels.putpalette(palette(style.colormap).tobytes())
    return levels.convert("RGB")


def _blended(photo: Image.Image, levels: Image.Image, style: DrawingStyle, alphas: NDArray[np.floating]) -> Image.Image:
    """The colors of the map over a photo; ``alphas`` holds the opacity of each of the 256 levels, 0 to 1."""
    levels = _clipped(levels)
    opacities = levels.point((255 * alphas).round().astype(int).tolist())
    if box := opacities.getbbox():  # blending takes most of the time of a picture, and most of a map is often flat
        photo.paste(_colored(levels.crop(box), style), box, opacities.crop(box))
    return photo


def _paint(photo: Image.Image, color: tuple[int, int, int], opacities: Image.Image) -> None:
    if box := opacities.getbbox():
        photo.paste(color, box, opacities.crop(box))


def _muted(photo: Image.Image, brightness: float = _BRIGHTNESS) -> Image.Image:
    """The photo with less color and light, as ``ImageEnhance.Color`` and ``Brightness`` make it, in one go."""
    matrix: list[float] = []
    for channel in range(3):
        gray = [brightness * (1 - _SATURATION) * weight for weight in _GRAY]
        gray[channel] += brightness * _SATURATION
        matrix += [*gray, 0]
    return photo.convert("RGB", tuple(matrix))


def _darker(photo: Image.Image) -> Image.Image:
    return _muted(photo, _BRIGHTNESS * _OUTSIDE_BRIGHTNESS)


def _gray(photo: Image.Image) -> Image.Image:
    return Image.new("RGB", photo.size, _NEUTRAL)


def _transparent(photo: Image.Image) -> Image.Image:
    return Image.new("RGBA", photo.size)


# side-by-side is the photo beside the heatmap, see overlay.picture()
PAINTERS = {
    "overlay": Painter(_overlay, _darker),
    "heatmap": Painter(_heatmap, _gray),
    "mask": Painter(_mask, _transparent, "RGBA"),
    "contour": Painter(_contour, _darker, margin=1),
    "paper": Painter(_paper, _darker),
}
