"""Writing into a tensor: the values written move there, or are added to what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import carries_signal, has_share, is_nonnegative
from ebcli.eb.primitives import rescaled, weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, overloads, rule
from ebcli.eb.rules.routing import routed


@rule(*overloads("index_put"))
def index_put(call: Call, input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    if not accumulate:
        return routed(call)
    return _added(call, input, values, lambda zeros, v: zeros.index_put(indices, v, accumulate=True))


@rule(*overloads("scatter"))
def scatter(
    call: Call, input: Tensor, dim: int, index: Tensor, src: Any = None, *, reduce: str | None = None, value: Any = None
) -> Any:
    if reduce is None:
        return routed(call)
    if reduce != "add" or not isinstance(src, Tensor):
        return NotImplemented
    return _added(call, input, src, lambda zeros, v: zeros.scatter_add(dim, index, v))


@rule(*overloads("scatter_add"))
def scatter_add(call: Call, input: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    return _added(call, input, src, lambda zeros, v: zeros.scatter_add(dim, index, v))


@rule(*overloads("index_add"))
def index_add(call: Call, input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    if alpha <= 0:
        return NotImplemented
    return _added(call, input, source, lambda zeros, v: zeros.index_add(dim, index, v))


@rule("aten.copy")
def copy(call: Call, input: Tensor, src: Tensor, *args: Any) -> Any:
    # of the tensor written into, only shape and type matter; autograd has no formula
    if not carries_signal(src):
        return call.compute().detach()
    return rescaled(call, src, nonnegative=is_nonnegative(src), keeps_zero=True)


def _added(call: Call, input: Tensor, values: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """The sum of a tensor and the values written into it: a weighted sum of the elements of both."""
    if call.is_in_place:
        return NotImplemented
    operands = [(a.shape, has_share(a)) for a in (input, values)]

    def apply(elements: Tensor) -> Tensor:
        parts = iter(elements.split([shape.numel() for shape, takes in operands if takes]))
        return write(*(next(parts).view(shape) if takes else elements.new_zeros(shape) for shape, takes in operands))

    joined = torch.cat([a.flatten() for a in (input, values) if has_share(a)])
    return weighted_sum(call, joined, LinearMap(apply))
