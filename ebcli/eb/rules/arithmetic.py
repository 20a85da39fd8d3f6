"""Sums and differences (residuals), products (gates and scales) and quotients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import common_source, facts_of, feeds_only, has_share, is_nonnegative
from ebcli.eb.folding import folded
from ebcli.eb.gates import gate_of, signal_of, signed_gate_of
from ebcli.eb.primitives import activated, by_parts, mixed, rescaled, residual_sum, unchanged
from ebcli.eb.registry import Call, overloads, rule
from ebcli.eb.steps import times


@rule(*overloads("add"))
def add(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, (input, other), (1, alpha))


@rule(*overloads("sub", "subtract"))
def sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, (input, other), (1, -alpha))


@rule(*overloads("rsub"))
def rsub(call: Call, input: Any, other: Any, alpha: float = 1) -> Any:
    return _sum(call, (other, input), (1, -alpha))


def _sum(call: Call, operands: tuple[Any, Any], scales: tuple[float, float]) -> Any:
    shares = [has_share(operand) for operand in operands]
    if all(shares):
        return _centered(call, operands) if scales == (1, -1) else residual_sum(call, operands, scales)
    # an operand that does not depend on the input is a bias, of the layer before it if there is one
    at = shares.index(True)
    signal, bias = operands[at], operands[1 - at]
    value = folded(call, signal, scale=scales[at]) if isinstance(signal, Tensor) else None
    if value is not None:
        return value
    nonnegative = scales[at] > 0 and is_nonnegative(signal) and isinstance(bias, (int, float)) and bias >= 0
    return rescaled(call, signal, scales[at], nonnegative=nonnegative)


def _centered(call: Call, operands: tuple[Tensor, Tensor]) -> Tensor:
    """A difference; that of a tensor and its own mean is the first half of a norm, which rescales."""
    signal, other = operands
    mean_of = facts_of(other).mean_of
    if mean_of is None or mean_of[0] is not signal or mean_of[1] != signal._version:
        return residual_sum(call, operands, (1, -1))
    axes = mean_of[2]
    return mixed(rescaled(call, signal, lambda G: G - G.mean(axes, keepdim=True), gate=0))


@rule(*overloads("mul", "multiply"))
def mul(call: Call, input: Any, other: Any) -> Any:
    if not (has_share(input) and has_share(other)):
        signal, factor = (input, other) if has_share(input) else (other, input)
        return _scaled(call, signal, factor)
    signal = signal_of(input, other)
    if signal is None:
        return NotImplemented  # neither factor is the other's gate
    factor = input if signal is other else other
    gate = min(gate_of(input), gate_of(other))
    if feeds_only(factor, signal):
        return call.compute().detach()  # the layer only feeds the gate, which gets nothing
    nonnegative = input is other or all(map(is_nonnegative, (input, other)))
    common = common_source(input, other)
    if common is not None:  # an activation, such as x * tanh(x)
        keeps_zero = common[0] is input or common[0] is other
        return activated(call, common[0], keeps_zero=keeps_zero, nonnegative=nonnegative, gate=gate)
    return rescaled(call, signal, times(factor), keeps_zero=True, nonnegative=nonnegative, gate=gate)


@rule(torch.addcmul, Tensor.addcmul)
def addcmul(call: Call, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Any:
    return by_parts(call, lambda: torch.add(input, tensor1 * tensor2, alpha=value))


@rule(torch.lerp, Tensor.lerp)
def lerp(call: Call, input: Tensor, end: Tensor, weight: Any) -> Any:
    return by_parts(call, lambda: input * (1 - weight) + end * weight)


@rule(*overloads("div", "divide", "true_divide"), Tensor.__truediv__, Tensor.__itruediv__)
def div(call: Call, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    # the denominator is a norm, which rescales and does not excite
    if not has_share(input):
        return activated(call, other, gate=0)
    if feeds_only(other, input):
        return call.compute().detach()
    if not has_share(other):
        return _scaled(call, input, other, divides=True)
    nonnegative = is_nonnegative(input) and is_nonnegative(other)
    common = common_source(input, other)
    if common is not None:  # an activation, such as x / (1 + exp(-x))
        return activated(call, common[0], keeps_zero=common[0] is input, nonnegative=nonnegative)
    return rescaled(call, input, times(other, divides=True), keeps_zero=True, nonnegative=nonnegative)


@rule(Tensor.__rdiv__)
def rdiv(call: Call, input: Any, other: Any) -> Any:
    return div(call, other, input)


def _scaled(call: Call, signal: Tensor, factor: Any, *, divides: bool = False) -> Tensor:
    """The signal times or divided by a constant."""
    slope = times(factor, divides=divides)
    if isinstance(factor, (int, float)) and factor > 0:
        return unchanged(call, signal, slope)
    is_mask = isinstance(factor, Tensor) and factor.dtype == torch.bool
    value = None if is_mask else folded(call, signal, scale=factor, divides=divides)
    if value is not None:
        return value
    keeps_sign = is_mask or bool(gate_of(signal) and _has_no_negatives(factor))
    gate = gate_of(signal) if keeps_sign else signed_gate_of(signal)
    return rescaled(call, signal, slope, keeps_zero=True, nonnegative=keeps_sign and is_nonnegative(signal), gate=gate)


def _has_no_negatives(constant: Any) -> bool:
    if isinstance(constant, Tensor):
        return constant.is_meta or bool((constant.detach() >= 0).all())
    return constant >= 0
