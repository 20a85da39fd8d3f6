"""Results of the engine as maps: of a batch, of clips of a video and tiles of a photo, and of other methods."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ebcli.datatypes.arrays import AnyArray, DoubleArray, FloatArray
from ebcli.datatypes.explanation import Map, Subject
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError
from ebcli.methods.call import MethodCall, MethodMaps, positive_sums
from ebcli.methods.table import CONTRASTIVE, PICTURE, Method
from ebcli.models import LoadedModel
from ebcli.models.keywords import INPUT, WHOLE
from ebcli.models.running import default_batch_size

if TYPE_CHECKING:
    from ebcli.run.tasks.task import Requests

Rows = Sequence[Sequence[Subject]]  # of each image
Maps = Sequence[Map]
Fields = dict[str, Any]
Size = tuple[int, int]  # height and width
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
    # one by one, small numbers are written faster on the CPU
    device = "cpu" if logits.ndim == 2 else logits.device
    starts = logits.new_zeros((len(logits), count, *logits.shape[1:]), device=device)
    for i, image_starts in enumerate(starts):
        row = [*rows[min(i, len(rows) - 1)]] or [Subject(0, None, 0.0)]
        for subject, prior in zip(row + row[:1] * count, image_starts, strict=False):
            where = subject.where
            if isinstance(where, tuple):
                prior[subject.index][where] = 1
            else:
                prior[subject.index] = torch.from_numpy(where / where.sum()).to(prior)
    return starts.to(logits.device)


class BatchMaps(NamedTuple):
    """The maps of a method at a layer, for a batch."""

    method: Method
    layer: str
    maps: MethodMaps


def compute_maps(call: MethodCall, methods: Sequence[Method], count: int) -> list[BatchMaps]:
    """The maps of methods, layer by layer, and those of the picture last.

    Args:
        call: what they are asked of a batch.
        methods: the methods.
        count: the images; others only fill the batch, and methods that take many passes leave them out.
    """
    maps = []
    for method in methods:
        of_method = call
        if method.passes is not None:
            of_method = call.of_images(0, count)
        maps += [BatchMaps(method, result.layer or INPUT, result) for result in method.compute(of_method)]
    order = [*(layer or INPUT for layer in call.layers), INPUT]
    return sorted(maps, key=lambda item: order.index(item.layer))


def maps_of(
    requests: Requests,
    results: Sequence[BatchMaps],
    beside: Sequence[BatchMaps],
    rows: Rows,
    keep_relevance: bool,
) -> list[list[Map]]:
    """The maps of each image, subject by subject and layer by layer, with those of other methods beside them.

    Args:
        requests: what is asked of each image.
        results: the maps of the batch; the last images may only fill it.
        beside: maps of other methods, which are shown beside the first one of each layer.
        rows: the subjects of each image.
        keep_relevance: whether maps have their relevance.
    """
    network = requests[0].network
    against = ", ".join(network.labels_against)
    maps: list[list[list[Map]]] = [[[] for _ in row] for row in rows]
    for method, layer, result in results:
        fields = _batch_fields(method, layer, result, keep_relevance)
        if method.name == requests[0].maps.methods[0]:
            fields["method_maps"] = _values_beside(layer, beside)
        for i, request in enumerate(requests):
            for k, subject in enumerate(rows[i]):
                map_ = Map(
                    subject=subject,
                    layer=layer,
                    placement=request.place,
                    method=method.name,
                    noise=network.noise.get(layer) if method.name == CONTRASTIVE else None,
                    stride=network.strides.get(layer, 1),
                    against=against if method.takes_against else "",
                    head=network.loaded.head,
                    **_item(fields, i, k),
                )
                maps[i][k].append(map_)
    return [[*chain(*by_subject)] for by_subject in maps]


def _values_beside(layer: str, beside: Sequence[BatchMaps]) -> dict[str, FloatArray]:
    """The maps (B, K, ...) of other methods at a layer, and on the picture, by name."""
    others = [item for item in beside if item.layer == layer or item.method.place == PICTURE]
    return {item.method.name: _values(item.method, item.maps) for item in others}


def _batch_fields(method: Method, layer: str, result: MethodMaps, keep_relevance: bool) -> Fields:
    """The fields of the maps at a layer by name, each for all images (B, K, ...)."""
    fields: Fields = {"values": _values(method, result), "mass": None}
    relevance = result.relevance
    if result.mass is not None:
        fields["mass"] = result.mass.tolist()
    if result.lost_mass is not None:
        fields["lost_mass"] = {name: losses.tolist() for name, losses in result.lost_mass.items()}
    if relevance is None:
        return fields
    if keep_relevance:
        fields["relevance"] = relevance.float().cpu().numpy()
    if layer == INPUT and relevance.shape[2] > 3:  # others are colors
        sums = relevance.float().clamp(min=0).flatten(3).sum(3)
        shares = sums / sums.sum(2, keepdim=True).clamp(min=torch.finfo().tiny)
        fields["channels"] = [[tuple(subject_shares) for subject_shares in row] for row in shares.tolist()]
    return fields


def _values(method: Method, result: MethodMaps) -> FloatArray:
    """Maps (B, K, ...): probabilities as they are, those of other methods over the sum of their positive part."""
    maps = result.maps.float()
    if not method.has_unit:
        maps = maps / positive_sums(maps)
    values: FloatArray = maps.cpu().numpy()
    return values


def _item(values: Any, i: int, k: int) -> Any:
    """What an image has for a subject, as a copy: a view would keep the maps of the whole batch in memory."""
    if isinstance(values, Mapping):
        return {name: _item(field, i, k) for name, field in values.items()}
    return None if values is None else copy(values[i][k])


def batch_sizes(
    model: LoadedModel, chosen: int | None, device: str, total: int, in_batches: bool
) -> tuple[int, int]:
    """The images of a batch, and how many clips or tiles of one image the network gets at a time.

    Args:
        model: the network.
        chosen: what the user chose; None for what suits the device.
        device: the device's name.
        total: the images of the run.
        in_batches: whether the network's task takes several images at a time.
    """
    default = default_batch_size(device)
    if model.one_by_one:
        chosen = 1
    if not in_batches:
        return 1, chosen or max(1, default // _FRAMES)
    if model.transforms.depth is not None:
        default = 1
    limit = total  # a batch is never larger than the run
    # of few images that differ in size, most batches would be half empty
    if chosen is None and model.transforms.fit == WHOLE:
        limit = min(total, max(2, total // 4))
    batch_size = chosen or default
    return min(batch_size, limit), batch_size


def in_sequence(_scores: ArrayLike, clips: Maps) -> Map:
    """The map of a video: its clips one after another, each with an equal share of the probability."""
    if clips[0].values.ndim != 3:
        problem = f"the map of layer {clips[0].layer!r} has no time"
        raise ConfigurationError(f"{problem}: choose a layer that keeps all frames")
    count = len(clips)
    values = np.concatenate([clip.values / np.float32(count) for clip in clips])
    return _mix(clips, [1 / count] * count, values)


def _mix(maps: Maps, shares: Sequence[float], values: FloatArray) -> Map:
    """A map with these values; of the maps that it is made of, each has a share of its mass, and of what was lost."""
    first = maps[0]
    mass = 0.0
    lost_mass = defaultdict[str, float](float)
    for share, map_ in zip(shares, maps, strict=True):
        mass += share * (map_.mass or 0)
        for name, amount in (map_.lost_mass or {}).items():
            lost_mass[name] += share * amount
    changes: Fields = {"values": values}
    if first.mass is not None:
        changes["mass"] = mass
    if first.lost_mass is not None:
        changes["lost_mass"] = dict(lost_mass)
    return replace(first, **changes)


class Tiles(NamedTuple):
    """Overlapping tiles of a photo.

    Attributes:
        corners: the top and left of each, in pixels of the resized photo.
        side: their height and width.
        size: the height and width of the resized photo.
    """

    corners: list[Size]
    side: int
    size: Size

    @classmethod
    def if_needed(cls, spec: InputSpec, shape: Sequence[int]) -> Tiles | None:
        """The tiles in which pixels of a shape (height, width, ...) are explained; None if they are at once."""
        height, width = shape[:2]
        is_long = max(height, width) > _LONGEST * min(height, width)
        if spec.fit == WHOLE and (spec.tiles or is_long):
            return cls.covering((height, width), spec.shape[0], spec.step)
        return None

    @classmethod
    def covering(cls, size: Size, side: int, step: int) -> Tiles:
        """Tiles that overlap by about half; their corners are multiples of a step, so that cells coincide."""
        rows, columns = (_starts(length, side, step) for length in size)
        return cls([(row, column) for row in rows for column in columns], side, size)

    def cut(self, pixels: AnyArray) -> list[AnyArray]:
        """The tiles (side, side, 3) of the resized photo (height, width, 3), without a copy."""
        return [pixels[top : top + self.side, left : left + self.side] for top, left in self.corners]

    def join(self, scores: ArrayLike, maps: Maps) -> Map:
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
        total = tile_scores.sum()
        shares = np.full(len(maps), 1 / len(maps))
        if total > 0:
            shares = tile_scores / total
        photo_map = _mix(maps, shares.tolist(), self._average(shares, [map_.values for map_ in maps]))
        method_maps = {}
        for name in first.method_maps:
            method_maps[name] = self._average(shares, [map_.method_maps[name] for map_ in maps])
        channels: tuple[float, ...] = ()
        if first.channels:
            channels = tuple(shares @ [map_.channels for map_ in maps])
        return replace(photo_map, relevance=None, channels=channels, method_maps=method_maps)

    def _average(self, shares: DoubleArray, maps: Sequence[FloatArray]) -> FloatArray:
        """Maps (h, w) of tiles as one map (H, W) that sums to about as much as they do, each times its share."""
        height, width = maps[0].shape

        def cell(y: int, x: int) -> Size:
            """The row and the column of a pixel."""
            return round(y * height / self.side), round(x * width / self.side)

        total, weights = np.zeros((2, *cell(*self.size)))
        window = np.outer(_window(height), _window(width))
        for corner, share, map_ in zip(self.corners, shares, maps, strict=True):
            row, column = cell(*corner)
            place = np.s_[row : row + height, column : column + width]
            total[place] += share * window * map_
            weights[place] += window
        # cells are averaged over the tiles that cover them: as many as this, on average
        return (total / weights * (len(maps) * height * width / total.size)).astype(np.float32)


def _starts(length: int, side: int, step: int) -> list[int]:
    """The first pixels of tiles along a side."""
    remaining = length - side
    count = math.ceil(2 * remaining / side)
    return [round(remaining // step * i / max(1, count)) * step for i in range(count + 1)]


def _window(cells: int) -> DoubleArray:
    """Hann's window at the centers of cells, nowhere 0."""
    window: DoubleArray = np.sin(np.pi * (np.arange(cells) + 0.5) / cells) ** 2
    return window
