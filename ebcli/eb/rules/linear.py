"""Layers with weights: linear, convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.primitives import weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, name_of, overloads, rule

LAYERS = frozenset(
    [
        *overloads("linear", "conv1d", "conv2d", "conv3d", "convolution"),
        *overloads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    ]
)


@rule(*overloads("linear"))
def linear(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    # input (..., in), weight (out, in)
    # with more axes than (B, in), batch norm's channels are not this layer's outputs
    per_output = _by_output(weight) if input.ndim == 2 else None
    return weighted_sum(call, input, LinearMap(F.linear, weight, per_output, bias=0.0 if bias is None else bias))


@rule(
    *overloads("conv1d", "conv2d", "conv3d", "convolution"),
    *overloads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
def convolution(call: Call, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    # input (B, in, ...), weight (out, in / groups, ...); if transposed, (in, out / groups, ...)
    name = name_of(call.func)
    per_output: Callable[[Tensor], Tensor] | None = _by_output(weight)
    if name.startswith("conv_transpose"):  # args: stride, padding, output_padding, groups, dilation
        per_output = _by_output(weight, kwargs.get("groups", args[3] if len(args) > 3 else 1))
    elif name == "convolution" and args[3]:  # args: stride, padding, dilation, transposed, output_padding, groups
        per_output = _by_output(weight, args[5])

    def convolve(a: Tensor, w: Tensor) -> Tensor:
        return call.func(a, w, None, *args, **kwargs)

    return weighted_sum(call, input, LinearMap(convolve, weight, per_output if input.ndim == weight.ndim else None))


def _by_output(weight: Tensor, groups: int | None = None) -> Callable[[Tensor], Tensor]:
    """A function from scales (C_out,) to a tensor that scales the weight by output; with `groups`, if transposed."""

    def by_output(scale: Tensor) -> Tensor:
        if groups is None:
            return scale.reshape(-1, *(1 for _ in weight.shape[1:]))
        rows = weight.shape[0] // groups  # inputs of one group, connected to all outputs of that group
        by_row = scale.reshape(groups, -1).repeat_interleave(rows, dim=0)
        return by_row.reshape(*by_row.shape, *(1 for _ in weight.shape[2:]))

    return by_output
