"""What maps of noise tell of a network: the method at each layer, and how strong maps of nothing are."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ebcli.eb import ExcitationResult
from ebcli.errors import LayerError
from ebcli.models import default_layer
from ebcli.models.probe import probe, strides_of_cells
from ebcli.run.layer_maps import compared_maps, strengths_by_layer
from ebcli.run.network_description import NetworkDescription, method_in_words
from ebcli.run.plan_parts import MapOptions


def tried(
    network: NetworkDescription,
    maps: MapOptions,
    image: Tensor,
    explain: Callable[[Tensor], Sequence[ExcitationResult]],
) -> tuple[NetworkDescription, bool | None]:
    """The network's description after noise was explained; and whether neurons are explained jointly at all layers.

    The latter is None if layers differ. Known, it saves a forward pass.

    Args:
        network: the network, of which the layers and the classes are known.
        maps: the options.
        image: noise, as the network gets images, (1, C, ...).
        explain: the maps of the noise at each layer for a class (1, 1).

    Raises:
        LayerError: a layer has no map.
        UnsupportedOpError: operations have no rule.
    """
    loaded, others = network.loaded, network.against or ()
    known = network.possible if others else ()  # how far two classes are apart depends on both
    free = next((index for index in (*known, *range(loaded.num_classes)) if index not in others), 0)
    target = torch.tensor([[free]], device=image.device)
    with strides_of_cells(loaded.net) as by_grid:
        results = probe(loaded.name, loaded.net, loaded.transforms, lambda _: explain(target))
    by_layer = dict(zip(network.layers, results, strict=True))
    try:
        noise = strengths_by_layer(by_layer)
        grids = {layer: tuple(result.maps.shape[-2:]) for layer, result in by_layer.items()}
        for layer in network.layers:
            compared_maps(loaded.net, maps.beside, image, target, layer)
    except LayerError as error:
        raise LayerError(f"{error}, such as {default_layer(loaded)!r}") from error
    strides = {layer: by_grid[grid] for layer, grid in grids.items() if grid in by_grid}
    rules, labels = {result.joint for result in results}, network.labels_against
    words = [
        method_in_words(maps, labels, joint=result.joint, over_cells=bool(result.special_tokens)) for result in results
    ]
    found = replace(network, method="; ".join(dict.fromkeys(words)), noise=noise, strides=strides)
    return found, rules.pop() if len(rules) == 1 else None
