"""What a map is contrasted with, and the difference of two maps over the cells that both show."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.engine.products import ratio
from ebcli.errors import ConfigurationError

Against = int | Sequence[int]


def difference(maps: Tensor, others: Tensor, special: int = 0) -> Tensor:
    """Marginal maps minus other ones, each normalized over the cells of the map.

    Class and register tokens are not among these cells. Without the normalization, a class token that takes more
    from one map than from the other would leave the difference of the rest below zero everywhere.

    Args:
        maps: (K, B, ...).
        others: (K, B, ...), one for each map.
        special: how many tokens at the front (axis 2) are not cells of the map.
    """
    return normalized(maps, special) - normalized(others, special)


def difference_from_mean(maps: Tensor, others: Tensor, special: int = 0) -> Tensor:
    """Marginal maps (K, B, ...) minus the mean of other ones (N, B, ...), all normalized over the cells of the map."""
    return normalized(maps, special) - normalized(others, special).mean(0, keepdim=True)


def normalized(maps: Tensor, special: int = 0) -> Tensor:
    """Marginal maps (K, B, ...) over the probability on their cells; maps without any stay 0 there."""
    total = mass(maps[:, :, special:] if special else maps)
    return ratio(maps, total.reshape(*total.shape, *(1 for _ in maps.shape[2:])))


def mass(maps: Tensor) -> Tensor:
    """The sum of each of (K, B, ...): (K, B)."""
    return maps.flatten(2).sum(2, dtype=torch.float64).to(maps.dtype)


def priors_against(against: Against, priors: Tensor) -> Tensor:
    """The priors of the classes to contrast with, (N, B, num_classes, ...), on the same pixels as the targets'.

    Args:
        against: their indices.
        priors: (K, B, num_classes, ...), of the targets.

    Raises:
        ConfigurationError: a class does not exist or is a target, or there are none.
    """
    chosen = [against] if isinstance(against, int) else list(against)
    if not chosen:
        raise ConfigurationError("no class to contrast with: give against at least one class index")
    num_classes, total = priors.shape[2], priors.sum(2, keepdim=True)
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigurationError(
                f"against has {index!r}, which is not a class index: look up names with categories.index(name)"
            )
        if not 0 <= index < num_classes:
            raise ConfigurationError(f"class {index} does not exist: the network has classes 0 to {num_classes - 1}")
        is_target = (priors[:, :, index] == total[:, :, 0]).reshape(*priors.shape[:2], -1).all(2)
        if not priors.is_meta and bool(is_target.any()):
            raise ConfigurationError(f"class {index} is both a target and contrasted with: choose another class")
    if not priors.is_meta and not bool((total == total[:1]).all()):
        raise ConfigurationError("against needs priors on the same pixels: pass those on other pixels one at a time")
    units = F.one_hot(torch.tensor(chosen, device=priors.device), num_classes).to(priors)
    return units.reshape(len(chosen), 1, num_classes, *(1 for _ in priors.shape[3:])) * total[0]
