"""Averages, sums and interpolation: weighted sums with fixed, non-negative weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import amend
from ebcli.eb.primitives import weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, overloads, rule


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
