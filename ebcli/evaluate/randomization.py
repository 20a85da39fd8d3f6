"""Model parameter randomization: do maps change when the network's parameters are shuffled?"""

import copy
import os
import zlib
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import nn

from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.metrics import rank_correlation, resized, structural_similarity
from ebcli.evaluate.model_under_test import ModelUnderTest, NamedMaps
from ebcli.evaluate.runner import Benchmark, Row, mean
from ebcli.models import layers as model_layers


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
    net, shuffled = copy.deepcopy(model.net), 0

    def randomized(count: int) -> nn.Module:
        """The network with its first ``count`` layers shuffled; counts must not decrease from call to call."""
        nonlocal shuffled
        for name in top_down[shuffled:count]:
            shuffle_parameters(net.get_submodule(name), name)
        shuffled = count
        return net

    @lru_cache(maxsize=256)
    def intact(key: str) -> tuple[int, list[NamedMaps]]:
        """The class, and the maps of the intact network."""
        inputs, target = model.question(images, key)
        return target, list(model.explain(inputs, [target], key))

    def measure(unit: str) -> Iterator[Row]:
        count, _, key = unit.partition(" ")
        target, before = intact(key)
        inputs = model.inputs(images.read(key))
        size = (inputs.shape[3], inputs.shape[2])
        after = model.explain(inputs, [target], unit, randomized(int(count)))
        for (method, layer, old), (_, _, new) in zip(before, after, strict=True):
            about = {"method": method, "layer": layer, "randomized": int(count), "down to": top_down[int(count) - 1]}
            ssim = structural_similarity(resized(old[0], size), resized(new[0], size))
            yield about | {"rank correlation": rank_correlation(old[0], new[0]), "SSIM": ssim}

    def columns(rows: list[Row]) -> Row:
        return {**{name: mean(rows, name) for name in ("rank correlation", "SSIM")}, "images": len(rows)}

    keys, settings = ("method", "layer", "randomized", "down to"), model.settings | images.settings | {"steps": counts}
    units = [f"{count} {key}" for count in counts for key in images.keys]
    return Benchmark("sanity", settings, units, unit="map", measure=measure, keys=keys, columns=columns)


def layers_from_the_top(model: ModelUnderTest) -> list[str]:
    """Layers with parameters of their own, in reverse execution order."""
    modules = dict(model.net.named_modules())
    order = [layer.name for layer in model_layers(model.loaded)]
    own = [name for name in order if name in modules and list(modules[name].parameters(recurse=False))]
    return own[::-1]


def shuffle_parameters(layer: nn.Module, seed: str) -> None:
    """Shuffle the values of each of a layer's parameters, in place.

    This destroys what was learned but keeps the distribution of each parameter, so that activations stay in the range
    that the rest of the network expects.

    Args:
        layer: the layer; parameters of its submodules are not shuffled.
        seed: random seed.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(os.fsencode(seed)))
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
