"""Sums and differences (residuals), products (gates and scales) and quotients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.facts import SIGNED, common_source, inherited, is_mean_of, signal_of, sources
from benchmarks.engine.products import added, ratio
from benchmarks.engine.record import Op, Value
from benchmarks.engine.rules.activations import Activation, OneInput, Scale, written_out
from benchmarks.engine.rules.rule import MISSING, Arrived, How, Rule, Share, of_elements


def scales(op: Op) -> tuple[float, float]:
    """c in y = c_1 a_1 + c_2 a_2."""
    alpha = op.kwargs.get("alpha", 1)
    if op.name == "rsub":
        return -(op.args[2] if len(op.args) > 2 else alpha), 1
    return 1, -alpha if op.name == "sub" else alpha


class Sum(Rule):
    """y = c_1 a_1 + c_2 a_2: shared by the contributions with the sign of y, Z = sum_k max(s c_k a_k, 0)."""

    def keeps(self, op: Op) -> Sequence[Value]:
        return op.inputs

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative &= min(self.scales(op)) >= 0
        link = common_source(*op.inputs)
        facts.elementwise = int(link is not None and not link[1] and op.out.shape == link[0].shape)
        op.out.facts = facts

    def rearranges(self, op: Op) -> bool:
        return False

    def scales(self, op: Op) -> Sequence[float]:
        return scales(op)

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        parts = self._parts(op)
        q = ratio(P[0], added(parts))
        below = How(None, how.above_classifier, spares_zeros=True)
        return [((part * q).sum_to_size(v.shape), below) for part, v in zip(parts, op.operands, strict=True)]

    def _parts(self, op: Op) -> list[Tensor]:
        """max(s c_k a_k, 0)."""
        terms = [v.tensor if c == 1 else c * v.tensor for c, v in zip(self.scales(op), op.operands, strict=True)]
        sign = added(terms).sign()
        return [(sign * term).clamp_(min=0) for term in terms]

    def loses(self, op: Op, _how: How) -> Tensor:
        return added(self._parts(op)) == 0

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        g = G[0]
        assert g is not None
        return [
            (g if c == 1 else g * c).sum_to_size(v.shape) for c, v in zip(self.scales(op), op.operands, strict=True)
        ]

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        return of_elements(op, of)


class Centered(Sum):
    """The difference of a tensor and its own mean is the first half of a norm, which rescales: P passes."""

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        return [(P[0], How(None, how.above_classifier)), None]

    def loses(self, op: Op, _how: How) -> None:
        return None


def add(op: Op) -> Rule:
    if len(op.inputs) == 1:
        at = next(i for i, a in enumerate(op.args) if isinstance(a, Value))
        constant = op.args[1 - at]
        if constant_number(constant) is not None:
            link = shifted_unit(op.signal)
            if link is not None and constant_number(constant) != 0:
                return written_out(op, link, op.signal.facts.gate)
        scale = scales(op)[at]
        return Scale(lambda _: scale, shifts=True, gate=0, nonnegative=_stays(scale, constant))
    link = common_source(*op.inputs)
    if link is not None and not link[2]:
        return written_out(op, link, 0)  # such as x + tanh(x)
    return CENTERED if scales(op) == (1, -1) and is_mean_of(op.inputs[1], op.inputs[0]) else SUM


def shifted_unit(value: Value) -> Any:
    """What a value is an activation of, times a constant; None if it is none."""
    return next(((v, moves, False) for v, moves, is_affine in sources(value) if not is_affine), None)


def constant_number(constant: Any) -> float | None:
    if isinstance(constant, (int, float)):
        return float(constant)
    if isinstance(constant, Tensor) and constant.numel() == 1 and not constant.is_meta:
        return float(constant)
    return None


def _stays(scale: float, constant: Any) -> Any:
    return lambda op: op.signal.facts.nonnegative and scale >= 0 and has_no_negatives(constant)


def has_no_negatives(constant: Any) -> bool:
    if isinstance(constant, Tensor):
        return not constant.is_meta and bool((constant >= 0).all())
    return bool(constant >= 0)


class Product(OneInput):
    """y = g a: the gate g is a weight and gets nothing."""

    def __init__(self, at: int) -> None:
        super().__init__(keeps_zero=True, elementwise=0)
        self._at = at

    def keeps(self, op: Op) -> Sequence[Value]:
        return op.inputs

    def learn(self, op: Op) -> None:
        facts, gate = inherited(op), op.inputs[1 - self._at]
        if gate.facts.is_softmax:
            facts.weighed = frozenset(axis for axis in range(-len(gate.shape), 0) if gate.varies_along(axis))
        op.out.facts = facts

    def takes(self, op: Op, at: int) -> bool:
        return at == self._at

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        found: list[Share] = [None, None]
        found[self._at] = P[0].sum_to_size(op.operands[self._at].shape), how._replace(signs=None)
        return found

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        g, factor = G[0], op.inputs[1 - self._at].tensor
        assert g is not None
        found: list[Tensor | None] = [None, None]
        g = g / factor if op.name == "div" else g * factor
        found[self._at] = g.sum_to_size(op.operands[self._at].shape)
        return found


FIRST, SECOND = Product(0), Product(1)


def mul(op: Op) -> Rule:
    if len(op.inputs) == 1:
        return _scaled(op)
    a, b = op.inputs
    link = common_source(a, b)
    if link is not None:  # an activation, such as x * tanh(x)
        return written_out(op, link, min(a.facts.gate, b.facts.gate), keeps_zero=any(v is link[0] for v in (a, b)))
    if not (a.is_floating and b.is_floating):
        return FIRST if a.is_floating else SECOND
    at = signal_of(a, b, op_shape(op))
    return MISSING if at is None else (FIRST, SECOND)[at]


def op_shape(op: Op) -> tuple[int, ...]:
    return torch.broadcast_shapes(*(a.shape for a in op.args[:2]))


def div(op: Op) -> Rule:
    # the denominator is a norm, which rescales and does not excite
    if len(op.inputs) == 1:
        return _scaled(op) if isinstance(op.args[0], Value) else _RECIPROCAL
    if op.args[0] is op.args[1] or (link := common_source(*op.inputs)) is None:
        return FIRST
    return written_out(op, link, 0, keeps_zero=link[0] is op.inputs[0])  # such as x / (1 + exp(-x))


def _scaled(op: Op) -> Rule:
    """The signal times or divided by a constant."""
    constant = next(a for a in op.args[:2] if not isinstance(a, Value))
    divides = op.name == "div"
    keeps_sign = has_no_negatives(constant)

    def factor(_: Op) -> Any:
        if isinstance(constant, Tensor):
            return 1 / constant if divides else constant
        return (1 / constant if constant else float("inf")) if divides else constant

    gate = op.signal.facts.gate
    return ScaledBy(factor, gate if keeps_sign else SIGNED.get(gate, gate), keeps_sign)


class ScaledBy(Scale):
    def __init__(self, factor: Any, gate: int, keeps_sign: bool) -> None:
        super().__init__(factor, nonnegative=lambda op: keeps_sign and op.signal.facts.nonnegative)
        self._own_gate = gate

    def learn(self, op: Op) -> None:
        super().learn(op)
        op.out.facts.gate = self._own_gate


_RECIPROCAL = Activation(None, keeps_zero=False)
SUM, CENTERED = Sum(), Centered()


def negative(op: Op) -> Rule:
    gate = op.signal.facts.gate
    return ScaledBy(lambda _: -1, SIGNED.get(gate, gate), keeps_sign=False)


ENTRIES = {"neg": negative, **dict.fromkeys(["add", "sub", "rsub"], add), "mul": mul, "div": div}
