"""Sufficiency: how small a part of an image, in the order of its map, keeps half of the score, and in other orders."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebcli.drawing.overlay import covered, interpolated, ranks
from ebcli.eb.capture import single_tensor
from ebcli.models import LoadedModel
from ebcli.models.methods import center
from ebcli.nouns.explanation import Box, Map, Sufficiency
from ebcli.nouns.input_spec import InputSpec
from ebcli.run.layer_maps import priors
from ebcli.run.tasks.task import Asked, Task

_STEPS = 5  # of a bisection
# shares of the image, each 1.16 times the one before, so that small parts are told apart as well as large ones
_PARTS = [round(0.01 ** (1 - step / (2**_STEPS - 1)), 4) for step in range(2**_STEPS)]
_LEAST_SCORE = 0.01  # of detections in blurred images
# Of the input's shorter side. RISE's blur of 5 pixels of 224 leaves some photos with all of their score
_BLUR = 1 / 16


def measure_sufficiency(
    loaded: LoadedModel, task: Task, inputs: Tensor, maps: Sequence[list[Map]], asked: Sequence[Asked]
) -> None:
    """Test the first map of each image. Each image passes the network 23 times.

    Args:
        loaded, task: the network.
        inputs: (B, C, H, W); those beyond the images only fill the batch.
        maps: the maps of each image; some may have none.
        asked: what is asked of each image.
    """
    found = [i for i, of_image in enumerate(maps) if of_image]
    if not found:
        return
    images = _filled(inputs[found], inputs)
    tested = sufficiency_of(loaded, task, images, [maps[i][0] for i in found], [asked[i] for i in found])
    for i, sufficiency in zip(found, tested, strict=True):
        maps[i][0] = replace(maps[i][0], sufficiency=sufficiency)


def sufficiency_of(
    loaded: LoadedModel, task: Task, inputs: Tensor, maps: Sequence[Map], asked: Sequence[Asked]
) -> list[Sufficiency]:
    """Test one map of each image; for the arguments, see ``measure_sufficiency``."""
    easy = [replace(about, maps=replace(about.maps, score=_LEAST_SCORE, where=None)) for about in asked]

    def scores(outputs: Iterable[Any]) -> list[float]:
        pairs = zip(outputs, maps, strict=False)  # some only fill the batch
        return [task.score(output, map_.subject) for output, map_ in pairs]

    def scored(images: Tensor) -> list[float]:
        with torch.no_grad():
            if task.run is not None:
                return scores(task.run(images, easy))
            return scores(loaded.to_scores(single_tensor(loaded.net(images), "the output").movedim(1, -1)))

    leaf = inputs.detach().requires_grad_()
    logits = single_tensor(loaded.net(leaf.clone()), "the output")  # layers may modify it in place
    (slope,) = torch.autograd.grad(logits, leaf, priors([[map_.subject] for map_ in maps], 1, logits)[:, 0])
    known = loaded.to_scores(logits.detach().movedim(1, -1))
    whole = [map_.subject.score for map_ in maps] if task.run is not None else scores(known)
    blurred = _blurred(inputs)
    orders, sizes = _orders(loaded.transforms, inputs, slope.abs().sum(1), maps, asked)

    def smallest(order: Tensor) -> tuple[list[float], Tensor]:
        """For each image, the smallest part that keeps half of the score, and its pixels (B, 1, H, W)."""

        def first(indices: Sequence[int]) -> Tensor:
            counts = [max(1, round(_PARTS[k] * size)) for k, size in zip(indices, sizes, strict=True)]
            return (order < _filled(torch.tensor(counts, device=order.device), inputs)[:, None, None])[:, None]

        low, high = [0] * len(maps), [len(_PARTS) - 1] * len(maps)
        for _ in range(_STEPS):
            middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
            for i, score in enumerate(scored(torch.where(first(middle), inputs, blurred))):
                if score >= whole[i] / 2:
                    high[i] = middle[i]
                else:
                    low[i] = middle[i] + 1
        return [_PARTS[k] for k in high], first(high)

    parts, pixels = smallest(orders[0])
    others = zip(("shuffled", "center", "gradient"), orders[1:], strict=True)
    found = {"part": parts, **{name: smallest(order)[0] for name, order in others}, "score": whole}
    found |= {"without": scored(torch.where(pixels, blurred, inputs)), "blurred": scored(blurred)}
    return [Sufficiency(**{name: values[i] for name, values in found.items()}) for i in range(len(maps))]


def _filled(values: Tensor, inputs: Tensor) -> Tensor:
    """Values (B, ...) of images for each input, of which the last ones only fill the batch."""
    return values[torch.arange(len(inputs)).clamp(max=len(values) - 1)]


def _orders(
    spec: InputSpec, inputs: Tensor, gradients: Tensor, maps: Sequence[Map], asked: Sequence[Asked]
) -> tuple[list[Tensor], list[int]]:
    """The ranks (B, H, W) of the pixels by the map, by it shuffled, a blob and the gradient; and how many there are."""
    height, width = inputs.shape[2:]
    blob = center(torch.nn.Identity(), inputs, torch.zeros(1, 1), None)[0].numpy()
    orders, sizes = np.full((4, len(maps), height, width), height * width), list[int]()  # padding comes last
    for i, (map_, about) in enumerate(zip(maps, asked, strict=True)):
        generator = np.random.default_rng(zlib.crc32(inputs[i].float().cpu().numpy().tobytes()))
        region, box = _regions(spec, map_, about, (width, height))
        rows, columns = slice(box[1], box[3]), slice(box[0], box[2])
        cells = map_.drawn_values
        shuffled = generator.permutation(cells.ravel()).reshape(cells.shape)
        fine = [interpolated(values, region, box) for values in (cells, shuffled)]
        fine += [blob[rows, columns], gradients[i].float().cpu().numpy()[rows, columns]]
        orders[:, i, rows, columns] = [ranks(values, generator) for values in fine]
        sizes.append(fine[0].size)
    return [_filled(torch.from_numpy(order).to(inputs.device), inputs) for order in orders], sizes


def _blurred(images: Tensor) -> Tensor:
    from torchvision.transforms import functional  # takes a second to import, which other runs need not wait

    sigma = _BLUR * min(images.shape[2:])
    side = 2 * round(2 * sigma) + 1
    # one axis after the other takes a fraction of the time
    return functional.gaussian_blur(functional.gaussian_blur(images, [side, 1], [sigma] * 2), [1, side], [sigma] * 2)


def _regions(spec: InputSpec, map_: Map, asked: Asked, size: tuple[int, int]) -> tuple[Box, tuple[int, int, int, int]]:
    """What the map covers, and the pixels of the image, in a network's input of a size (width, height)."""
    seen = spec.place(asked.size)

    def inside(place: Box) -> Box:
        return place.shifted(-seen.left, -seen.top).scaled((seen.right - seen.left, seen.bottom - seen.top), size)

    return inside(map_.placement), covered(inside(Box(0, 0, *asked.size)), size)
