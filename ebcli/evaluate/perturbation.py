"""Deletion and insertion: does the network miss what a map calls important, and is that enough for it?"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import functional

from ebcli.evaluate.curves import perturbation_curve
from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.metrics import area_under, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.names import BASELINES
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.files.images import decode


def blur(image: Tensor) -> Tensor:
    """An image (C, H, W) out of focus, as in RISE: 11 x 11 pixels, a standard deviation of 5."""
    return functional.gaussian_blur(image, [11, 11], [5.0, 5.0])


def mean_colour(image: Tensor) -> Tensor:
    """Each channel's mean everywhere, (C, H, W)."""
    return image.mean((1, 2), keepdim=True).expand_as(image)


def noise(image: Tensor) -> Tensor:
    """Normal noise of each channel's mean and standard deviation, (C, H, W); the same each time."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(image.shape, generator=generator).to(image)
    return drawn * image.std((1, 2), keepdim=True) + image.mean((1, 2), keepdim=True)


_EMPTIED: dict[str, Callable[[Tensor], Tensor]] = dict(zip(BASELINES, (blur, mean_colour, noise), strict=True))


def perturbation(
    kind: Literal["deletion", "insertion"],
    subject: ModelUnderTest,
    pictures: LabeledImages,
    keys: Sequence[str],
    baselines: Sequence[str],
    steps: int = 32,
) -> Benchmark:
    """Petsiuk et al., RISE, BMVC 2018: the area under the curve of the class's probability.

    The pixels that a map puts first are taken out of the image (deletion), or put into what is left of the image
    without them (insertion); ``baselines`` are what is seen in place of the image. Beside each map goes the same map
    with its cells shuffled, which knows nothing of the image. ``gain`` is how much better the map is than that: the
    area between the curves, above 0 for a map that knows something.

    Args:
        kind: deletion or insertion.
        subject: the network.
        pictures: the images; without labels, the class is the most likely one.
        keys: those to take.
        baselines: names among ``BASELINES``.
        steps: in how many parts the pixels are exchanged.
    """

    def measure(key: str) -> list[Row]:
        inputs = subject.inputs(decode(pictures.path(key)))
        likely = int(subject.probabilities(inputs).argmax())
        index = pictures.labels[key] if pictures.labels is not None else likely
        image, size = inputs[0], (inputs.shape[3], inputs.shape[2])
        generator = np.random.default_rng(zlib.crc32(os.fsencode(key)))
        rows = []
        for method, layer, maps in subject.explain(inputs, [index], key):
            shuffled = generator.permutation(maps[0].ravel()).reshape(maps[0].shape)
            for baseline in baselines:
                ends = (image, _EMPTIED[baseline](image))
                start, end = ends if kind == "deletion" else ends[::-1]

                def curve(saliency: NDArray[np.float32], start: Tensor = start, end: Tensor = end) -> list[float]:
                    fine = resized(saliency, size)
                    found = perturbation_curve(
                        lambda images: subject.probabilities(images)[:, index], start, end, fine, steps, generator
                    )
                    return [round(value, 6) for value in found.tolist()]

                row = {"method": method, "layer": layer, "baseline": baseline}
                rows.append({**row, "curve": curve(maps[0]), "shuffled": curve(shuffled)})
        return rows

    def summarise(rows: list[Row]) -> list[Row]:
        better = 1 if kind == "insertion" else -1
        table = []
        for (method, layer, baseline), found in grouped(rows, "method", "layer", "baseline").items():
            areas = [{"area": area_under(row["curve"]), "shuffled": area_under(row["shuffled"])} for row in found]
            row = {"method": method, "layer": layer, "baseline": baseline}
            row |= {"area": mean(areas, "area"), "shuffled": mean(areas, "shuffled")}
            table.append({**row, "gain": better * (row["area"] - row["shuffled"]), "images": len(found)})
        return table

    settings = {**subject.settings, **pictures.settings}
    settings |= {"baselines": list(baselines), "steps": steps}
    return Benchmark(kind, settings, keys, "image", measure, summarise)
