"""Sums and differences (residuals), products (gates and scales) and quotients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, Facts, Gate, common_source, is_mean_of, signal_of, sources
from ebcli.eb.operations import Op, same
from ebcli.eb.places import Marks, Places
from ebcli.eb.products import add_all, ratio
from ebcli.eb.rules.activations import Activation, Scale, Unary, written_out
from ebcli.eb.rules.moves import MISSING, has_no_negatives, is_number
from ebcli.eb.rules.rule import BackwardContext, Choice, Gradients, Incoming, Rule, Shares, Table

Scales = Callable[[Op], Sequence[float]]


@dataclass(eq=False)
class Sum(Rule):
    """y = c_1 a_1 + c_2 a_2: shared by the contributions with the sign of y, Z = sum_k max(s c_k a_k, 0).

    Args:
        scales: c, of an operation.
    """

    scales: Scales

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative &= min(self.scales(op)) >= 0
        link = common_source(*op.inputs)
        if link is not None and not link.moves and op.out.shape == link.source.shape:
            facts.elementwise = AFFINE

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        terms = [
            v.tensor if c == 1 else c * v.tensor for c, v in zip(self.scales(op), op.operands, strict=True)
        ]
        sign = add_all(terms).sign()
        parts = [(sign * term).clamp_(min=0) for term in terms]
        q = ratio(P[0], add_all(parts))
        context_below = BackwardContext(None, context.above_classifier, skips_zeros=True)
        return [
            ((part * q).sum_to_size(v.shape), context_below)
            for part, v in zip(parts, op.operands, strict=True)
        ]

    def slopes(self, op: Op, G: Incoming) -> Gradients:
        terms = [G[0] if c == 1 else G[0] * c for c in self.scales(op)]
        return [g.sum_to_size(v.shape) for g, v in zip(terms, op.operands, strict=True)]

    def places(self, op: Op, places: Places) -> Marks:
        return places.merge(op)


class Centering(Sum):
    """The difference of a tensor and its own mean is the first half of a norm, which rescales: P passes."""

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        return [(P[0], BackwardContext(None, context.above_classifier)), None]


def _sum_rule(op: Op, scales: Scales) -> Rule:
    """The rule of a sum or a difference of two arguments.

    Args:
        op: the operation.
        scales: c in y = c_1 a_1 + c_2 a_2.
    """
    if op.has_one_input:
        constant = _constant(op)
        scale = scales(op)[op.args[0] is not op.signal]
        if is_number(constant) and constant != 0:
            unit = next((link for link in sources(op.signal) if not link.is_affine), None)
            if unit is not None:  # an activation, scaled and shifted
                return written_out(op, unit, op.signal.facts.gate)
        is_nonnegative = scale >= 0 and has_no_negatives(constant) and op.signal.facts.nonnegative
        return Scale(factor=lambda _: scale, keeps_zero=False, nonnegative=is_nonnegative)
    link = common_source(*op.inputs)
    if link is not None and not link.is_affine:
        return written_out(op, link, 0)  # such as x + tanh(x)
    if scales(op) == (1, -1) and is_mean_of(op.inputs[1], op.inputs[0]):
        return Centering(scales)
    return Sum(scales)


@dataclass(eq=False, kw_only=True)
class Product(Unary):
    """y = g a, or a / g: the gate g is a weight and gets nothing.

    Args:
        divides: whether it is a quotient.
    """

    keeps_zero: bool = True
    elementwise: int = 0
    nonnegative: bool | None = None
    divides: bool = False

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        gate = op.inputs[1 - self.position]
        if gate.facts.is_softmax:
            sizes = enumerate(zip(gate.shape, gate.stride, strict=True), -gate.ndim)
            facts.attention_axes = frozenset(axis for axis, (size, step) in sizes if size > 1 and step)

    def slope(self, op: Op, G: Tensor) -> Tensor:
        gate = op.inputs[1 - self.position].tensor
        if self.divides:
            return G / gate
        return G * gate


def mul(op: Op) -> Rule:
    if op.has_one_input:
        return _scale(op, same)
    a, b = op.inputs
    link = common_source(a, b)
    if link is not None:  # an activation, such as x * tanh(x)
        return written_out(op, link, min(a.facts.gate, b.facts.gate), keeps_zero=link.source in (a, b))
    if not (a.is_floating and b.is_floating):
        if a.is_floating:
            return FIRST
        return SECOND
    position = signal_of(a, b)
    if position is None:
        return MISSING
    return (FIRST, SECOND)[position]


def div(op: Op) -> Rule:
    """The denominator is a norm, which rescales and does not excite."""
    if op.has_one_input:
        if op.signal is not op.args[0]:
            return Activation(gate=Gate.MASK, keeps_zero=False)
        return _scale(op, lambda constant: 1 / torch.as_tensor(constant, dtype=op.signal.dtype))
    link = None if op.args[0] is op.args[1] else common_source(*op.inputs)
    if link is None:
        return QUOTIENT
    return written_out(op, link, 0, keeps_zero=link.source is op.inputs[0])  # such as x / (1 + exp(-x))


def _scale(op: Op, factor: Callable[[Any], Any]) -> Rule:
    """The rule of a signal times, or divided by, a constant, of which the network may make another one later."""
    if op.signal.dtype.is_complex:  # of queries and keys
        return MISSING
    is_positive = has_no_negatives(_constant(op))
    is_nonnegative = is_positive and op.signal.facts.nonnegative
    return Scale(factor=lambda op: factor(_constant(op)), turns=not is_positive, nonnegative=is_nonnegative)


def _constant(op: Op) -> Any:
    """The other one of two arguments."""
    return op.args[op.args[0] is op.signal]


def _sum(scales: Scales) -> Choice:
    return Choice(partial(_sum_rule, scales=scales), expands_responses=True)


FIRST = Product()
SECOND = Product(position=1)
QUOTIENT = Product(divides=True)

ENTRIES: Table = {
    "neg": Scale(factor=lambda _: -1, turns=True),
    "add": _sum(lambda op: (1, op.kwargs.get("alpha", 1))),
    "sub": _sum(lambda op: (1, -op.kwargs.get("alpha", 1))),
    "rsub": _sum(lambda op: (-op.arguments["alpha"], 1)),
    "mul": Choice(mul, expands_responses=True),
    "div": Choice(div, expands_responses=True),
}
