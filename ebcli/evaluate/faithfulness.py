"""Tests of faithfulness: the class probability as highlighted pixels go, and maps as the parameters are shuffled."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torchvision.transforms import functional

from ebcli.drawing.overlay import ranks
from ebcli.evaluate.benchmark import (
    Benchmark,
    ModelUnderTest,
    NamedMaps,
    Row,
    mean,
    mean_with_interval,
    seed_of,
)
from ebcli.evaluate.best_layer import PHOTO
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.metrics import area_under, rank_correlation, resized, structural_similarity
from ebcli.models import layers as model_layers
from ebcli.models.keywords import BASELINES

Kind = Literal["deletion", "insertion"]

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


_FILLS = dict(zip(BASELINES, (blur, mean_color, noise), strict=True))


def perturbation(
    kind: Kind, model: ModelUnderTest, images: LabeledImages, baselines: Sequence[str], steps: int = 32
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
        generator = np.random.default_rng(seed_of(key))

        def score(batch: Tensor) -> Tensor:
            return model.probabilities(batch)[:, target]

        def curve(saliency: NDArray[np.float32], baseline: str) -> list[float]:
            start = inputs[0]
            end = _FILLS[baseline](start)
            if kind == "insertion":
                start, end = end, start
            fine = resized(saliency, (inputs.shape[3], inputs.shape[2]))
            scores = perturbation_curve(score, start, end, fine, steps, generator)
            return [round(value, 6) for value in scores.tolist()]

        for method_maps in model.explain(inputs, [target], key):
            saliency = method_maps.maps[0]
            random_map = generator.permutation(saliency.ravel()).reshape(saliency.shape)
            for baseline in baselines:
                row = {"curve": curve(saliency, baseline), "shuffled": curve(random_map, baseline)}
                gain = area_under(row["curve"]) - area_under(row["shuffled"])
                if kind == "deletion":
                    gain = -gain
                yield {**method_maps.labels, PHOTO: key, "baseline": baseline, **row, "gain": gain}

    def columns(rows: list[Row]) -> Row:
        def mean_area(name: str) -> float:
            return sum(area_under(row[name]) for row in rows) / len(rows)

        return {
            "area": mean_area("curve"),
            "shuffled": mean_area("shuffled"),
            **mean_with_interval(rows, "gain"),
            "images": len(rows),
        }

    settings = model.settings | images.settings | {"baselines": list(baselines), "steps": steps}
    return Benchmark(
        kind,
        settings,
        images.keys,
        measure=measure,
        keys=["baseline"],
        columns=columns,
        choice=model.choice("gain", images.keys),
    )


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


def sanity(model: ModelUnderTest, images: LabeledImages, steps: int = 8) -> Benchmark:
    """Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018, section 3.1: cascading randomization.

    Parameters are shuffled layer by layer from the classifier down (``shuffle_parameters``). After each step, the maps
    are compared with those of the intact network for the same class. The table has the means of their rank
    correlation, over the map's own cells, and of their structural similarity, at the size of the input. Both are low
    in the end for maps that depend on the network's parameters.

    Args:
        model: the network.
        images: the images; without labels, the class is the predicted one.
        steps: number of comparisons.
    """
    top_down = layers_from_the_top(model)
    counts = sorted({max(1, round(len(top_down) * step / steps)) for step in range(1, steps + 1)})

    @lru_cache(maxsize=1)
    def randomize(count: int) -> nn.Module:
        """The network with its first ``count`` layers shuffled."""
        net = copy.deepcopy(model.net)
        for name in top_down[:count]:
            shuffle_parameters(net.get_submodule(name), name)
        return net

    @lru_cache(maxsize=256)
    def intact(key: str) -> tuple[int, list[NamedMaps]]:
        """The class, and the maps of the intact network."""
        inputs, target = model.question(images, key)
        return target, list(model.explain(inputs, [target], key))

    def measure(unit: str) -> Iterator[Row]:
        count_text, _, key = unit.partition(" ")
        count = int(count_text)
        target, maps_before = intact(key)
        inputs = model.inputs(images.read(key))
        size = (inputs.shape[3], inputs.shape[2])
        maps_after = model.explain(inputs, [target], unit, randomize(count))
        for before, after in zip(maps_before, maps_after, strict=True):
            pair = before.maps[0], after.maps[0]
            fine_pair = [resized(saliency, size) for saliency in pair]
            yield {
                **before.labels,
                "randomized": count,
                "down to": top_down[count - 1],
                "rank correlation": rank_correlation(*pair),
                "SSIM": structural_similarity(*fine_pair),
            }

    def columns(rows: list[Row]) -> Row:
        return {
            "rank correlation": mean(rows, "rank correlation"),
            "SSIM": mean(rows, "SSIM"),
            "images": len(rows),
        }

    keys = "randomized", "down to"
    settings = model.settings | images.settings | {"steps": counts}
    units = [f"{count} {key}" for count in counts for key in images.keys]
    return Benchmark("sanity", settings, units, unit="map", measure=measure, keys=keys, columns=columns)


def layers_from_the_top(model: ModelUnderTest) -> list[str]:
    """Layers with parameters of their own, in reverse execution order."""
    modules = dict(model.net.named_modules())
    order = [layer.name for layer in reversed(model_layers(model.loaded))]
    return [name for name in order if name in modules and [*modules[name].parameters(recurse=False)]]


def shuffle_parameters(layer: nn.Module, seed: str) -> None:
    """Shuffle the values of each of a layer's parameters, in place.

    This destroys what was learned but keeps the distribution of each parameter, so that activations stay in the range
    that the rest of the network expects.

    Args:
        layer: the layer; parameters of its submodules are not shuffled.
        seed: random seed.
    """
    generator = torch.Generator().manual_seed(seed_of(seed))
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
