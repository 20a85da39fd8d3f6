"""Results of the engine as maps: of a batch, of clips one after another, and of other methods."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebcli.eb import ExcitationResult
from ebcli.models.keywords import INPUT
from ebcli.models.methods import IMPLEMENTED
from ebcli.nouns.explanation import Map, Subject
from ebcli.run.tasks.task import Asked

Arrays = Mapping[str, NDArray[np.float32]]


def priors(rows: Sequence[Sequence[Subject]], count: int, logits: Tensor) -> Tensor:
    """Where the probability starts, (B, K, num_classes, ...), for an output (B, num_classes, ...).

    Args:
        rows: the subjects of each image. Images with fewer than others repeat their first one, and inputs without an
            image the last image's.
        count: the least number of subjects, K.
        logits: the output.
    """
    count = max(count, *map(len, rows))
    # one by one, small numbers are written faster on the CPU
    found = torch.zeros(
        (len(logits), count, *logits.shape[1:]), dtype=logits.dtype, device="cpu" if logits.ndim == 2 else logits.device
    )
    for i, of_image in enumerate(found):
        row = [*rows[min(i, len(rows) - 1)]] or [Subject(0, None, 0.0)]
        for subject, prior in zip(row + row[:1] * count, of_image, strict=False):
            if isinstance(subject.where, tuple):
                prior[subject.index][subject.where] = 1
            else:
                prior[subject.index] = torch.from_numpy(subject.where).to(prior) / int(subject.where.sum())
    return found.to(logits.device)


def maps_of(
    asked: Sequence[Asked],
    inputs: Tensor,
    results: Sequence[ExcitationResult],
    rows: Sequence[Sequence[Subject]],
    keep_relevance: bool,
) -> list[list[Map]]:
    """The maps of each image, subject by subject and layer by layer, with those of other methods beside them.

    Args:
        asked: what is asked of each image.
        inputs: what the network got, (B, C, ...); the last ones may only fill the batch.
        results: one for each layer of the network.
        rows: the subjects of each image.
        keep_relevance: whether maps have their relevance.
    """
    network, maps = asked[0].network, asked[0].maps
    method, against = "contrastive" if maps.contrastive else "marginal", ", ".join(network.labels_against)
    known = [[subject.index for subject in row] for row in rows]
    width = max(map(len, known))
    targets = torch.tensor([(row + row[:1] * width)[:width] or [0] * width for row in known])
    by_layer = []
    for layer, result in zip(network.layers, results, strict=True):
        values, mass = result.maps.float().cpu().numpy(), None if result.mass is None else result.mass.tolist()
        lost = None if result.lost_mass is None else {name: one.tolist() for name, one in result.lost_mass.items()}
        relevance = result.relevance.float().cpu().numpy() if keep_relevance else None
        of_channels = _channel_shares(result.relevance) if layer == INPUT else None
        others = compared_maps(network.loaded.net, maps.beside if width else (), inputs[: len(rows)], targets, layer)
        by_layer.append(
            [
                [
                    Map(
                        subject=subject,
                        layer=layer,
                        values=values[i, k].copy(),  # a view would keep the maps of the whole batch in memory
                        mass=None if mass is None else mass[i][k],
                        placement=about.place,
                        lost_mass=None if lost is None else {name: one[i][k] for name, one in lost.items()},
                        relevance=None if relevance is None else relevance[i, k].copy(),
                        method=method,
                        beside={name: one[i, k].copy() for name, one in others.items()},
                        noise=network.noise.get(layer),
                        stride=network.strides.get(layer, 1),
                        against=against,
                        channels=() if of_channels is None else tuple(of_channels[i][k]),
                    )
                    for k, subject in enumerate(row)
                ]
                for i, (row, about) in enumerate(zip(rows, asked, strict=True))
            ]
        )
    return [[map_ for maps in zip(*of_image, strict=True) for map_ in maps] for of_image in zip(*by_layer, strict=True)]


def _channel_shares(relevance: Tensor) -> list[list[list[float]]] | None:
    """Each channel's share of the positive relevance (B, K, C, ...) at the input; None for colors."""
    if relevance.shape[2] <= 3:
        return None
    sums = relevance.float().clamp(min=0).flatten(3).sum(3)
    found: list[list[list[float]]] = (sums / sums.sum(2, keepdim=True).clamp(min=torch.finfo().tiny)).tolist()
    return found


def compared_maps(net: nn.Module, methods: Sequence[str], inputs: Tensor, targets: Tensor, layer: str) -> Arrays:
    """The maps (B, K, h, w) of other methods at a layer, in units of which a map's positive part sums to 1."""
    found, where = {}, None if layer == INPUT else layer
    for name in methods:
        pairs = zip(inputs.split(1), targets.to(inputs.device).split(1), strict=True)
        maps = torch.stack([IMPLEMENTED[name](net, image, classes, where) for image, classes in pairs]).float()
        total = maps.clamp(min=0).sum((-2, -1), keepdim=True)
        found[name] = (maps if name == "marginal" else maps / total.where(total > 0, 1)).detach().cpu().numpy()
    return found
