"""Deletion and insertion: how does the class probability change as the highlighted pixels are removed or added?"""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torchvision.transforms import functional

from ebcli.drawing.overlay import ranks
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.metrics import area_under, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row
from ebcli.models.keywords import BASELINES

_BATCH = 8  # images; larger batches are no faster on CPUs


def blur(image: Tensor) -> Tensor:
    """Blur an image (C, H, W) as in RISE: 11 x 11 pixels, a standard deviation of 5."""
    return functional.gaussian_blur(image, [11, 11], [5.0, 5.0])


def mean_color(image: Tensor) -> Tensor:
    """Fill an image (C, H, W) with the mean of each channel."""
    return image.mean((1, 2), keepdim=True).expand_as(image)


def noise(image: Tensor) -> Tensor:
    """Normal noise with each channel's mean and standard deviation, (C, H, W); the same in every call."""
    generator = torch.Generator().manual_seed(0)
    standard = torch.randn(image.shape, generator=generator).to(image)
    return standard * image.std((1, 2), keepdim=True) + image.mean((1, 2), keepdim=True)


_EMPTIED: dict[str, Callable[[Tensor], Tensor]] = dict(zip(BASELINES, (blur, mean_color, noise), strict=True))


def perturbation(
    kind: Literal["deletion", "insertion"],
    model: ModelUnderTest,
    images: LabeledImages,
    baselines: Sequence[str],
    steps: int = 32,
) -> Benchmark:
    """Petsiuk et al., RISE, BMVC 2018: the area under the curve of the class probability.

    Pixels are replaced by a baseline (deletion), or the baseline's pixels by the image's (insertion), those with the
    highest map values first. Each map is compared with the same map after shuffling its cells; ``gain`` is the area
    between the two curves, positive if the map is better.

    Args:
        kind: deletion or insertion.
        model: the network.
        images: the images; without labels, the class is the predicted one.
        baselines: names from ``BASELINES``.
        steps: number of steps in which the pixels are replaced.
    """

    def measure(key: str) -> Iterator[Row]:
        inputs, target = model.question(images, key)
        generator = np.random.default_rng(zlib.crc32(os.fsencode(key)))

        def score(batch: Tensor) -> Tensor:
            return model.probabilities(batch)[:, target]

        def curve(saliency: NDArray[np.float32], baseline: str) -> list[float]:
            ends = inputs[0], _EMPTIED[baseline](inputs[0])
            start, end = ends if kind == "deletion" else ends[::-1]
            fine = resized(saliency, (inputs.shape[3], inputs.shape[2]))
            found = perturbation_curve(score, start, end, fine, steps, generator)
            return [round(value, 6) for value in found.tolist()]

        for method, layer, maps in model.explain(inputs, [target], key):
            shuffled = generator.permutation(maps[0].ravel()).reshape(maps[0].shape)
            for baseline in baselines:
                about = {"method": method, "layer": layer, "baseline": baseline}
                yield about | {"curve": curve(maps[0], baseline), "shuffled": curve(shuffled, baseline)}

    def columns(rows: list[Row]) -> Row:
        area, shuffled = (sum(area_under(row[name]) for row in rows) / len(rows) for name in ("curve", "shuffled"))
        gain = area - shuffled if kind == "insertion" else shuffled - area
        return {"area": area, "shuffled": shuffled, "gain": gain, "images": len(rows)}

    settings = model.settings | images.settings | {"baselines": list(baselines), "steps": steps}
    keys = "method", "layer", "baseline"
    return Benchmark(kind, settings, images.keys, unit="image", measure=measure, keys=keys, columns=columns)


def perturbation_curve(
    score: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    saliency: ArrayLike,
    steps: int = 32,
    generator: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Scores of a network while one image turns into another, pixels with the highest map values first.

    *Deletion* goes from the image to a baseline, *insertion* the other way (Petsiuk et al., RISE, BMVC 2018).
    ``area_under`` summarizes a curve: small is good for deletion, large for insertion.

    Args:
        score: maps images (N, C, H, W) to scores (N,).
        start: the first image, (C, H, W).
        end: the last image, (C, H, W).
        saliency: map (H, W), signed or not; a map with NaN or infinity counts as constant.
        steps: number of equal steps, at least 1.
        generator: orders equal values; None for a fixed order.

    Returns:
        Scores (steps + 1,), from that of ``start`` to that of ``end``.
    """
    order = torch.from_numpy(ranks(saliency, generator)).to(start.device)
    counts = [round(order.numel() * step / steps) for step in range(steps + 1)]
    scores = []
    with torch.no_grad():
        for first in range(0, steps + 1, _BATCH):
            images = [torch.where(order < count, end, start) for count in counts[first : first + _BATCH]]
            scores.append(score(torch.stack(images)).double().cpu().numpy())
    return np.concatenate(scores)
