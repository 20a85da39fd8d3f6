"""Results of the engine as plain arrays: a batch image by image, and an image's classes that took several turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebcli.drawing.explanation import LayerMaps
from ebcli.eb import ExcitationResult
from ebcli.models.methods import IMPLEMENTED


def by_image(
    name: str,
    result: ExcitationResult,
    keep_relevance: bool,
    method: str,
    beside: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
) -> list[LayerMaps]:
    """The maps of a batch at one layer, image by image."""
    mass = result.mass.tolist()
    losses = {site: lost.tolist() for site, lost in (result.lost_mass or {}).items()}
    maps = result.maps.float().cpu().numpy()
    relevance = result.relevance.float().cpu().numpy() if keep_relevance else None
    return [
        # copies: a view would keep the maps of the whole batch in memory
        LayerMaps(
            name,
            mass[i],
            maps[i].copy(),
            None if result.lost_mass is None else {site: lost[i] for site, lost in losses.items()},
            None if relevance is None else relevance[i].copy(),
            method,
            {other: values[i].copy() for other, values in beside.items()},
        )
        for i in range(len(maps))
    ]


def maps_beside(
    net: nn.Module, methods: Sequence[str], inputs: Tensor, targets: Tensor, layer: str | None
) -> dict[str, NDArray[np.float32]]:
    """The maps (B, K, h, w) of other methods at a layer, in units of which a map's positive part sums to 1."""
    found = {}
    for name in methods:
        pairs = zip(inputs.split(1), targets.split(1), strict=True)
        maps = torch.stack([IMPLEMENTED[name](net, image, classes, layer) for image, classes in pairs]).float()
        total = maps.clamp(min=0).sum((-2, -1), keepdim=True)
        found[name] = (maps if name == "marginal" else maps / total.where(total > 0, 1)).detach().cpu().numpy()
    return found


def joined(turns: Sequence[LayerMaps], count: int) -> LayerMaps:
    """The maps of an image at a layer, of the first ``count`` classes of all turns."""
    first = turns[0]
    if len(turns) == 1 and len(first.mass) == count:
        return first

    def arrays(name: str) -> np.ndarray | None:
        parts = [getattr(turn, name) for turn in turns]
        return None if parts[0] is None else np.concatenate(parts)[:count]

    losses = None
    if first.lost_mass is not None:
        losses = {
            site: [lost for turn in turns for lost in (turn.lost_mass or {}).get(site, [0.0] * len(turn.mass))][:count]
            for site in first.lost_mass
        }
    maps = arrays("maps")
    assert maps is not None
    mass = [value for turn in turns for value in turn.mass][:count]
    beside = {name: np.concatenate([turn.beside[name] for turn in turns])[:count] for name in first.beside}
    return LayerMaps(first.layer, mass, maps, losses, arrays("relevance"), first.method, beside)
