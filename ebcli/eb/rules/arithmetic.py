"""Sums and differences (residuals), products (gates and scales) and quotients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb import graph
from ebcli.eb.building import carries_signal, pass_through, shared
from ebcli.eb.registry import Call, rule, spellings


@rule(*spellings("add"))
def add(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, input, other, alpha)


@rule(*spellings("sub", "subtract"))
def sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum(call, input, other, -alpha)


@rule(torch.rsub, Tensor.__rsub__)
def rsub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    if carries_signal(input) and carries_signal(other):
        return shared(call, (other, input), (1, -alpha))
    return pass_through(call, input if carries_signal(input) else other)


def _sum(call: Call, input: Any, other: Any, scale: float) -> Any:
    if carries_signal(input) and carries_signal(other):
        return shared(call, (input, other), (1, scale))
    # what carries no signal is a bias
    return pass_through(call, input if carries_signal(input) else other)


@rule(*spellings("mul", "multiply"))
def mul(call: Call, input: Any, other: Any) -> Any:
    if not (carries_signal(input) and carries_signal(other)):
        signal, factor = (input, other) if carries_signal(input) else (other, input)
        positive = isinstance(factor, (int, float)) and factor > 0
        return _scaled(call, signal, positive)
    strength = [getattr(graph.origin(x), "gate", 0) for x in (input, other)]
    size = [x.numel() for x in (input, other)]
    if strength[0] != strength[1]:
        signal = input if strength[0] < strength[1] else other
    elif size[0] != size[1]:
        signal = input if size[0] > size[1] else other
    else:
        return NotImplemented  # a product of equals: neither is the other's gate
    return pass_through(call, signal, keeps_zero=True, nonnegative=all(map(graph.is_nonnegative, (input, other))))


@rule(*spellings("div", "divide", "true_divide"), Tensor.__truediv__, Tensor.__itruediv__)
def div(call: Call, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if carries_signal(input):  # a denominator is a norm: it rescales, it does not excite
        return _scaled(call, input, isinstance(other, (int, float)) and other > 0)
    return pass_through(call, other)


@rule(Tensor.__rdiv__)
def rdiv(call: Call, input: Any, other: Any) -> Any:
    return div(call, other, input)


@rule(*spellings("neg", "negative"))
def neg(call: Call, input: Tensor) -> Tensor:
    return pass_through(call, input, keeps_zero=True)


def _scaled(call: Call, signal: Tensor, positive: bool) -> Tensor:
    nonnegative = positive and graph.is_nonnegative(signal)
    gate = getattr(graph.origin(signal), "gate", 0) if positive else 0
    return pass_through(call, signal, keeps_zero=True, nonnegative=nonnegative, gate=gate)
