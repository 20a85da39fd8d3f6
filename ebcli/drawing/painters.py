"""The ways to paint a map on a photo. Each works on a part of the photo at a time, so that none needs much memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ebcli.drawing.color_scale import LEVELS, DrawingStyle, palette

# The photo steps back behind an overlay: its colours are halved, lest they be taken for the map's.
_SATURATION = 0.5
_BRIGHTNESS = 0.85
_OUTSIDE_BRIGHTNESS = 0.65  # darker still where the network did not look
_NEUTRAL = (119, 119, 119)  # a middle grey, which no colormap for maps has

CONTOURS = (0.2, 0.4, 0.6, 0.8)  # shares of the way from 0 to the scale's end
_LINES_ACROSS = 200  # a contour is as wide as this part of the map
_SHADOW = 0.6  # how dark it is beside a contour


@dataclass(frozen=True)
class Style:
    """One way to paint.

    Attributes:
        inside: paints a map on a part of the photo that the network saw, RGB, given the map's places on its scale
            there, 0 to 1.
        outside: what becomes of a part that it did not see.
        mode: of what both return.
    """

    inside: Callable[[Image.Image, NDArray[np.floating], DrawingStyle], Image.Image]
    outside: Callable[[Image.Image], Image.Image]
    mode: Literal["RGB", "RGBA"] = "RGB"


def _overlay(photo: Image.Image, shares: NDArray[np.floating], look: DrawingStyle) -> Image.Image:
    return _blended(_muted(photo), shares, look, look.alpha * look.opacity() ** 0.6)


def _paper(photo: Image.Image, shares: NDArray[np.floating], look: DrawingStyle) -> Image.Image:
    """(1 - m^0.8) photo + m^0.8 colour, as in the pictures of the method's authors."""
    return _blended(photo, shares, look, look.opacity() ** 0.8)


def _heatmap(_photo: Image.Image, shares: NDArray[np.floating], look: DrawingStyle) -> Image.Image:
    return _coloured(_levels(shares), look)


def _mask(photo: Image.Image, shares: NDArray[np.floating], _look: DrawingStyle) -> Image.Image:
    photo = photo.convert("RGBA")
    photo.putalpha(_levels(shares))
    return photo


def _contour(photo: Image.Image, shares: NDArray[np.floating], look: DrawingStyle) -> Image.Image:
    """Lines of equal value, smooth as the distance to one is about the difference in value over the slope."""
    places = [0.5 + side * share / 2 for side in (-1, 1) for share in CONTOURS] if look.signed else CONTOURS
    padded = np.pad(shares, 1, mode="edge")  # for slopes there to be where there is but one row of pixels
    slope = np.hypot(*np.gradient(padded))[1:-1, 1:-1]
    distances = [np.abs(shares - place) / np.maximum(slope, np.finfo(np.float32).tiny) for place in places]
    width = max(1.5, photo.width / _LINES_ACROSS)

    def line(distance: NDArray[np.floating], width: float, opacity: float) -> Image.Image:
        return _levels(opacity * np.clip((width + 1) / 2 - distance, 0, 1))

    for distance in distances:
        photo = Image.composite(Image.new("RGB", photo.size), photo, line(distance, 2 * width, _SHADOW))
    for place, distance in zip(places, distances, strict=True):
        colour = tuple(palette(look.cmap)[round(place * (LEVELS - 1))].tolist())
        photo = Image.composite(Image.new("RGB", photo.size, colour), photo, line(distance, width, 1))
    return photo


def _levels(shares: NDArray[np.floating]) -> Image.Image:
    """Shares, 0 to 1, in 8 bits."""
    return Image.fromarray((shares * (LEVELS - 1)).round().astype(np.uint8))


def _coloured(levels: Image.Image, look: DrawingStyle) -> Image.Image:
    levels = levels.copy()
    levels.putpalette(palette(look.cmap).tobytes())
    return levels.convert("RGB")


def _blended(
    photo: Image.Image, shares: NDArray[np.floating], look: DrawingStyle, opacity: NDArray[np.floating]
) -> Image.Image:
    """The colormap's colours over a photo; `opacity` is that of each of the 256 levels, 0 to 1."""
    levels = _levels(shares)
    return Image.composite(_coloured(levels, look), photo, levels.point((255 * opacity).round().astype(int).tolist()))


def _muted(photo: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(ImageEnhance.Color(photo).enhance(_SATURATION)).enhance(_BRIGHTNESS)


def _darker(photo: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(_muted(photo)).enhance(_OUTSIDE_BRIGHTNESS)


def _grey(photo: Image.Image) -> Image.Image:
    return Image.new("RGB", photo.size, _NEUTRAL)


def _transparent(photo: Image.Image) -> Image.Image:
    return Image.new("RGBA", photo.size)


STYLES = {
    "overlay": Style(_overlay, _darker),
    "heatmap": Style(_heatmap, _grey),
    "mask": Style(_mask, _transparent, "RGBA"),
    "contour": Style(_contour, _darker),
    "paper": Style(_paper, _darker),
}
