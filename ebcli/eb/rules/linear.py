"""Layers with weights: linear, convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.primitives import weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, overloads, rule

LAYERS = frozenset(
    [
        *overloads("linear", "conv1d", "conv2d", "conv3d", "convolution"),
        *overloads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    ]
)


def _rows(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """(C_out,) -> (C_out, 1, ...), to scale a weight whose first axis is the output channel."""
    return lambda scale: scale.reshape(-1, *(1 for _ in weight.shape[1:]))


@rule(*overloads("linear"))
def linear(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    # input (..., in), weight (out, in)
    # with more axes than (B, in), batch norm's channels are not this layer's outputs
    return weighted_sum(call, input, LinearMap(F.linear, weight, _rows(weight) if input.ndim == 2 else None))


@rule(*overloads("conv1d", "conv2d", "conv3d"))
def convolution(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    # input (B, in, ...), weight (out, in / groups, ...); args: stride, padding, dilation, groups
    def convolve(a: Tensor, w: Tensor) -> Tensor:
        return call.func(a, w, None, *args, **kwargs)

    is_batched = input.ndim == weight.ndim
    return weighted_sum(call, input, LinearMap(convolve, weight, _rows(weight) if is_batched else None))


@rule(*overloads("convolution"))
def any_convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    # the operator behind all convolutions
    def convolve(a: Tensor, w: Tensor) -> Tensor:
        return call.func(a, w, None, stride, padding, dilation, transposed, output_padding, groups)

    return weighted_sum(call, input, LinearMap(convolve, weight, None if transposed else _rows(weight)))


@rule(*overloads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"))
def transposed_convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    # input (B, in, ...), weight (in, out / groups, ...); args: stride, padding, output_padding, groups, dilation
    groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)

    def spread(a: Tensor, w: Tensor) -> Tensor:
        return call.func(a, w, None, *args, **kwargs)

    def per_output(scale: Tensor) -> Tensor:
        rows = weight.shape[0] // groups  # inputs of one group, connected to all outputs of that group
        by_row = scale.reshape(groups, -1).repeat_interleave(rows, dim=0)
        return by_row.reshape(*by_row.shape, *(1 for _ in weight.shape[2:]))

    is_batched = input.ndim == weight.ndim
    return weighted_sum(call, input, LinearMap(spread, weight, per_output if is_batched else None))
