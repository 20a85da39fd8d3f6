"""Tiles of a photo: where they lie, and how their maps are joined into one. Imports no torch."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.nouns.explanation import Map
from ebcli.nouns.input_spec import InputSpec

_LONGEST = 2.5  # times as long as wide; longer images are explained in tiles, see docs/evidence.md


class Tiles(NamedTuple):
    """Overlapping tiles of a photo.

    Attributes:
        corners: the top and left of each, in pixels of the resized photo.
        side: their height and width.
        size: the height and width of the resized photo.
    """

    corners: list[tuple[int, int]]
    side: int
    size: tuple[int, int]

    @classmethod
    def needed(cls, spec: InputSpec, shape: Sequence[int]) -> "Tiles | None":
        """The tiles in which pixels of a shape (height, width, ...) are explained; None if they are at once."""
        size = height, width = shape[0], shape[1]
        if spec.fit != "whole" or not (spec.tiles or max(size) > _LONGEST * min(size)):
            return None
        return cls.of((height, width), spec.shape[0], spec.step)

    @classmethod
    def of(cls, size: tuple[int, int], side: int, step: int) -> "Tiles":
        """Tiles that overlap by about half; their corners are multiples of a step, so that cells coincide."""
        rows, columns = (_starts(length, side, step) for length in size)
        return cls([(row, column) for row in rows for column in columns], side, size)

    def cut(self, pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """The tiles (side, side, 3) of the resized photo (height, width, 3), without a copy."""
        return [pixels[top : top + self.side, left : left + self.side] for top, left in self.corners]

    def joined(self, scores: ArrayLike, maps: Sequence[Map]) -> Map:
        """The map of a photo from the maps of its tiles for one subject.

        The score of the photo is the mean over its tiles, so by Equation 4 of Zhang et al. each tile gets its share of
        the sum of their scores as its probability. Where tiles overlap, their maps are averaged, with weights that fade
        to the tiles' borders.

        Args:
            scores: (tiles, num_classes).
            maps: one for each tile.
        """
        first = maps[0]
        own = np.maximum(np.asarray(scores)[:, first.subject.index], 0)
        shares = own / own.sum() if own.sum() > 0 else np.full(len(maps), 1 / len(maps))
        mass, lost = 0.0, Counter[str]()
        for share, map_ in zip(shares.tolist(), maps, strict=True):
            mass += share * (map_.mass or 0)
            for name, amount in (map_.lost_mass or {}).items():
                lost[name] += share * amount
        return replace(
            first,
            values=self._averaged(shares, [map_.values for map_ in maps]),
            mass=None if first.mass is None else mass,
            lost_mass=None if first.lost_mass is None else dict(lost),
            relevance=None,
            channels=tuple(shares @ [map_.channels for map_ in maps]) if first.channels else (),
            beside={name: self._averaged(shares, [map_.beside[name] for map_ in maps]) for name in first.beside},
        )

    def _averaged(self, shares: NDArray[np.float64], maps: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Maps (h, w) of tiles as one map (H, W) that sums to about as much as they do, each times its share."""
        height, width = cells = maps[0].shape
        size = [round(length * count / self.side) for length, count in zip(self.size, cells, strict=True)]
        total, weights = np.zeros(size), np.zeros(size)
        window = np.outer(_window(height), _window(width))
        for (top, left), share, map_ in zip(self.corners, shares, maps, strict=True):
            row, column = round(top * height / self.side), round(left * width / self.side)
            place = slice(row, row + height), slice(column, column + width)
            total[place] += share * window * map_
            weights[place] += window
        # cells are averaged over the tiles that cover them: as many as this, on average
        return (total / weights * (len(maps) * map_.size / total.size)).astype(np.float32)


def _starts(length: int, side: int, step: int) -> list[int]:
    """The first pixels of tiles along a side."""
    steps, count = (length - side) // step, math.ceil(2 * (length - side) / side)
    return [round(steps * i / max(1, count)) * step for i in range(count + 1)]


def _window(cells: int) -> NDArray[np.float64]:
    """Hann's window at the centers of cells, nowhere 0."""
    window: NDArray[np.float64] = np.sin(np.pi * (np.arange(cells) + 0.5) / cells) ** 2
    return window
