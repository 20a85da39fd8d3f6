"""Averages, sums and interpolation: weighted sums with fixed, non-negative weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import ValueFacts, amend, note
from ebcli.eb.gates import SWITCH
from ebcli.eb.primitives import activated, by_parts, weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, name_of, overloads, rule


@rule(
    *overloads("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *overloads("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *overloads("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *overloads("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    *overloads("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *overloads("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *overloads("_upsample_bilinear2d_aa"),
    *overloads("sum", "cumsum", "fold"),
)
def average(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    divisor = kwargs.get("divisor_override", args[5] if len(args) > 5 else None)
    if divisor is not None and divisor < 0:
        return NotImplemented  # negative weights
    return weighted_sum(call, input, LinearMap(lambda a: call.func(a, *args, **kwargs)))


@rule(*overloads("mean"))
def mean(call: Call, input: Tensor, dim: Any = None, keepdim: bool = False, *args: Any, **kwargs: Any) -> Any:
    value = average(call, input, *call.args[1:], **call.kwargs)
    if keepdim and dim is not None:
        axes = (dim,) if isinstance(dim, int) else tuple(dim)
        amend(value, mean_of=(input, input._version, axes))
    return value


@rule(*overloads("interpolate"))
def interpolation(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    # args: size, scale_factor, mode
    if kwargs.get("mode", args[2] if len(args) > 2 else "nearest") == "bicubic":
        return bicubic(call, input, *args, **kwargs)
    return average(call, input, *args, **kwargs)


@rule(*overloads("upsample_bicubic2d", "_upsample_bicubic2d_aa"))
def bicubic(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    # W a = R a C^T, whose rows R and columns C have negative weights too
    def along(axis: int) -> list[Tensor]:
        units = torch.eye(input.shape[axis], dtype=input.dtype, device=input.device)
        images = units[:, None, :, None].expand(-1, 1, -1, input.shape[-1])  # rows are units, columns alike
        images = images if axis == -2 else units[:, None, None].expand(-1, 1, input.shape[-2], -1)
        resampled = call.func(images.contiguous(), *args, **kwargs)
        weight = (resampled[:, 0, :, 0] if axis == -2 else resampled[:, 0, 0]).T
        return [weight.clamp(min=0), (-weight).clamp(min=0)]

    rows, columns = along(-2), along(-1)

    def resample(a: Tensor, negative: int) -> Tensor:
        return rows[0] @ a @ columns[negative].T + rows[1] @ a @ columns[1 - negative].T

    return weighted_sum(call, input, LinearMap(lambda a: resample(a, 0), negative=lambda a: resample(a, 1)))


@rule("torchvision.roi_align", "torchvision.ps_roi_align")
def aligned_regions(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return weighted_sum(call, input, LinearMap(lambda a: call.func(a, *args, **kwargs)))


@rule(*overloads("var", "std", "var_mean", "std_mean"), makes_gates=True)
def spread(
    call: Call, input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """A mean of squared deviations, and its root. It is made to rescale, so in a product it is the gate."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = (dim,) if isinstance(dim, int) else tuple(dim or range(input.ndim))
    freedom = math.prod(input.shape[axis] for axis in axes) - (unbiased if correction is None else correction)
    root, with_mean = name_of(call.func).startswith("std"), name_of(call.func).endswith("mean")

    def spelled_out() -> Any:
        squares = (input - input.mean(axes, keepdim=True)).square().sum(axes, keepdim=keepdim) / max(freedom, 0)
        value = squares.sqrt() if root else squares
        return (value, input.mean(axes, keepdim=keepdim)) if with_mean else value

    found = by_parts(call, spelled_out)
    note(found[0] if with_mean else found, ValueFacts(nonnegative=True, gate=SWITCH))
    if with_mean and keepdim:
        amend(found[1], mean_of=(input, input._version, axes))
    return found


@rule(*overloads("logsumexp"))
def logsumexp(call: Call, input: Tensor, dim: Any, keepdim: bool = False) -> Any:
    # a unit that adds up exp(a_k), then a logarithm; divided by that sum, so that nothing overflows
    with torch.no_grad():
        relative = (input - input.logsumexp(dim, keepdim=True)).exp()
    excitation = activated(replace(call, func=lambda: relative, args=(), kwargs={}), input, nonnegative=True)
    with call.recording.answering():
        total = excitation.sum(dim, keepdim)
    return activated(call, total)
