"""Sums and differences (residuals), products (gates and scales) and quotients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import (
    MIXED,
    SWITCH,
    carries_signal,
    depth_of,
    feeds_only,
    gate_of,
    has_share,
    is_nonnegative,
    mark_bypass,
    root_of,
    signed_gate_of,
)
from ebcli.eb.primitives import by_rule, folded, pass_through, shared, unchanged, with_value
from ebcli.eb.registry import Call, overloads, rule


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
        return shared(call, operands, scales)
    # an operand that does not depend on the input is a bias, of the layer before it if there is one
    at = shares.index(True)
    signal, bias = operands[at], operands[1 - at]
    value = folded(call, signal, scale=scales[at]) if isinstance(signal, Tensor) else None
    if value is not None:
        return value
    nonnegative = scales[at] > 0 and is_nonnegative(signal) and isinstance(bias, (int, float)) and bias >= 0
    return pass_through(call, signal, nonnegative=nonnegative, affine=True)


@rule(*overloads("mul", "multiply"))
def mul(call: Call, input: Any, other: Any) -> Any:
    if not (has_share(input) and has_share(other)):
        signal, factor = (input, other) if has_share(input) else (other, input)
        return _scaled(call, signal, factor)
    signal = _signal_of(input, other)
    if signal is None:
        return NotImplemented  # neither factor is the other's gate
    gate = min(gate_of(input), gate_of(other))
    if feeds_only(input if signal is other else other, signal):
        return call.compute().detach()  # the layer only feeds the gate, which gets nothing
    nonnegative = input is other or all(map(is_nonnegative, (input, other)))
    is_gated = root_of(input) is not root_of(other)  # and no activation, such as x * tanh(x)
    return pass_through(call, signal, keeps_zero=True, nonnegative=nonnegative, gate=gate, affine=is_gated)


def _signal_of(a: Tensor, b: Tensor) -> Tensor | None:
    """The factor that is the signal, the other one being its gate; None if neither is."""
    gates = gate_of(a), gate_of(b)
    if gates[0] != gates[1] and max(gates) >= SWITCH:
        return a if gates[0] < gates[1] else b
    if root_of(a) is root_of(b):
        return a  # an elementwise function of one tensor, such as x * tanh(x)
    full = torch.broadcast_shapes(a.shape, b.shape).numel()
    sizes = _distinct(a), _distinct(b)
    if sizes[0] != sizes[1] and full in sizes:
        return a if sizes[0] == full else b
    strengths = [0 if gate == MIXED else gate for gate in gates]
    depths = depth_of(a), depth_of(b)
    # the gate is told by its own activation, by those further down, or by having fewer layers than the signal
    ranks = [strengths] if any(strengths) else [[d.activations for d in depths], [-d.layers for d in depths]]
    rank = next((rank for rank in ranks if rank[0] != rank[1]), None)
    if rank is None:
        return None
    return a if rank[0] < rank[1] else b


def _distinct(value: Tensor) -> int:
    """The number of elements, without the copies that broadcasting made."""
    number = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        number *= size if stride or size < 2 else 1
    return number


@rule(torch.addcmul, Tensor.addcmul)
def addcmul(call: Call, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Any:
    # input + value * tensor1 * tensor2: a product, then a sum
    if not (has_share(tensor1) or has_share(tensor2)):
        return pass_through(call, input, affine=True)
    with torch.no_grad():
        result = call.compute()
    product = by_rule(call, torch.mul, tensor1, tensor2)
    if product is NotImplemented:
        return NotImplemented
    is_residual = has_share(input)
    total = by_rule(call, torch.add, input, mark_bypass(product), alpha=value) if is_residual else product
    return with_value(call, result, total, keeps_zero=is_residual) if carries_signal(total) else result


@rule(*overloads("div", "divide", "true_divide"), Tensor.__truediv__, Tensor.__itruediv__)
def div(call: Call, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    # the denominator is a norm, which rescales and does not excite
    if not has_share(input):
        return pass_through(call, other, gate=0)
    if feeds_only(other, input):
        return call.compute().detach()
    if has_share(other):
        nonnegative = is_nonnegative(input) and is_nonnegative(other)
        return pass_through(call, input, keeps_zero=True, nonnegative=nonnegative, affine=True)
    return _scaled(call, input, other)


@rule(Tensor.__rdiv__)
def rdiv(call: Call, input: Any, other: Any) -> Any:
    return div(call, other, input)


def _scaled(call: Call, signal: Tensor, factor: Any) -> Tensor:
    """The signal times or divided by a constant."""
    if isinstance(factor, (int, float)) and factor > 0:
        return unchanged(call, signal)
    if isinstance(factor, Tensor) and factor.dtype == torch.bool:
        return pass_through(call, signal, keeps_zero=True, nonnegative=is_nonnegative(signal), affine=True)
    value = folded(call, signal, scale=factor)
    if value is not None:
        return value
    if not gate_of(signal) or not _has_no_negatives(factor):
        return pass_through(call, signal, keeps_zero=True, gate=signed_gate_of(signal), affine=True)
    return pass_through(call, signal, keeps_zero=True, nonnegative=is_nonnegative(signal), affine=True)


def _has_no_negatives(constant: Any) -> bool:
    if isinstance(constant, Tensor):
        return constant.is_meta or bool((constant.detach() >= 0).all())
    return constant >= 0
