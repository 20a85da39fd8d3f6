"""Activations have one input and one output, so probability passes through unchanged.

Their ordinary gradients would not do: a saturated tanh would lose its probability.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import amend, is_nonnegative
from ebcli.eb.folding import folded
from ebcli.eb.gates import ACTIVATED, BOUNDED, SWITCH, gate_of, signed_gate_of
from ebcli.eb.primitives import activated, rescaled, unchanged
from ebcli.eb.registry import Call, name_of, overloads, rule
from ebcli.eb.saved_values import Saved


@rule(*overloads("relu", "relu6"), makes_gates=True)
def rectifier(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _rectified(call, input, bounded=name_of(call.func).startswith("relu6"))


@rule(*overloads("hardtanh"), makes_gates=True)
def bounded(call: Call, input: Tensor, min_val: float = -1, max_val: float = 1, *args: Any, **kwargs: Any) -> Tensor:
    return clamped(call, input, min_val, max_val)


@rule(*overloads("clamp", "clip", "clamp_min", "clamp_max"))
def clamped(call: Call, input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if name_of(call.func).startswith("clamp_max"):
        min, max = None, min
    if isinstance(min, (int, float)) and min == 0:
        return _rectified(call, input, bounded=max is not None)
    if isinstance(min, (int, float)) and min > 0:
        return _activated(call, input, keeps_zero=False, nonnegative=True)
    nonnegative = is_nonnegative(input) and isinstance(max, (int, float)) and max >= 0
    return _guarded(call, input, keeps_zero=False, nonnegative=nonnegative)  # against overflow: no activation


def _rectified(call: Call, input: Tensor, *, bounded: bool) -> Tensor:
    gate = max(BOUNDED, gate_of(input))
    value = folded(call, input, rectified=True, bounded=bounded, gate=gate)
    if value is not None:
        return value
    return activated(call, input, nonnegative=True, keeps_zero=True, gate=gate, is_relu=not bounded)


def _activated(call: Call, input: Tensor, *, keeps_zero: bool, nonnegative: bool = False) -> Tensor:
    gate = max(BOUNDED if nonnegative else ACTIVATED, gate_of(input))
    return activated(call, input, nonnegative=nonnegative, keeps_zero=keeps_zero, gate=gate)


@rule(
    *overloads("leaky_relu", "elu", "celu", "selu", "prelu", "rrelu", "hardswish", "silu", "gelu", "mish"),
    *overloads("tanh", "softsign", "hardshrink", "softshrink", "tanhshrink", "erf", "asinh", "atan", "sinh", "sin"),
    *overloads("expm1", "log1p"),
    makes_gates=True,
)
def activation(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _activated(call, input, keeps_zero=True)


@rule(*overloads("nan_to_num", "round", "trunc"))
def guard(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _guarded(call, input, keeps_zero=True, nonnegative=is_nonnegative(input))


def _guarded(call: Call, input: Tensor, *, keeps_zero: bool, nonnegative: bool) -> Tensor:
    """A guard, such as a bound against overflow or rounding, which hardly ever changes a value."""
    before = Saved(input)
    after: list[Saved] = []

    def slope(G: Tensor) -> Tensor:
        u, h = before.get(), after[0].get()
        return torch.where((u == h) | (u == 0), G, G * (h / u))

    value = rescaled(call, input, slope, keeps_zero=keeps_zero, nonnegative=nonnegative)
    after.append(Saved(value))
    return value


@rule(*overloads("sign"))
def sign(call: Call, input: Tensor) -> Tensor:
    return activated(call, input, keeps_zero=True)


@rule(*overloads("neg", "negative"))
def negative(call: Call, input: Tensor) -> Tensor:
    value = folded(call, input, scale=-1.0)
    return rescaled(call, input, -1.0, keeps_zero=True, gate=signed_gate_of(input)) if value is None else value


@rule(
    *overloads("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"),
    *overloads("alpha_dropout", "feature_alpha_dropout"),
)
def dropout(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return unchanged(call, input)


@rule(torch.detach, Tensor.detach)
def detached(call: Call, input: Tensor) -> Tensor:
    # it stops the gradient of a loss; the values, which the network adds up, are the same
    return unchanged(call, input)


@rule(Tensor.numpy, Tensor.__array__)
def array(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return call.func(input.detach(), *args, **kwargs)  # of what the network has detached


@rule(*overloads("abs", "absolute", "square", "sqrt"))
def magnitude(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return activated(call, input, keeps_zero=True, nonnegative=True)


@rule(*overloads("sigmoid", "hardsigmoid"), makes_gates=True)
def switch(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return activated(call, input, nonnegative=True, gate=SWITCH)


@rule(*overloads("softmax", "softmin", "gumbel_softmax", "_softmax"), makes_gates=True)
def softmax(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    # the sum in the denominator is a norm, so a unit keeps its own probability
    value = activated(call, input, nonnegative=True, gate=SWITCH)
    amend(value, is_softmax=True, source=None)
    return value


@rule(*overloads("log_softmax", "_log_softmax"))
def log_softmax(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    value = activated(call, input, gate=0)
    amend(value, is_softmax=True, source=None)
    return value


@rule(*overloads("exp", "exp2", "softplus", "reciprocal", "rsqrt"), makes_gates=True)
def shifted_nonnegative(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    is_positive = name_of(call.func).rstrip("_") in ("exp", "exp2", "softplus") or is_nonnegative(input)
    return _activated(call, input, keeps_zero=False, nonnegative=is_positive)


@rule(*overloads("logsigmoid", "log", "log2", "log10", "logit", "cos", "threshold", "pow", "float_power"))
def shifted(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return activated(call, input)


@rule(*overloads("glu"))
def gated_half(call: Call, input: Tensor, dim: int = -1) -> Tensor:
    half, gate = input.chunk(2, dim)
    factor = gate.detach().sigmoid()
    return rescaled(call, half, lambda G: G * factor, keeps_zero=True)
