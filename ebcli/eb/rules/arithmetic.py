"""Sums and differences (residuals), products (gates and scales) and quotients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, Facts, Gate, common_source, is_mean_of, signal_of, sources
from ebcli.eb.operations import Op, Value
from ebcli.eb.products import added, ratio
from ebcli.eb.rules.activations import Activation, OneInput, Scale, written_out
from ebcli.eb.rules.rule import MISSING, Arrived, How, Rule, Share


def scales(op: Op) -> tuple[float, float]:
    """c in y = c_1 a_1 + c_2 a_2."""
    alpha = op.kwargs.get("alpha", 1)
    if op.name == "rsub":
        return -(op.args[2] if len(op.args) > 2 else alpha), 1
    return 1, -alpha if op.name == "sub" else alpha


@dataclass(eq=False)
class Sum(Rule):
    """y = c_1 a_1 + c_2 a_2: shared by the contributions with the sign of y, Z = sum_k max(s c_k a_k, 0).

    Args:
        scales: c, of an operation.
    """

    scales: Callable[[Op], Sequence[float]] = scales
    needs_numbers = True

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative &= min(self.scales(op)) >= 0
        link = common_source(*op.inputs)
        if link is not None and not link.moves and op.out.shape == link.source.shape:
            facts.elementwise = AFFINE

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        terms = [v.tensor if c == 1 else c * v.tensor for c, v in zip(self.scales(op), op.operands, strict=True)]
        sign = added(terms).sign()
        parts = [(sign * term).clamp_(min=0) for term in terms]
        q = ratio(P[0], added(parts))
        below = How(None, how.above_classifier, spares_zeros=True)
        return [((part * q).sum_to_size(v.shape), below) for part, v in zip(parts, op.operands, strict=True)]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        scaled = [G[0] if c == 1 else G[0] * c for c in self.scales(op)]
        return [g.sum_to_size(v.shape) for g, v in zip(scaled, op.operands, strict=True)]


class Centered(Sum):
    """The difference of a tensor and its own mean is the first half of a norm, which rescales: P passes."""

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        return [(P[0], How(None, how.above_classifier)), None]


def add(op: Op) -> Rule:
    if len(op.inputs) == 1:
        at = next(i for i, a in enumerate(op.args) if isinstance(a, Value))
        constant, scale = op.args[1 - at], scales(op)[at]
        if is_number(constant) and constant != 0:
            unit = next((link for link in sources(op.signal) if not link.is_affine), None)
            if unit is not None:  # an activation, scaled and shifted
                return written_out(op, unit, op.signal.facts.gate)
        keeps = scale >= 0 and has_no_negatives(constant)
        return Scale(factor=lambda _: scale, keeps_zero=False, nonnegative=op.signal.facts.nonnegative and keeps)
    link = common_source(*op.inputs)
    if link is not None and not link.is_affine:
        return written_out(op, link, 0)  # such as x + tanh(x)
    return CENTERED if scales(op) == (1, -1) and is_mean_of(op.inputs[1], op.inputs[0]) else SUM


def is_number(constant: Any) -> bool:
    return isinstance(constant, (int, float)) or (constant.numel() == 1 and not constant.is_meta)


def has_no_negatives(constant: Any) -> bool:
    constant = torch.as_tensor(constant)
    return not constant.is_meta and bool((constant >= 0).all())


class Product(OneInput):
    """y = g a: the gate g is a weight and gets nothing."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        gate = op.inputs[1 - self.at]
        if gate.facts.is_softmax:
            facts.weighed = frozenset(axis for axis in range(-len(gate.shape), 0) if gate.varies_along(axis))

    def slope(self, op: Op, G: Tensor) -> Tensor:
        gate = op.inputs[1 - self.at].tensor
        return G / gate if op.name == "div" else G * gate


FIRST, SECOND = (Product(at=at, keeps_zero=True, elementwise=0, nonnegative=None) for at in (0, 1))


def mul(op: Op) -> Rule:
    if len(op.inputs) == 1:
        return scaled(op, next(a for a in op.args[:2] if not isinstance(a, Value)))
    a, b = op.inputs
    link = common_source(a, b)
    if link is not None:  # an activation, such as x * tanh(x)
        return written_out(op, link, min(a.facts.gate, b.facts.gate), keeps_zero=link.source in (a, b))
    if not (a.is_floating and b.is_floating):
        return FIRST if a.is_floating else SECOND
    at = signal_of(a, b, torch.broadcast_shapes(a.shape, b.shape))
    return MISSING if at is None else (FIRST, SECOND)[at]


def div(op: Op) -> Rule:
    # the denominator is a norm, which rescales and does not excite
    if len(op.inputs) == 1:
        return scaled(op, op.args[1]) if op.signal is op.args[0] else Activation(gate=Gate.MASK, keeps_zero=False)
    if op.args[0] is op.args[1] or (link := common_source(*op.inputs)) is None:
        return FIRST
    return written_out(op, link, 0, keeps_zero=link.source is op.inputs[0])  # such as x / (1 + exp(-x))


def scaled(op: Op, constant: Any) -> Rule:
    """The rule of a signal times, or divided by, a constant."""
    keeps = has_no_negatives(constant)
    return Scale(factor=_factor, turns=not keeps, nonnegative=keeps and op.signal.facts.nonnegative)


def _factor(op: Op) -> Any:
    """As recorded: the network may overwrite the constant."""
    constant = next(a for a in op.args[:2] if not isinstance(a, Value))
    return constant if op.name == "mul" else 1 / torch.as_tensor(constant, dtype=op.signal.dtype)


_NEGATIVE = Scale(factor=lambda _: -1, turns=True)
SUM, CENTERED = Sum(), Centered()
ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {"neg": _NEGATIVE, "add sub rsub": add, "mul": mul, "div": div}
