"""Results of the engine as maps: of a batch, of clips of a video and tiles of a photo, and of other methods."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ebcli.datatypes.explanation import Map, Subject
from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb import ExcitationResult
from ebcli.errors import ConfigurationError
from ebcli.models import LoadedModel
from ebcli.models.keywords import INPUT, VIDEO, WHOLE
from ebcli.models.methods import IMPLEMENTED
from ebcli.models.running import default_batch_size
from ebcli.run.tasks.task import ImageRequest

Rows = Sequence[Sequence[Subject]]  # of each image
Arrays = Mapping[str, NDArray[np.float32]]
_LONGEST = 2.5  # times as long as wide; longer images are explained in tiles, see docs/evidence.md

_FRAMES = 16  # of a clip, which takes about as much memory as so many images


def priors(rows: Rows, count: int, logits: Tensor) -> Tensor:
    """Where the probability starts, (B, K, num_classes, ...), for an output (B, num_classes, ...).

    Args:
        rows: the subjects of each image. Images with fewer than others repeat their first one, and inputs without an
            image the last image's.
        count: the least number of subjects, K.
        logits: the output.
    """
    count = max(count, *map(len, rows))
    device = "cpu" if logits.ndim == 2 else logits.device  # one by one, small numbers are written faster on the CPU
    starts = torch.zeros((len(logits), count, *logits.shape[1:]), dtype=logits.dtype, device=device)
    for i, of_image in enumerate(starts):
        row = [*rows[min(i, len(rows) - 1)]] or [Subject(0, None, 0.0)]
        for subject, prior in zip(row + row[:1] * count, of_image, strict=False):
            if isinstance(subject.where, tuple):
                prior[subject.index][subject.where] = 1
            else:
                prior[subject.index] = torch.from_numpy(subject.where).to(prior) / int(subject.where.sum())
    return starts.to(logits.device)


def maps_of(
    requests: Sequence[ImageRequest],
    inputs: Tensor,
    results: Sequence[ExcitationResult],
    rows: Rows,
    keep_relevance: bool,
) -> list[list[Map]]:
    """The maps of each image, subject by subject and layer by layer, with those of other methods beside them.

    Args:
        requests: what is asked of each image.
        inputs: what the network got, (B, C, ...); the last ones may only fill the batch.
        results: one for each layer of the network.
        rows: the subjects of each image.
        keep_relevance: whether maps have their relevance.
    """
    network, maps = requests[0].network, requests[0].maps
    method, against = "contrastive" if maps.contrastive else "marginal", ", ".join(network.labels_against)
    indices = [[subject.index for subject in row] for row in rows]
    width = max(map(len, indices))
    targets = torch.tensor([(row + row[:1] * width)[:width] or [0] * width for row in indices])
    by_image: list[list[list[Map]]] = [[] for _ in rows]
    for layer, result in zip(network.layers, results, strict=True):
        values, mass = result.maps.float().cpu().numpy(), None if result.mass is None else result.mass.tolist()
        lost_mass = (
            None if result.lost_mass is None else {name: losses.tolist() for name, losses in result.lost_mass.items()}
        )
        relevance = result.relevance.float().cpu().numpy() if keep_relevance else None
        of_channels = _channel_shares(result.relevance) if layer == INPUT else None
        method_maps = compared_maps(
            network.loaded.net, maps.beside if width else (), inputs[: len(rows)], targets, layer
        )
        for image_maps, row, request, i in zip(by_image, rows, requests, range(len(rows)), strict=True):
            image_maps.append(
                [
                    Map(
                        subject=subject,
                        layer=layer,
                        values=values[i, k].copy(),  # a view would keep the maps of the whole batch in memory
                        mass=None if mass is None else mass[i][k],
                        placement=request.place,
                        lost_mass=None
                        if lost_mass is None
                        else {name: losses[i][k] for name, losses in lost_mass.items()},
                        relevance=None if relevance is None else relevance[i, k].copy(),
                        method=method,
                        method_maps={name: array[i, k].copy() for name, array in method_maps.items()},
                        noise=network.noise.get(layer),
                        stride=network.strides.get(layer, 1),
                        against=against,
                        channels=() if of_channels is None else tuple(of_channels[i][k]),
                    )
                    for k, subject in enumerate(row)
                ]
            )
    return [[map_ for maps in zip(*of_image, strict=True) for map_ in maps] for of_image in by_image]


def _channel_shares(relevance: Tensor) -> list[list[list[float]]] | None:
    """Each channel's share of the positive relevance (B, K, C, ...) at the input; None for colors."""
    if relevance.shape[2] <= 3:
        return None
    sums = relevance.float().clamp(min=0).flatten(3).sum(3)
    shares: list[list[list[float]]] = (sums / sums.sum(2, keepdim=True).clamp(min=torch.finfo().tiny)).tolist()
    return shares


def compared_maps(net: nn.Module, methods: Sequence[str], inputs: Tensor, targets: Tensor, layer: str) -> Arrays:
    """The maps (B, K, h, w) of other methods at a layer, in units of which a map's positive part sums to 1."""
    by_method, layer_name = {}, None if layer == INPUT else layer
    for name in methods:
        pairs = zip(inputs.split(1), targets.to(inputs.device).split(1), strict=True)
        maps = torch.stack([IMPLEMENTED[name](net, image, classes, layer_name) for image, classes in pairs]).float()
        total = maps.clamp(min=0).sum((-2, -1), keepdim=True)
        by_method[name] = (maps if name == "marginal" else maps / total.where(total > 0, 1)).detach().cpu().numpy()
    return by_method


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
    limit = 1 if is_video else min(total, max(2, total // 4)) if differ else total
    return min(chosen or usual, limit), pieces


def in_sequence(clips: Sequence[Map]) -> Map:
    """The map of a video: its clips one after another, each with an equal share of the probability."""
    if clips[0].values.ndim != 3:
        layer = clips[0].layer
        raise ConfigurationError(f"the map of layer {layer!r} has no time: choose a layer that keeps all frames")
    values = np.concatenate([clip.values / np.float32(len(clips)) for clip in clips])
    return _mix(clips, [1 / len(clips)] * len(clips), values)


def _mix(maps: Sequence[Map], shares: Sequence[float], values: NDArray[np.float32]) -> Map:
    """A map with these values; of the maps that it is made of, each has a share of its mass, and of what was lost."""
    first, lost = maps[0], defaultdict[str, float](float)
    for share, map_ in zip(shares, maps, strict=True):
        for name, amount in (map_.lost_mass or {}).items():
            lost[name] += share * amount
    mass = (
        None if first.mass is None else sum(share * (map_.mass or 0) for share, map_ in zip(shares, maps, strict=True))
    )
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
    def if_needed(cls, spec: InputSpec, shape: Sequence[int]) -> "Tiles | None":
        """The tiles in which pixels of a shape (height, width, ...) are explained; None if they are at once."""
        size = height, width = shape[0], shape[1]
        if spec.fit != WHOLE or not (spec.tiles or max(size) > _LONGEST * min(size)):
            return None
        return cls.covering((height, width), spec.shape[0], spec.step)

    @classmethod
    def covering(cls, size: tuple[int, int], side: int, step: int) -> "Tiles":
        """Tiles that overlap by about half; their corners are multiples of a step, so that cells coincide."""
        rows, columns = (_starts(length, side, step) for length in size)
        return cls([(row, column) for row in rows for column in columns], side, size)

    def cut(self, pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """The tiles (side, side, 3) of the resized photo (height, width, 3), without a copy."""
        return [pixels[top : top + self.side, left : left + self.side] for top, left in self.corners]

    def join(self, scores: ArrayLike, maps: Sequence[Map]) -> Map:
        """The map of a photo from the maps of its tiles for one subject.

        The score of the photo is the mean over its tiles, so by Equation 4 of Zhang et al. each tile gets its share of
        the sum of their scores as its probability. Where tiles overlap, their maps are averaged, with weights that fade
        to the tiles' borders.

        Args:
            scores: (tiles, num_classes).
            maps: one for each tile.
        """
        first = maps[0]
        tile_scores = np.maximum(np.asarray(scores)[:, first.subject.index], 0)
        shares = tile_scores / tile_scores.sum() if tile_scores.sum() > 0 else np.full(len(maps), 1 / len(maps))
        return replace(
            _mix(maps, shares.tolist(), self._average(shares, [map_.values for map_ in maps])),
            relevance=None,
            channels=tuple(shares @ [map_.channels for map_ in maps]) if first.channels else (),
            method_maps={
                name: self._average(shares, [map_.method_maps[name] for map_ in maps]) for name in first.method_maps
            },
        )

    def _average(self, shares: NDArray[np.float64], maps: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
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
