"""One painter per style. A painter works on one part of the photo at a time, so memory stays small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ebcli.drawing.color_scale import LEVELS, opacity, palette
from ebcli.drawing.style import DrawingStyle

# Behind an overlay the photo is muted, or its colors would be mistaken for the map's.
_SATURATION = 0.5
_BRIGHTNESS = 0.85
_OUTSIDE_BRIGHTNESS = 0.65  # darker still outside the center crop
_NEUTRAL = (119, 119, 119)  # a middle gray, which no colormap for maps contains

CONTOURS = (0.2, 0.4, 0.6, 0.8)  # fractions of the way from 0 to the end of the scale
_LINES_ACROSS = 200  # the width of a contour is the width of the map divided by this
_SHADOW = 0.6  # opacity of the dark border of a contour


@dataclass(frozen=True)
class Painter:
    """How one style paints.

    Attributes:
        inside: paints a part of the photo that the network saw, RGB, given the map's positions on its scale, 0 to 1.
        outside: paints a part that the network did not see.
        mode: the mode of what both return.
    """

    inside: Callable[[Image.Image, NDArray[np.floating], DrawingStyle], Image.Image]
    outside: Callable[[Image.Image], Image.Image]
    mode: Literal["RGB", "RGBA"] = "RGB"


def _overlay(photo: Image.Image, positions: NDArray[np.floating], style: DrawingStyle) -> Image.Image:
    return _blended(_muted(photo), positions, style, style.alpha * opacity(style) ** 0.6)


def _paper(photo: Image.Image, positions: NDArray[np.floating], style: DrawingStyle) -> Image.Image:
    """(1 - m^0.8) photo + m^0.8 color, as in the figures of Zhang et al."""
    return _blended(photo, positions, style, opacity(style) ** 0.8)


def _heatmap(_photo: Image.Image, positions: NDArray[np.floating], style: DrawingStyle) -> Image.Image:
    return _colored(_levels(positions), style)


def _mask(photo: Image.Image, positions: NDArray[np.floating], _style: DrawingStyle) -> Image.Image:
    photo = photo.convert("RGBA")
    photo.putalpha(_levels(positions))
    return photo


def _contour(photo: Image.Image, positions: NDArray[np.floating], style: DrawingStyle) -> Image.Image:
    """Antialiased lines of equal value: the distance to a line is about the difference in value over the slope."""
    values = [0.5 + side * share / 2 for side in (-1, 1) for share in CONTOURS] if style.signed else CONTOURS
    padded = np.pad(positions, 1, mode="edge")  # a slope needs neighbors, even in a single row of pixels
    slope = np.hypot(*np.gradient(padded))[1:-1, 1:-1]
    distances = [np.abs(positions - value) / np.maximum(slope, np.finfo(np.float32).tiny) for value in values]
    width = max(1.5, photo.width / _LINES_ACROSS)

    def line(distance: NDArray[np.floating], width: float, alpha: float) -> Image.Image:
        return _levels(alpha * np.clip((width + 1) / 2 - distance, 0, 1))

    for distance in distances:
        photo = Image.composite(Image.new("RGB", photo.size), photo, line(distance, 2 * width, _SHADOW))
    for value, distance in zip(values, distances, strict=True):
        color = tuple(palette(style.colormap)[round(value * (LEVELS - 1))].tolist())
        photo = Image.composite(Image.new("RGB", photo.size, color), photo, line(distance, width, 1))
    return photo


def _levels(positions: NDArray[np.floating]) -> Image.Image:
    """Positions from 0 to 1 in 8 bits."""
    return Image.fromarray((positions * (LEVELS - 1)).round().astype(np.uint8))


def _colored(levels: Image.Image, style: DrawingStyle) -> Image.Image:
    levels = levels.copy()
    levels.putpalette(palette(style.colormap).tobytes())
    return levels.convert("RGB")


def _blended(
    photo: Image.Image, positions: NDArray[np.floating], style: DrawingStyle, alphas: NDArray[np.floating]
) -> Image.Image:
    """The colors of the map over a photo; ``alphas`` holds the opacity of each of the 256 levels, 0 to 1."""
    levels = _levels(positions)
    return Image.composite(_colored(levels, style), photo, levels.point((255 * alphas).round().astype(int).tolist()))


def _muted(photo: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(ImageEnhance.Color(photo).enhance(_SATURATION)).enhance(_BRIGHTNESS)


def _darker(photo: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(_muted(photo)).enhance(_OUTSIDE_BRIGHTNESS)


def _gray(photo: Image.Image) -> Image.Image:
    return Image.new("RGB", photo.size, _NEUTRAL)


def _transparent(photo: Image.Image) -> Image.Image:
    return Image.new("RGBA", photo.size)


# side-by-side is the photo beside the heatmap, see overlay.picture()
PAINTERS = {
    "overlay": Painter(_overlay, _darker),
    "heatmap": Painter(_heatmap, _gray),
    "mask": Painter(_mask, _transparent, "RGBA"),
    "contour": Painter(_contour, _darker),
    "paper": Painter(_paper, _darker),
}
