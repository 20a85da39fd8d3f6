"""Operations with one input and one output: activations, scales with a shift, guards, and norms.

Probability passes through unchanged. Their ordinary gradients would not do: a saturated tanh would lose it.

A batch norm is part of the layer before it. Others pass probability through: the paper's rule for local response
normalization applies to every norm that rescales units by a common factor. Jointly, that factor is a constant, and the
mean that some norms subtract is part of the linear map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, CURVED, SIGNED, Facts, Gate, Link, common_source, never_negative, sources
from ebcli.eb.operations import Op, Value
from ebcli.eb.rules.rule import MISSING, Arrived, How, Join, Rule, Share, Winner


@dataclass(eq=False, kw_only=True)
class OneInput(Rule):
    """y = f(a): P(i) = P(n). If the signal was broadcast, the probabilities of its copies are added.

    Args:
        at: which of the inputs a is. All others are gates.
        keeps_zero: zero maps to zero.
        elementwise: what kind of function of each element it is; 0 if an element depends on other ones, as in a norm.
        nonnegative: whether the value is never negative; None if it is not where the inputs are not.
        gate: how clearly the value is meant to be a factor, at least; None: not at all.
        is_softmax: it is one, or its logarithm.
        transposed: (operation, G) -> M^T G, of the value's shape.
    """

    at: int = 0
    keeps_zero: bool = False
    elementwise: int = CURVED
    nonnegative: bool | None = False
    gate: int | None = 0
    is_softmax: bool = False
    transposed: Callable[[Op, Tensor], Tensor] = lambda _, G: G

    def operands(self, op: Op) -> list[Value]:
        return [op.inputs[self.at]]

    def keeps(self, op: Op) -> Sequence[Value]:
        return *(value for value in op.inputs if value not in op.operands), *op.outs[1:]

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative = facts.nonnegative if self.nonnegative is None else self.nonnegative
        facts.gate = 0 if self.gate is None else max(self.gate, facts.gate)
        facts.elementwise = self.elementwise if op.out.shape == op.operands[0].shape else 0
        facts.is_softmax = self.is_softmax

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        signs = self.signs(op, how) if op.signal.facts.is_open else how.signs
        below = How(signs, how.above_classifier, spares_zeros=how.spares_zeros and self.keeps_zero)
        return [(self.moved_back(op, P[0]), below)]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        return [self.moved_back(op, self.slope(op, G[0]))]

    def signs(self, op: Op, how: How) -> int | Tensor | None:
        """The signs of the responses of the layer below, if both are one neuron."""
        return how.signs

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """The weight of the input, of the value's shape."""
        return self.transposed(op, G)

    def moved_back(self, op: Op, found: Tensor) -> Tensor:
        """What arrives at the operand, by what was found for each element of the value."""
        return found.sum_to_size(op.operands[0].shape)


@dataclass(eq=False, kw_only=True)
class Activation(OneInput):
    """h = f(u). Jointly, the unit wins P = max(h G, 0), and the weight of u is P / u.

    Args:
        link: to what it is a function of, if it is made of several operations, such as x * sigmoid(x).
    """

    keeps_zero: bool = True
    gate: int | None = Gate.ACTIVATED
    link: Link | None = None

    def operands(self, op: Op) -> list[Value]:
        return [self.link.source if self.link else op.signal]

    def keeps(self, op: Op) -> Sequence[Value]:
        return *op.operands, *op.outs

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.activations += 1
        if self.link:
            facts.elementwise = 0 if self.link.moves else facts.elementwise
        elif facts.elementwise and not facts.nonnegative and op.signal.facts.elementwise:
            *_, link = sources(op.signal)
            facts.nonnegative = never_negative(op, link.source)

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """P / u, which is 0 where u is."""
        u = op.operands[0].tensor
        u = self.link.rearranged(u) if self.link else u
        # h / |u|, in memory that is there: new memory takes longer than the division
        share = op.once(lambda: torch.div(op.out.tensor, size := u.abs(), out=size).nan_to_num_(0.0, 0.0, 0.0))
        return (G * share).clamp_(min=0).copysign_(u)

    def slopes_above_classifier(self, op: Op, G: Arrived) -> list[Tensor | None]:
        """There, nothing competes: the dual of a class is a unit of the classifier, not of what follows it."""
        return [self.moved_back(op, G[0].where(op.out.tensor != 0, 0))]

    def moved_back(self, op: Op, found: Tensor) -> Tensor:
        return super().moved_back(op, self.link.back(found) if self.link else found)


@dataclass(eq=False, kw_only=True)
class Rectifier(Activation):
    """A ReLU, which may be cut off above. Behind a layer, both are one neuron."""

    nonnegative: bool | None = True
    gate: int | None = Gate.BOUNDED
    is_bounded: bool = False

    def keeps(self, op: Op) -> Sequence[Value]:
        return super().keeps(op) if self.is_bounded else op.outs

    def signs(self, op: Op, how: How) -> int | Tensor | None:
        if how.above_classifier:
            return how.signs
        # inactive neurons, whose response is not positive, have no probability, unless something was added behind them
        return 1 if how.spares_zeros else torch.where(op.out.tensor > 0, 1, -1)

    def slope(self, op: Op, G: Tensor) -> Tensor:
        return super().slope(op, G) if self.is_bounded else G.clamp(min=0) * (op.out.tensor > 0)


@dataclass(eq=False, kw_only=True)
class Scale(OneInput):
    """y = c a + d, which is no activation. Behind a layer, both are one neuron, whose weights have the sign of c.

    Args:
        keeps_zero: d is 0.
        factor: c, of any shape that broadcasts.
        turns: it changes signs, so that a gate is no clear one any more.
    """

    keeps_zero: bool = True
    elementwise: int = AFFINE
    factor: Callable[[Op], Any] = lambda _: 1
    turns: bool = False

    def keeps(self, op: Op) -> Sequence[Value]:
        return *super().keeps(op), *(out for out in op.outs[:1] if out.facts.is_open)

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.is_open = op.signal.facts.is_open
        if self.turns:
            facts.gate = SIGNED.get(facts.gate, facts.gate)

    def signs(self, op: Op, how: How) -> int | Tensor | None:
        factor, signs = self.factor(op), how.signs
        turned = factor.sign() if isinstance(factor, Tensor) else (factor > 0) - (factor < 0)
        is_positive = bool((turned > 0).all()) if isinstance(turned, Tensor) else turned > 0
        if signs is None and how.above_classifier:
            signs = 1
        elif signs is None and not (self.keeps_zero and is_positive):
            signs = op.out.tensor.sign()
        return signs if signs is None or is_positive else signs * turned

    def slope(self, op: Op, G: Tensor) -> Tensor:
        factor = self.factor(op)
        return G if isinstance(factor, (int, float)) and factor == 1 else G * factor


def clamped(op: Op) -> Rule:
    """The rule of a clamp: a ReLU, which may be cut off above, or a guard."""
    least, most = (op.named.get(name, op.named.get(f"{name}_val")) for name in ("min", "max"))
    if isinstance(least, (int, float)) and least >= 0:
        return _POSITIVE if least > 0 else _RELU if most is None else _RELU6
    return _BOUND if isinstance(most, (int, float)) and most >= 0 else _ANY_BOUND


def thresholded(op: Op) -> Rule:
    """A ReLU, which may be 0 up to a positive threshold; or a jump to another value."""
    threshold, value = op.args[1:3]
    if threshold < 0 or value < 0:
        return _SIGNED
    return _POSITIVE if value else _RELU6 if threshold else _RELU


_RELU, _RELU6 = Rectifier(), Rectifier(is_bounded=True)
_POSITIVE = Activation(gate=Gate.BOUNDED, keeps_zero=False, nonnegative=True)
# a bound against overflow, or rounding, which hardly ever changes a value, is no activation
_BOUND, _ANY_BOUND = (OneInput(elementwise=AFFINE, nonnegative=told) for told in (None, False))


def power(op: Op) -> Rule:
    exponent, base = op.args[1], op.args[0]
    if not isinstance(base, Value):  # 2 ** y
        return _POSITIVE
    if isinstance(exponent, Value):
        link = common_source(base, exponent)
        return MISSING if link is None else written_out(op, link, 0)
    if isinstance(exponent, (int, float)):
        if exponent == 1:
            return Scale(nonnegative=None)
        return _EVEN if exponent > 0 and exponent % 2 == 0 else _ODD if exponent > 0 else _INVERSE
    return _SIGNED


_SIGNED = Activation(gate=0, keeps_zero=False)
_EVEN = Activation(gate=0, nonnegative=True)
_ODD = Activation(gate=0, nonnegative=None)
_INVERSE = Activation(gate=Gate.MASK, keeps_zero=False, nonnegative=None)


def written_out(op: Op, link: Link, gate: int | None = Gate.ACTIVATED, *, keeps_zero: bool = False) -> Activation:
    """The rule of the last operation of an activation that is made of several."""
    return Activation(gate=gate, keeps_zero=keeps_zero, nonnegative=never_negative(op, link.source), link=link)


def choice(op: Op) -> Rule:
    """max(x, 0) and where(x > 0, x, x / 5) are activations; a choice between different signals moves values."""
    if op.name != "where" or isinstance(op.args[0], Value):
        link = common_source(*op.inputs)
        others = [a for a in op.args if isinstance(a, (Tensor, Value))]
        if link is not None and all(a.shape.numel() <= link.source.shape.numel() for a in others):
            return written_out(op, link)
    return Join() if op.name == "where" else Winner()


def _batch_factor(op: Op) -> Tensor:
    gamma, variance, eps = op.numbers("weight", "running_var", "eps" if "eps" in op.named else "epsilon")
    factor = (variance + eps).rsqrt()
    factor = factor if gamma is None else factor * gamma
    return factor.to(op.out.dtype).reshape(1, -1, *[1] * (len(op.out.shape) - 2))


def _norm(op: Op, G: Tensor) -> Tensor:
    """M^T G, in which the factor of each group is a constant.

    Groups follow one another, as of a layer norm. With the batch's own statistics, each channel is a group.
    """
    is_of_batch, has_mean = "batch_norm" in op.name, op.name != "_fused_rms_norm"
    (gamma,), factor = op.numbers("weight"), op.outs[1 + has_mean].tensor.reshape(-1, 1)
    is_by_channel = gamma is not None and (is_of_batch or op.name == "native_group_norm")
    g = G * (1 if gamma is None else gamma.reshape(-1, *[1] * (G.ndim - 2)) if is_by_channel else gamma)
    g = g.transpose(0, 1) if is_of_batch else g
    rows = g.reshape(len(factor), G.numel() // max(len(factor), 1)).mul_(factor)
    rows = rows.sub_(rows.mean(-1, keepdim=True)) if has_mean else rows
    return rows.reshape(g.shape).transpose(0, 1) if is_of_batch else rows.reshape(g.shape)


_BATCH_NORM = Scale(factor=lambda op: op.once(lambda: _batch_factor(op)), keeps_zero=False, gate=None, elementwise=0)
_NORM = OneInput(gate=None, elementwise=0, transposed=_norm)


def batch_norm(op: Op) -> Rule:
    return _NORM if op.named.get("training") or op.named.get("running_var") is None else _BATCH_NORM


ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    "relu": _RELU,
    "clamp clip clamp_min clamp_max hardtanh": clamped,
    "leaky_relu elu celu _prelu_kernel rrelu_with_noise hardswish silu gelu mish tanh hardshrink softshrink erf asinh "
    "atan sinh sin expm1 log1p rrelu tan": Activation(nonnegative=None),
    "nan_to_num round trunc native_dropout": OneInput(keeps_zero=True, elementwise=AFFINE, nonnegative=None),
    "sign sgn": _ODD,
    "abs sqrt": _EVEN,
    "sigmoid hardsigmoid": Activation(gate=Gate.SWITCH, keeps_zero=False, nonnegative=True),
    "_softmax _safe_softmax _masked_softmax": Activation(
        gate=Gate.SWITCH, keeps_zero=False, nonnegative=True, elementwise=0, is_softmax=True
    ),
    "_log_softmax": Activation(gate=None, keeps_zero=False, elementwise=0, is_softmax=True),
    "exp exp2 softplus": _POSITIVE,
    "reciprocal rsqrt": _INVERSE,
    "log log2 log10 logit cos": _SIGNED,
    "threshold": thresholded,
    "pow float_power": power,
    "where maximum minimum fmax fmin": choice,
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update "
    "_native_batch_norm_legit_no_training _batch_norm_no_update": batch_norm,
    "native_layer_norm native_group_norm _fused_rms_norm": _NORM,
}
