"""What a network gets at a time: batches of images, clips of a video, tiles of a photo, whose maps are joined."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.errors import ConfigurationError
from ebcli.models import LoadedModel
from ebcli.models.device import default_batch_size
from ebcli.models.keywords import VIDEO, WHOLE
from ebcli.nouns.explanation import Map
from ebcli.nouns.input_spec import InputSpec

_LONGEST = 2.5  # times as long as wide; longer images are explained in tiles, see docs/evidence.md

_FRAMES = 16  # of a clip, which takes about as much memory as so many images


def batch_sizes(loaded: LoadedModel, chosen: int | None, device: str, total: int, in_batches: bool) -> tuple[int, int]:
    """The images of a batch, and how many clips or tiles of one image the network gets at a time.

    Args:
        loaded: the network.
        chosen: what the user chose; None for what suits the device.
        device: the device's name.
        total: the images of the run.
        in_batches: whether the network's task takes several images at a time.
    """
    is_video = loaded.task == VIDEO
    chosen = 1 if loaded.one_by_one else chosen
    is_alone = loaded.transforms.depth is not None or not (in_batches or is_video)
    usual = 1 if is_alone else default_batch_size(device)
    pieces = chosen or (max(1, usual // _FRAMES) if is_video else usual)
    # a batch is never larger than the run; of few images that differ in size, most batches would be half empty
    differ = chosen is None and loaded.transforms.fit == WHOLE
    most = 1 if is_video else min(total, max(2, total // 4)) if differ else total
    return min(chosen or usual, most), pieces


def in_sequence(clips: Sequence[Map]) -> Map:
    """The map of a video: its clips one after another, each with an equal share of the probability."""
    if clips[0].values.ndim != 3:
        layer = clips[0].layer
        raise ConfigurationError(f"the map of layer {layer!r} has no time: choose a layer that keeps all frames")
    values = np.concatenate([clip.values / np.float32(len(clips)) for clip in clips])
    return _mixed(clips, [1 / len(clips)] * len(clips), values)


def _mixed(maps: Sequence[Map], shares: Sequence[float], values: NDArray[np.float32]) -> Map:
    """A map with these values; of the maps that it is made of, each has a share of its mass, and of what was lost."""
    first, lost = maps[0], defaultdict[str, float](float)
    for share, map_ in zip(shares, maps, strict=True):
        for name, amount in (map_.lost_mass or {}).items():
            lost[name] += share * amount
    mass = None if first.mass is None else sum(share * (one.mass or 0) for share, one in zip(shares, maps, strict=True))
    return replace(first, values=values, mass=mass, lost_mass=None if first.lost_mass is None else dict(lost))


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
        if spec.fit != WHOLE or not (spec.tiles or max(size) > _LONGEST * min(size)):
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
        return replace(
            _mixed(maps, shares.tolist(), self._averaged(shares, [map_.values for map_ in maps])),
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
