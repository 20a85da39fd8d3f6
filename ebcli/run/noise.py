"""What maps of noise tell of a network: the method at each layer, and how strong maps of nothing are."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ebcli.eb import ExcitationResult
from ebcli.errors import LayerError, OutputError
from ebcli.files.sink import replacing
from ebcli.models import default_layer
from ebcli.models.probe import probe, strides_of_cells
from ebcli.run.layer_maps import compared_maps
from ebcli.run.network_description import NetworkDescription, method_in_words
from ebcli.run.plan_parts import MapOptions

PICTURES, CLASSES = 24, 2  # of noise; in each picture. With fewer, the median depends more on the seed

Explain = Callable[[Tensor, Tensor], Sequence[ExcitationResult]]


def noise(shape: Sequence[int], seed: int) -> Tensor:
    """A picture (1, C, ...) of noise, whose amplitudes fall with the frequency as those of photos do (Field 1987).

    White noise excites a network so little that its maps are much weaker than any map of a photo.
    """
    white = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))
    axes = tuple(range(2, white.ndim))
    longest = max(white.shape[2:])
    ticks = [torch.fft.fftfreq(length, 1 / longest) for length in white.shape[2:]]
    frequencies = torch.stack(torch.meshgrid(*ticks, indexing="ij")).square().sum(0).sqrt().clamp(min=1)
    pink: Tensor = torch.fft.ifftn(torch.fft.fftn(white, dim=axes) / frequencies, dim=axes).real
    pink = pink - pink.mean(axes, keepdim=True)
    return pink / pink.std()


def asked(network: NetworkDescription, seed: int) -> tuple[Tensor, Tensor]:
    """A picture of noise, and the classes (1, K) to explain in it: any but those that they are contrasted with."""
    spec, others = network.loaded.transforms, network.against or ()
    # how far two classes are apart depends on both
    possible = network.possible if others else range(network.loaded.num_classes)
    free = [index for index in possible if index not in others] or [0]
    order = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[:CLASSES].tolist()
    return noise((spec.channels, *spec.shape), seed), torch.tensor([[free[number] for number in order]])


def tried(
    network: NetworkDescription, maps: MapOptions, image: Tensor, classes: Tensor, explain: Explain
) -> tuple[NetworkDescription, Sequence[ExcitationResult]]:
    """The network's description after a picture of noise was explained, and its maps.

    Args:
        network: the network, of which the layers and the classes are known.
        maps: the options.
        image: noise, as the network gets images, (1, C, ...).
        classes: those to explain in it, (1, K).
        explain: the maps of an image for classes, at each layer.

    Raises:
        LayerError: a layer has no map.
        UnsupportedOpError: operations have no rule.
    """
    loaded = network.loaded
    with strides_of_cells(loaded.net) as by_grid:
        results = probe(loaded.name, loaded.net, loaded.transforms, lambda _: explain(image, classes))
    try:
        grids = [tuple(result.maps.shape[-2:]) for result in results]
        for layer in network.layers:
            compared_maps(loaded.net, maps.beside, image, classes, layer)
    except LayerError as error:
        raise LayerError(f"{error}, such as {default_layer(loaded)!r}") from error
    strides = {layer: by_grid[grid] for layer, grid in zip(network.layers, grids, strict=True) if grid in by_grid}
    words = [
        method_in_words(maps, network.labels_against, joint=result.joint, over_cells=bool(result.special_tokens))
        for result in results
    ]
    return replace(network, method="; ".join(dict.fromkeys(words)), strides=strides), results


def references(
    layers: Sequence[str], first: Sequence[ExcitationResult], explain: Callable[[int], Sequence[ExcitationResult]]
) -> dict[str, float]:
    """The median strength of maps of noise at each layer, to two digits.

    It is kept in the user's cache, with the maps of the first picture as the network's fingerprint: any other network,
    or other classes to contrast with, would give other maps.

    Args:
        layers: the layers.
        first: the maps of the first picture of noise at each layer.
        explain: the maps of the picture with a number; that of the first one is 0.
    """
    kept = [_kept(result) for result in first]
    with contextlib.suppress(OSError, ValueError):
        return {layer: float(path.read_text()) for layer, path in zip(layers, kept, strict=True)}
    pictures = (first, *map(explain, range(1, PICTURES)))
    strengths = torch.cat([torch.stack([*map(_strengths, results)]) for results in pictures], 1)
    found = [float(f"{one:.2g}") for one in strengths.quantile(0.5, 1).tolist()]
    with contextlib.suppress(OutputError):
        for path, one in zip(kept, found, strict=True):
            with replacing(path) as temporary:
                temporary.write_text(str(one))
    return dict(zip(layers, found, strict=True))


def _strengths(result: ExcitationResult) -> Tensor:
    """The strengths (K,) of the maps of one image."""
    return result.maps[0].float().clamp(min=0).flatten(1).sum(1).cpu()


def _kept(result: ExcitationResult) -> Path:
    """The file in which the reference of the network with these maps of the first picture is kept."""
    peaks = result.maps[0].float().flatten(1).amax(1)
    told = [*_strengths(result).tolist(), *peaks.tolist(), float(result.logits.float().norm())]
    rounded = [f"{one:.4g}" for one in told]  # the last digits depend on the number of threads
    name = hashlib.sha256(repr((PICTURES, CLASSES, rounded)).encode()).hexdigest()
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never fails
    return Path(caches, "eb-saliency", "noise", name)
