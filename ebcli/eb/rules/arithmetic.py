"""Sums and differences (residuals), products (gates and scales) and quotients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebcli.eb import graph
from ebcli.eb.primitives import by_rule, bypasses, carries_signal, folded, mark_bypass, pass_through, shared
from ebcli.eb.registry import Call, overloads, rule


@rule(*overloads("add"))
def add(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, input, other, alpha)


@rule(*overloads("sub", "subtract"))
def sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, input, other, -alpha)


@rule(torch.rsub, Tensor.__rsub__)
def rsub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    if _has_share(input) and _has_share(other):
        return shared(call, (other, input), (1, -alpha))
    return pass_through(call, input if carries_signal(input) else other)


def _sum(call: Call, input: Any, other: Any, scale: float) -> Any:
    if _has_share(input) and _has_share(other):
        return shared(call, (input, other), (1, scale))
    # an operand that does not depend on the input is a bias, of the layer before it if there is one
    signal = input if carries_signal(input) else other
    value = folded(call, signal) if signal is input or scale == 1 else None
    return pass_through(call, signal) if value is None else value


def _has_share(operand: Any) -> bool:
    return carries_signal(operand) or bypasses(operand)


@rule(*overloads("mul", "multiply"))
def mul(call: Call, input: Any, other: Any) -> Any:
    if not (_has_share(input) and _has_share(other)):
        signal, factor = (input, other) if carries_signal(input) else (other, input)
        return _scaled(call, signal, isinstance(factor, (int, float)) and factor > 0)
    strength = [graph.gate(x) for x in (input, other)]
    size = [x.numel() for x in (input, other)]
    if strength[0] != strength[1]:
        signal = input if strength[0] < strength[1] else other
    elif size[0] != size[1]:
        signal = input if size[0] > size[1] else other
    elif carries_signal(input) and carries_signal(other):
        return NotImplemented  # neither factor is the other's gate
    else:
        signal = input if carries_signal(input) else other
    if not carries_signal(signal):
        return call.compute().detach()  # the layer only feeds the gate, which gets nothing
    return pass_through(call, signal, keeps_zero=True, nonnegative=all(map(graph.is_nonnegative, (input, other))))


@rule(torch.addcmul, Tensor.addcmul)
def addcmul(call: Call, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Any:
    # input + value * tensor1 * tensor2: a product, then a sum
    if not (_has_share(tensor1) or _has_share(tensor2)):
        return pass_through(call, input)
    with torch.no_grad():
        result = call.compute()
    product = by_rule(call, torch.mul, tensor1, tensor2)
    if product is NotImplemented:
        return NotImplemented
    is_residual = _has_share(input)
    total = by_rule(call, torch.add, input, mark_bypass(product), alpha=value) if is_residual else product
    if not carries_signal(total):
        return result
    # equal up to rounding, so the network's own value replaces it
    return pass_through(replace(call, func=lambda: result, args=(), kwargs={}), total, keeps_zero=is_residual)


@rule(*overloads("div", "divide", "true_divide"), Tensor.__truediv__, Tensor.__itruediv__)
def div(call: Call, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    # the denominator is a norm, which rescales and does not excite
    if carries_signal(input):
        return _scaled(call, input, isinstance(other, (int, float)) and other > 0)
    return call.compute().detach() if bypasses(input) else pass_through(call, other)


@rule(Tensor.__rdiv__)
def rdiv(call: Call, input: Any, other: Any) -> Any:
    return div(call, other, input)


@rule(*overloads("neg", "negative"))
def neg(call: Call, input: Tensor) -> Tensor:
    return pass_through(call, input, keeps_zero=True)


def _scaled(call: Call, signal: Tensor, positive: bool) -> Tensor:
    nonnegative = positive and graph.is_nonnegative(signal)
    gate = graph.gate(signal) if positive else 0
    return pass_through(call, signal, keeps_zero=True, nonnegative=nonnegative, gate=gate)
