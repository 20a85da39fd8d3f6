"""Writing into a tensor: the values written move there, or are added to what was there before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.contributions import LinearMap
from ebcli.eb.facts import carries_signal, has_share, mark_bypass
from ebcli.eb.primitives import by_rule, weighted_sum, with_value
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


def _added(call: Call, input: Tensor, values: Tensor, write: Any) -> Any:
    """The sum of a tensor and values that are written into zeros, where they may meet."""
    if call.is_in_place:
        return NotImplemented
    with torch.no_grad():
        result = call.compute()
    zeros = torch.zeros_like(input)
    if has_share(values):
        written = weighted_sum(
            Call(write, (zeros, values), {}, call.site), values, LinearMap(lambda v: write(zeros, v))
        )
        values = mark_bypass(written)
        total = by_rule(call, torch.add, input, values)
    else:
        total = by_rule(call, torch.add, input, write(zeros, values))
    return with_value(call, result, total) if carries_signal(total) else result
