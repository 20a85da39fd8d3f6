"""Model parameter randomization: does a map change when the network forgets what it has learned?"""

from __future__ import annotations

import copy
import os
import zlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn

from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.metrics import rank_correlation, resized, structural_similarity
from ebcli.evaluate.model_under_test import Map, ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.files.images import decode
from ebcli.models import layers as model_layers


def sanity(subject: ModelUnderTest, pictures: LabeledImages, keys: Sequence[str], steps: int = 8) -> Benchmark:
    """Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018, section 3.1: the cascade from the top.

    Layer by layer from the classifier down, the parameters lose what they have learned (``shuffle_parameters``); after each step
    the maps are compared with those of the intact network, for the same class. The table has the mean of their rank
    correlation, over the map's own cells, and of their structural similarity, at the size of the input. A map that
    explains the network has little left of either in the end.

    Args:
        subject: the network.
        pictures: the images; without labels, the class is the most likely one.
        keys: those to take.
        steps: how many times on the way down maps are compared.
    """
    top_down = layers_from_the_top(subject)
    counts = sorted({max(1, round(len(top_down) * step / steps)) for step in range(1, steps + 1)})
    net, forgotten = copy.deepcopy(subject.net), 0

    def randomised(count: int) -> nn.Module:
        """The network without the knowledge of its first so many layers; counts come in ascending order."""
        nonlocal forgotten
        for name in top_down[forgotten:count]:
            shuffle_parameters(net.get_submodule(name), name)
        forgotten = count
        return net

    @lru_cache(maxsize=256)
    def intact(key: str) -> tuple[int, list[Map]]:
        """The class, and the maps of the network as it was."""
        inputs = subject.inputs(decode(pictures.path(key)))
        likely = int(subject.probabilities(inputs).argmax())
        index = pictures.labels[key] if pictures.labels is not None else likely
        return index, list(subject.explain(inputs, [index], key))

    def measure(unit: str) -> list[Row]:
        count, _, key = unit.partition(" ")
        index, before = intact(key)
        inputs = subject.inputs(decode(pictures.path(key)))
        size = (inputs.shape[3], inputs.shape[2])
        after = subject.explain(inputs, [index], unit, randomised(int(count)))
        return [
            {
                "method": method,
                "layer": layer,
                "randomised": int(count),
                "down to": top_down[int(count) - 1],
                "rank correlation": rank_correlation(old[0], new[0]),
                "SSIM": structural_similarity(resized(old[0], size), resized(new[0], size)),
            }
            for (method, layer, old), (_, _, new) in zip(before, after, strict=True)
        ]

    def summarise(rows: list[Row]) -> list[Row]:
        return [
            {
                "method": method,
                "layer": layer,
                "randomised": count,
                "down to": found[0]["down to"],
                "rank correlation": mean(found, "rank correlation"),
                "SSIM": mean(found, "SSIM"),
                "images": len(found),
            }
            for (method, layer), its in grouped(rows, "method", "layer").items()
            for (count,), found in grouped(its, "randomised").items()
        ]

    settings = {**subject.settings, **pictures.settings, "steps": counts}
    units = [f"{count} {key}" for count in counts for key in keys]
    return Benchmark("sanity", settings, units, "map", measure, summarise)


def layers_from_the_top(subject: ModelUnderTest) -> list[str]:
    """The layers that hold parameters of their own, the last one called first."""
    modules = dict(subject.net.named_modules())
    order = [layer.name for layer in model_layers(subject.loaded)]
    own = [name for name in order if name in modules and list(modules[name].parameters(recurse=False))]
    return own[::-1]


def shuffle_parameters(layer: nn.Module, seed: str) -> None:
    """Shuffle the values of each of a layer's parameters, in place.

    Their distribution stays what it was, so that activations stay in the range that the rest of the network is made
    for; what was learned is gone.

    Args:
        layer: its own parameters, not those of modules in it.
        seed: the same one shuffles in the same way.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(os.fsencode(seed)))
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
