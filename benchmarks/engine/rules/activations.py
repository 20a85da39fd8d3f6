"""Operations with one input and one output: activations, scales with a shift, and guards.

Probability passes through unchanged. Their ordinary gradients would not do: a saturated tanh would lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.facts import (
    ACTIVATED,
    AFFINE,
    BOUNDED,
    CURVED,
    SIGNED,
    SWITCH,
    Link,
    arranged_back,
    common_source,
    inherited,
    never_negative,
    rearranged,
    sources,
)
from benchmarks.engine.operations import Op, Value
from benchmarks.engine.rules.rule import MISSING, Arrived, How, Join, Rule, Share, Winner

Told = bool | Callable[[Op], bool]


class OneInput(Rule):
    """y = f(a): P(i) = P(n). If the signal was broadcast, the probabilities of its copies are added.

    Args:
        keeps_zero: zero maps to zero.
        elementwise: what kind of function of each element it is; 0 if an element depends on other ones, as in a norm.
        nonnegative: whether the value is never negative.
        gate: how clearly the value is meant to be a factor, at least; None: not at all.
        is_softmax: it is one, or its logarithm.
    """

    def __init__(
        self,
        *,
        keeps_zero: bool = False,
        elementwise: int = CURVED,
        nonnegative: Told = False,
        gate: int | None = 0,
        is_softmax: bool = False,
    ) -> None:
        self.keeps_zero, self._elementwise, self._nonnegative = keeps_zero, elementwise, nonnegative
        self._gate, self._is_softmax = gate, is_softmax

    def operands(self, op: Op) -> list[Value]:
        return op.inputs[:1]

    def learn(self, op: Op) -> None:
        facts, told = inherited(op), self._nonnegative
        facts.nonnegative = told if isinstance(told, bool) else told(op)
        facts.gate = 0 if self._gate is None else max(self._gate, facts.gate)
        facts.elementwise = self._elementwise if op.out.shape == op.operands[0].shape else 0
        facts.is_softmax = self._is_softmax
        for out in op.outs:
            out.facts = facts

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        how = how if self.keeps_zero else how._replace(spares_zeros=False)
        return [(P[0].sum_to_size(op.operands[0].shape), how)]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        return [self.slope(op, G[0]).sum_to_size(op.operands[0].shape)]

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """The weight of the input, of the value's shape."""
        return G


class Activation(OneInput):
    """h = f(u). Jointly, the unit wins P = max(h G, 0), and the weight of u is P / u.

    Args:
        link: of an activation that is made of several operations, such as x * sigmoid(x), what they are a function of.
    """

    def __init__(
        self,
        gate: int | None = ACTIVATED,
        link: Link | None = None,
        *,
        keeps_zero: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(keeps_zero=keeps_zero, gate=gate, **options)
        self._link = link

    def operands(self, op: Op) -> list[Value]:
        return [self._link.source] if self._link else op.inputs[:1]

    def keeps(self, op: Op) -> Sequence[Value]:
        return *op.operands, *op.inputs[:1], *op.outs

    def learn(self, op: Op) -> None:
        super().learn(op)
        facts = op.out.facts
        facts.activations += 1
        if self._link:
            facts.elementwise *= not self._link.moves
        elif facts.elementwise and not facts.nonnegative and op.signal.facts.elementwise:
            *_, link = sources(op.signal)
            facts.nonnegative = never_negative(op, link.source)

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        return super().shares(op, [self._moved_back(P[0])], how)

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        return super().slopes(op, [self._moved_back(self.weight(op, G[0]))])

    def weight(self, op: Op, G: Tensor) -> Tensor:
        """P / u, of the value's shape."""

        def found() -> tuple[Tensor, Tensor]:
            u = op.operands[0].tensor
            u = rearranged(u, self._link.moves) if self._link else u
            # h / |u|, and where u is 0, which stops the weight, whether h is 0 too
            return (op.out.tensor / u.abs()).nan_to_num_(0.0, 1.0, -1.0), u.sign()

        size, sign = op.once(found)
        return (G * size).clamp_(min=0).mul_(sign)

    def slopes_above_classifier(self, op: Op, G: Arrived) -> list[Tensor | None]:
        """There, nothing competes: the dual of a class is a unit of the classifier, not of what follows it."""
        return super().slopes(op, [self._moved_back(G[0].where(op.out.tensor != 0, 0))])

    def _moved_back(self, found: Tensor) -> Tensor:
        return arranged_back(found, self._link.moves) if self._link else found


class Rectifier(Activation):
    """A ReLU, which may be cut off above. Behind a layer, both are one neuron."""

    def __init__(self, *, is_bounded: bool = False) -> None:
        super().__init__(BOUNDED, nonnegative=True)
        self._is_bounded = is_bounded

    def keeps(self, op: Op) -> Sequence[Value]:
        return super().keeps(op) if self._is_bounded else op.outs

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        if not op.signal.facts.is_open or how.above_classifier:
            return super().shares(op, P, how)
        # inactive neurons, whose response is not positive, have no probability, unless something was added behind them
        signs = 1 if how.spares_zeros else torch.where(op.out.tensor > 0, 1, -1)
        return [(P[0], how._replace(signs=signs))]

    def weight(self, op: Op, G: Tensor) -> Tensor:
        return super().weight(op, G) if self._is_bounded else G.clamp(min=0) * (op.out.tensor > 0)


class Scale(OneInput):
    """y = c a + d, which is no activation. Behind a layer, both are one neuron, whose weights have the sign of c.

    Args:
        factor: c, of any shape that broadcasts.
        shifts: whether d is not 0.
        turns: it changes signs, so that a gate is no clear one any more.
        nonnegative, gate, elementwise: as in `OneInput`.
    """

    def __init__(
        self, factor: Callable[[Op], Any] = lambda _: 1, *, shifts: bool = False, turns: bool = False, **options: Any
    ) -> None:
        super().__init__(keeps_zero=not shifts, **{"elementwise": AFFINE, **options})
        self._factor, self._shifts, self._turns = factor, shifts, turns

    def keeps(self, op: Op) -> Sequence[Value]:
        return [*(out for out in op.outs[:1] if out.facts.is_open), *op.inputs[1:]]

    def learn(self, op: Op) -> None:
        super().learn(op)
        facts, signal = op.out.facts, op.signal
        facts.is_open = signal.facts.is_open
        if self._turns:
            facts.gate = SIGNED.get(facts.gate, facts.gate)
        if facts.is_open and signal.reads == 1:
            signal.kept = None  # only its sign could be asked for, which the result tells

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        return super().shares(op, P, how._replace(signs=self._signs(op, how)) if op.signal.facts.is_open else how)

    def _signs(self, op: Op, how: How) -> int | Tensor | None:
        """The signs of the responses of the layer itself."""
        factor, signs = self._factor(op), how.signs
        turned = factor.sign() if isinstance(factor, Tensor) else (factor > 0) - (factor < 0)
        is_positive = bool((turned > 0).all()) if isinstance(turned, Tensor) else turned > 0
        if signs is None and how.above_classifier:
            signs = 1
        elif signs is None and (self._shifts or not is_positive):
            signs = op.out.tensor.sign()
        return signs if signs is None or is_positive else signs * turned

    def slope(self, op: Op, G: Tensor) -> Tensor:
        factor = self._factor(op)
        return G if isinstance(factor, (int, float)) and factor == 1 else G * factor


def like_input(op: Op) -> bool:
    """The value is non-negative if the input is."""
    return bool(op.signal.facts.nonnegative)


def clamped(op: Op) -> Rule:
    """The rule of a clamp: a ReLU, which may be cut off above, or a guard."""
    least, most = (op.named.get(name, op.named.get(f"{name}_val")) for name in ("min", "max"))
    if isinstance(least, (int, float)) and least >= 0:
        return _LIFTED if least > 0 else _RELU if most is None else _RELU6
    return _BOUND if isinstance(most, (int, float)) and most >= 0 else _ANY_BOUND


_RELU, _RELU6 = Rectifier(), Rectifier(is_bounded=True)
_LIFTED = Activation(BOUNDED, keeps_zero=False, nonnegative=True)
# a bound against overflow, or rounding, which hardly ever changes a value, is no activation
_BOUND, _ANY_BOUND = (OneInput(elementwise=AFFINE, nonnegative=told) for told in (like_input, False))


def power(op: Op) -> Rule:
    exponent, base = op.args[1], op.args[0]
    if not isinstance(base, Value):  # 2 ** y
        return _EXP
    if isinstance(exponent, Value):
        link = common_source(base, exponent)
        return MISSING if link is None else written_out(op, link, 0)
    if isinstance(exponent, (int, float)):
        if exponent == 1:
            return _SAME
        return _EVEN if exponent > 0 and exponent % 2 == 0 else _ODD if exponent > 0 else _INVERSE
    return Activation(0, keeps_zero=False)


_EXP = Activation(BOUNDED, keeps_zero=False, nonnegative=True)
_SAME = Scale()
_EVEN = Activation(0, nonnegative=True)
_ODD = Activation(0, nonnegative=like_input)
_INVERSE = Activation(0, keeps_zero=False, nonnegative=like_input)
_JOIN, _WINNER = Join(), Winner()


def written_out(op: Op, link: Link, gate: int | None = ACTIVATED, *, keeps_zero: bool = False) -> Activation:
    """The rule of the last operation of an activation that is made of several."""
    return Activation(gate, link, keeps_zero=keeps_zero, nonnegative=never_negative(op, link.source))


def choice(op: Op) -> Rule:
    """max(x, 0) and where(x > 0, x, x / 5) are activations; a choice between different signals moves values."""
    if op.name != "where" or isinstance(op.args[0], Value):
        link = common_source(*op.inputs)
        others = [a for a in op.args if isinstance(a, (Tensor, Value))]
        if link is not None and all(a.shape.numel() <= link.source.shape.numel() for a in others):
            return written_out(op, link)
    return _JOIN if op.name == "where" else _WINNER


ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    "relu": _RELU,
    **dict.fromkeys(["clamp", "clip", "clamp_min", "clamp_max", "hardtanh"], clamped),
    **dict.fromkeys(
        "leaky_relu elu celu _prelu_kernel rrelu_with_noise hardswish silu gelu mish tanh hardshrink softshrink erf "
        "asinh atan sinh sin expm1 log1p rrelu tan".split(),
        Activation(nonnegative=like_input),
    ),
    **dict.fromkeys(
        ["nan_to_num", "round", "trunc"], OneInput(keeps_zero=True, elementwise=AFFINE, nonnegative=like_input)
    ),
    **dict.fromkeys(["sign", "sgn"], _ODD),
    **dict.fromkeys(["abs", "sqrt"], _EVEN),
    **dict.fromkeys(["sigmoid", "hardsigmoid"], Activation(SWITCH, keeps_zero=False, nonnegative=True)),
    **dict.fromkeys(
        ["_softmax", "_safe_softmax", "_masked_softmax"],
        Activation(SWITCH, keeps_zero=False, nonnegative=True, elementwise=0, is_softmax=True),
    ),
    "_log_softmax": Activation(None, keeps_zero=False, elementwise=0, is_softmax=True),
    **dict.fromkeys(["exp", "exp2", "softplus"], _EXP),
    **dict.fromkeys(["reciprocal", "rsqrt"], Activation(ACTIVATED, keeps_zero=False, nonnegative=like_input)),
    **dict.fromkeys("log log2 log10 logit cos threshold".split(), Activation(0, keeps_zero=False)),
    **dict.fromkeys(["pow", "float_power"], power),
    **dict.fromkeys(["where", "maximum", "minimum", "fmax", "fmin"], choice),
    **dict.fromkeys(["native_dropout"], OneInput(keeps_zero=True, elementwise=AFFINE)),
}
