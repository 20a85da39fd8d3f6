"""Activations have one input and one output, so probability passes through unchanged.

Their ordinary gradients would not do: a saturated tanh would lose its probability.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ebcli.eb.facts import ACTIVATED, BOUNDED, SWITCH, facts_of, gate_of, is_nonnegative, note, signed_gate_of
from ebcli.eb.primitives import folded, pass_through, unchanged
from ebcli.eb.registry import Call, name_of, overloads, rule


@rule(*overloads("relu", "relu6"), makes_gates=True)
def rectifier(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _rectified(call, input)


@rule(*overloads("hardtanh"), makes_gates=True)
def bounded(call: Call, input: Tensor, min_val: float = -1.0, *args: Any, **kwargs: Any) -> Tensor:
    return _cut_off(call, input, min_val)


@rule(*overloads("clamp", "clip", "clamp_min"))
def clamped(call: Call, input: Tensor, min: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    if isinstance(min, (int, float)) and min >= 0:
        return _cut_off(call, input, min)
    return pass_through(call, input)  # a guard against overflow, or an upper bound, is no activation


def _cut_off(call: Call, input: Tensor, low: Any) -> Tensor:
    if not isinstance(low, (int, float)) or low < 0:
        return _activated(call, input, keeps_zero=False)
    return _rectified(call, input) if low == 0 else _activated(call, input, keeps_zero=False, nonnegative=True)


def _rectified(call: Call, input: Tensor) -> Tensor:
    gate = max(BOUNDED, gate_of(input))
    value = folded(call, input, rectified=True, gate=gate)
    return pass_through(call, input, nonnegative=True, keeps_zero=True, gate=gate) if value is None else value


def _activated(call: Call, input: Tensor, *, keeps_zero: bool, nonnegative: bool = False) -> Tensor:
    gate = max(BOUNDED if nonnegative else ACTIVATED, gate_of(input))
    return pass_through(call, input, nonnegative=nonnegative, keeps_zero=keeps_zero, gate=gate)


@rule(
    *overloads("leaky_relu", "elu", "celu", "selu", "prelu", "rrelu", "hardswish", "silu", "gelu", "mish"),
    *overloads("tanh", "softsign", "hardshrink", "softshrink", "tanhshrink", "erf", "asinh", "atan", "sinh", "sin"),
    *overloads("expm1", "log1p"),
    makes_gates=True,
)
def activation(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _activated(call, input, keeps_zero=True)


@rule(*overloads("sign", "nan_to_num", "round", "trunc"))
def odd(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, keeps_zero=True)


@rule(*overloads("neg", "negative"))
def negative(call: Call, input: Tensor) -> Tensor:
    value = folded(call, input, scale=-1.0)
    if value is not None:
        return value
    return pass_through(call, input, keeps_zero=True, gate=signed_gate_of(input), affine=True)


@rule(
    *overloads("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *overloads("alpha_dropout", "feature_alpha_dropout"),
)
def dropout(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return unchanged(call, input)


@rule(*overloads("abs", "absolute", "square", "sqrt"))
def magnitude(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, keeps_zero=True, nonnegative=True)


@rule(*overloads("sigmoid", "hardsigmoid"), makes_gates=True)
def switch(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, nonnegative=True, gate=SWITCH)


@rule(*overloads("softmax", "softmin", "gumbel_softmax", "_softmax"), makes_gates=True)
def softmax(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    # the sum in the denominator is a norm, so a unit keeps its own probability
    value = pass_through(call, input, nonnegative=True, gate=SWITCH)
    note(value, replace(facts_of(value), is_softmax=True, root=None))
    return value


@rule(*overloads("log_softmax", "_log_softmax"))
def log_softmax(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    value = pass_through(call, input, gate=0)
    note(value, replace(facts_of(value), is_softmax=True, root=None))
    return value


@rule(*overloads("exp", "exp2", "softplus", "reciprocal", "rsqrt"), makes_gates=True)
def shifted_nonnegative(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    is_positive = name_of(call.func).rstrip("_") in ("exp", "exp2", "softplus") or is_nonnegative(input)
    return _activated(call, input, keeps_zero=False, nonnegative=is_positive)


@rule(*overloads("logsigmoid", "log", "log2", "log10", "logit", "cos", "threshold", "pow", "float_power"))
def shifted(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return pass_through(call, input)


@rule(*overloads("glu"))
def gated_half(call: Call, input: Tensor, dim: int = -1) -> Tensor:
    half, _ = input.chunk(2, dim)
    return pass_through(call, half, keeps_zero=True)
