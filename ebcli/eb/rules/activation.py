"""Activations have one input and one output, so probability passes through unchanged.

Their ordinary gradients would not do: a saturated tanh would lose its probability.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ebcli.eb import graph
from ebcli.eb.primitives import folded, pass_through
from ebcli.eb.registry import Call, overloads, rule

BOUNDED = 1  # non-negative: the gate if the other factor is not
SWITCH = 2  # between 0 and 1: a gate by design


@rule(*overloads("relu", "relu6"))
def rectifier(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _rectified(call, input)


@rule(*overloads("hardtanh"))
def bounded(call: Call, input: Tensor, min_val: float = -1.0, *args: Any, **kwargs: Any) -> Tensor:
    return _cut_off(call, input, min_val)


@rule(*overloads("clamp", "clip", "clamp_min"))
def clamped(call: Call, input: Tensor, min: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    return _cut_off(call, input, min)


def _cut_off(call: Call, input: Tensor, low: Any) -> Tensor:
    if not isinstance(low, (int, float)) or low < 0:
        return pass_through(call, input)
    return _rectified(call, input) if low == 0 else pass_through(call, input, nonnegative=True)


def _rectified(call: Call, input: Tensor) -> Tensor:
    value = folded(call, input, rectified=True, gate=BOUNDED)
    return pass_through(call, input, nonnegative=True, keeps_zero=True, gate=BOUNDED) if value is None else value


@rule(
    *overloads("leaky_relu", "elu", "celu", "selu", "prelu", "rrelu", "hardswish", "silu", "gelu", "mish"),
    *overloads("tanh", "softsign", "hardshrink", "softshrink", "tanhshrink", "erf", "asinh", "atan", "sinh", "sin"),
    *overloads("expm1", "log1p", "sign", "nan_to_num", "round", "trunc"),
)
def activation(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, keeps_zero=True)


@rule(
    *overloads("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *overloads("alpha_dropout", "feature_alpha_dropout"),
)
def dropout(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    gate = graph.gate(input)
    return pass_through(call, input, keeps_zero=True, nonnegative=graph.is_nonnegative(input), gate=gate)


@rule(*overloads("abs", "absolute", "square", "sqrt"))
def magnitude(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, keeps_zero=True, nonnegative=True)


@rule(*overloads("sigmoid", "hardsigmoid", "softmax", "softmin", "gumbel_softmax"))
def switch(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    # the sum in a softmax's denominator is a norm, so a unit keeps its own probability
    return pass_through(call, input, nonnegative=True, gate=SWITCH)


@rule(*overloads("exp", "exp2", "softplus", "reciprocal", "rsqrt"))
def shifted_nonnegative(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input)


@rule(
    *overloads("log_softmax", "logsigmoid", "log", "log2", "log10", "logit", "cos", "threshold", "pow", "float_power")
)
def shifted(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return pass_through(call, input)


@rule(*overloads("glu"))
def gated_half(call: Call, input: Tensor, dim: int = -1) -> Tensor:
    half, _ = input.chunk(2, dim)
    return pass_through(call, half, keeps_zero=True)
