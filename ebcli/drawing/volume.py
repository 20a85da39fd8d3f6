"""The map of a volume: three orthogonal slices through its maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.legend import captioned
from ebcli.drawing.overlay import picture, shrunk
from ebcli.files.frame_ranges import Slices
from ebcli.files.media.medium import Shown
from ebcli.nouns.box import Box

if TYPE_CHECKING:
    from ebcli.drawing.frames import FrameMaps

_GAP = 0.02  # of the height, between slices
_LEAST = 256  # pixels, of the longer side of the first slice
_STRETCHED = 16  # times; more would be a header that lies


def peak_of(maps: FrameMaps) -> tuple[int, int, int]:
    """The slice, row and column of the maximum of a volume's map, as they are drawn."""
    assert isinstance(maps.clips, Slices)
    values = maps.clips.upright(maps.map.drawn_values)
    strength = np.nan_to_num(np.abs(values) if maps.style.signed else values)
    cell = np.unravel_index(strength.argmax(), strength.shape)
    z, y, x = ((2 * int(i) + 1) * side // (2 * n) for i, side, n in zip(cell, _sides(maps), values.shape, strict=True))
    return z, y, x


def _sides(maps: FrameMaps) -> tuple[int, int, int]:
    """The slices, rows and columns of a volume."""
    return maps.clips.total if maps.clips else 1, maps.size[1], maps.size[0]


class Orthogonal:
    """The slices through a map's maximum across the depth, the rows and the columns, side by side.

    They have the proportions of the volume in space. Of its slices, only what is drawn is kept.

    Args:
        maps: the map.
        slices: those of the volume.
    """

    def __init__(self, maps: FrameMaps, slices: Slices) -> None:
        self._maps, self._slices = maps, slices
        self._peak = peak_of(maps)
        self._axial: Shown | None = None
        self._rows: list[NDArray[np.uint8]] = []
        self._columns: list[NDArray[np.uint8]] = []

    def add(self, shown: Shown) -> None:
        """Keep what is drawn of the next slice."""
        z, y, x = self._peak
        if shown.number == z:
            self._axial = shown
        pixels = np.asarray(shown.image)
        self._rows.append(pixels[y])
        self._columns.append(pixels[:, x])

    def drawn(self, longest: int | None = None) -> Image.Image:
        """The picture, reduced to this longest side."""
        assert self._axial is not None
        values = self._slices.upright(self._maps.map.drawn_values)
        _, height, width = values.shape
        sides = zip(self._peak, values.shape, _sides(self._maps), strict=True)
        _, y, x = (i * count // side for i, count, side in sides)
        planes = [
            (np.asarray(self._axial.image), self._maps.at(self._axial), (0, 1)),
            (np.stack(self._rows), values[:, y] * height, (0, 2)),
            (np.stack(self._columns), values[:, :, x] * width, (1, 2)),
        ]
        drawn = [self._plane(*plane) for plane in planes]
        gap = max(2, round(_GAP * drawn[0].height))
        size = sum(one.width for one in drawn) + 2 * gap, max(one.height for one in drawn)
        whole, left = Image.new(drawn[0].mode, size, "white"), 0
        for one in drawn:
            whole.paste(one, (left, 0))
            left += one.width + gap
        whole = whole if longest is None else shrunk(whole, longest)
        style = self._maps.faded
        return captioned(whole, self._maps.map, style, self._maps.is_blank) if style.caption else whole

    def _plane(self, pixels: NDArray[np.uint8], values: NDArray[np.float32], axes: tuple[int, int]) -> Image.Image:
        """A slice with its map, of which rows and columns follow two of the axes x, y and z."""
        if axes[1] == 2 and self._slices.flipped[2]:
            pixels, values = pixels[::-1], values[::-1]
        finest, zoom = min(self._slices.spacing), max(1, _LEAST / max(self._maps.size))
        across, down = (zoom * min(self._slices.spacing[axis] / finest, _STRETCHED) for axis in axes)
        image = Image.fromarray(pixels)
        image = image.resize((round(image.width * across), round(image.height * down)), Image.Resampling.BICUBIC)
        whole = Box(0, 0, *image.size)
        return picture(image, values, whole, self._maps.faded, is_blank=self._maps.is_blank)
