"""Averages, sums and interpolation: weighted sums with fixed, non-negative weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ebcli.eb.contributions import LinearMap
from ebcli.eb.primitives import weighted_sum
from ebcli.eb.registry import Call, overloads, rule


@rule(
    *overloads("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *overloads("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *overloads("mean", "sum", "cumsum", "fold"),
)
def average(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    divisor = kwargs.get("divisor_override", args[5] if len(args) > 5 else None)
    if divisor is not None and divisor < 0:
        return NotImplemented  # negative weights
    return weighted_sum(call, input, LinearMap(lambda a: call.func(a, *args, **kwargs)))


@rule(*overloads("interpolate"))
def interpolation(
    call: Call,
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Any:
    if mode == "bicubic":
        return NotImplemented  # some weights are negative
    return weighted_sum(call, input, LinearMap(lambda a: call.func(a, size, scale_factor, mode, *args, **kwargs)))
