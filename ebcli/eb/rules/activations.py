"""Operations with one input and one output: activations, scales with a shift, guards, and norms.

Probability passes through unchanged. Their ordinary gradients would not do: a saturated tanh would lose it.

A batch norm is part of the layer before it. Others pass probability through: the paper's rule for local response
normalization applies to every norm that rescales units by a common factor. Jointly, that factor is a constant, and the
mean that some norms subtract is part of the linear map.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import (
    AFFINE,
    AFTER_SIGNS,
    NONLINEAR,
    Facts,
    Gate,
    Link,
    common_source,
    never_negative,
    sources,
)
from ebcli.eb.operations import Op, Value, Values, trailing_axes
from ebcli.eb.places import Marks, Places
from ebcli.eb.rules.moves import MISSING, Join, Winner, is_scalar
from ebcli.eb.rules.rule import BackwardContext, Choice, Gradients, Incoming, Rule, Shares, Table


@dataclass(eq=False, kw_only=True)
class Unary(Rule):
    """y = f(a): P(i) = P(n). If the signal was broadcast, the probabilities of its copies are added.

    Args:
        position: of a among the inputs. All others are gates.
        keeps_zero: zero maps to zero.
        elementwise: what kind of function of each element it is; 0 if an element depends on other ones, as in a norm.
        nonnegative: whether the value is never negative; None if it is not where the inputs are not.
        gate: how clearly the value is meant to be a factor, at least; None: not at all.
        is_softmax: it is one, or its logarithm.
        transposed: (operation, G) -> M^T G, of the value's shape.
    """

    position: int = 0
    keeps_zero: bool = False
    elementwise: int = NONLINEAR
    nonnegative: bool | None = False
    gate: int | None = 0
    is_softmax: bool = False
    transposed: Callable[[Op, Tensor], Tensor] = lambda _, G: G

    def operands(self, op: Op) -> Values:
        return [op.inputs[self.position]]

    def needs(self, op: Op) -> Values:
        return *(value for value in op.inputs if value not in op.operands), *op.outs[1:]

    def describe(self, op: Op, facts: Facts) -> None:
        if self.nonnegative is not None:
            facts.nonnegative = self.nonnegative
        facts.gate = 0 if self.gate is None else max(self.gate, facts.gate)
        if op.out.shape == op.operand.shape:
            facts.elementwise = self.elementwise
        facts.is_softmax = self.is_softmax

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        signs = self.signs(op, context) if op.signal.facts.is_open else context.signs
        context_below = BackwardContext(
            signs, context.above_classifier, skips_zeros=context.skips_zeros and self.keeps_zero
        )
        return [(self.moved_back(op, P[0]), context_below)]

    def slopes(self, op: Op, G: Incoming) -> Gradients:
        return [self.moved_back(op, self.slope(op, G[0]))]

    def places(self, op: Op, places: Places) -> Marks:
        return places.merge(op)

    def signs(self, op: Op, context: BackwardContext) -> int | Tensor | None:
        """The signs of the responses of the layer below, if both are one neuron."""
        return context.signs

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """The weight of the input, of the value's shape."""
        return self.transposed(op, G)

    def moved_back(self, op: Op, incoming: Tensor) -> Tensor:
        """What arrives at the operand, of what is for each element of the value."""
        return incoming.sum_to_size(op.operand.shape)


@dataclass(eq=False, kw_only=True)
class Activation(Unary):
    """h = f(u). Jointly, the unit wins P = max(h G, 0), and the weight of u is P / u.

    Args:
        link: to what it is a function of, if it is made of several operations, such as x * sigmoid(x).
    """

    keeps_zero: bool = True
    gate: int | None = Gate.ACTIVATION
    link: Link | None = None

    def link_of(self, op: Op) -> Link:
        return self.link or Link(op.signal)

    def operands(self, op: Op) -> Values:
        return [self.link_of(op).source]

    def needs(self, op: Op) -> Values:
        return *op.operands, *op.outs

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.activations += 1
        if self.link_of(op).moves:
            facts.elementwise = 0
        if self.link is None and facts.elementwise and not facts.nonnegative and op.signal.facts.elementwise:
            *_, link = sources(op.signal)
            facts.nonnegative = never_negative(op, link.source)

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """P / u, which is 0 where u is."""
        u = self.link_of(op).rearrange(op.operand.tensor)
        return (G * self.gain(op, u)).clamp_(min=0).copysign_(u)

    def gain(self, op: Op, u: Tensor) -> Tensor:
        """h / |u|, and 0 where u is."""
        gain: Tensor = op.memoize(lambda: _quotient(op.out.tensor, u.abs()))
        return gain

    def slopes_of_relevance(self, op: Op, G: Incoming) -> Gradients:
        """What u is multiplied with to have the relevance h G: G h / u."""
        u = self.link_of(op).rearrange(op.operand.tensor)
        return [self.moved_back(op, G[0] * self.gain(op, u) * u.sign())]

    def slopes_above_classifier(self, op: Op, G: Incoming) -> Gradients:
        """There, nothing competes: the dual of a class is a unit of the classifier, not of what follows it."""
        return [self.moved_back(op, G[0].where(op.out.tensor != 0, 0))]

    def moved_back(self, op: Op, incoming: Tensor) -> Tensor:
        return super().moved_back(op, self.link_of(op).pull_back(incoming))

    def places(self, op: Op, places: Places) -> Marks:
        link = self.link_of(op)
        if not link.moves:
            return places.merge(op)
        return places.merge(op, link.rearrange(places.marks_of(link.source).expand(link.source.shape)))


def _quotient(h: Tensor, size: Tensor) -> Tensor:
    """h / |u|, and 0 where u is, in memory that is there: new memory takes longer than the division."""
    quotient = torch.div(h, size, out=size) if h.shape == size.shape else h / size
    return quotient.nan_to_num_(0.0, 0.0, 0.0)


@dataclass(eq=False, kw_only=True)
class Rectifier(Activation):
    """A ReLU, which may be cut off above. Behind a layer, both are one neuron."""

    nonnegative: bool | None = True
    gate: int | None = Gate.NONNEGATIVE
    is_bounded: bool = False

    def needs(self, op: Op) -> Values:
        if self.is_bounded:
            return super().needs(op)
        return op.outs

    def signs(self, op: Op, context: BackwardContext) -> int | Tensor | None:
        if context.above_classifier:
            return context.signs
        # inactive neurons, whose response is not positive, have no probability, unless something was added behind them
        if context.skips_zeros:
            return 1
        return torch.where(op.out.tensor > 0, 1, -1)

    def slope(self, op: Op, G: Tensor) -> Tensor:
        if self.is_bounded:
            return super().slope(op, G)
        return G.clamp(min=0) * (op.out.tensor > 0)

    def slopes_of_relevance(self, op: Op, G: Incoming) -> Gradients:
        if self.is_bounded:
            return super().slopes_of_relevance(op, G)
        return [self.moved_back(op, G[0] * (op.out.tensor > 0))]


@dataclass(eq=False, kw_only=True)
class Scale(Unary):
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

    def needs(self, op: Op) -> Values:
        return *super().needs(op), *(out for out in op.outs[:1] if out.facts.is_open)

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.is_open = op.signal.facts.is_open
        if self.turns:
            facts.gate = AFTER_SIGNS.get(facts.gate, facts.gate)

    def signs(self, op: Op, context: BackwardContext) -> int | Tensor | None:
        factor = self.factor(op)
        signs = context.signs
        turn: Any = factor.sign() if isinstance(factor, Tensor) else (factor > 0) - (factor < 0)
        is_positive = bool(torch.as_tensor(turn > 0).all())
        if signs is None and context.above_classifier:
            signs = 1
        elif signs is None and not (self.keeps_zero and is_positive):
            signs = op.out.tensor.sign()
        if signs is None or is_positive:
            return signs
        return signs * turn

    def slope(self, op: Op, G: Tensor) -> Tensor:
        factor = self.factor(op)
        if is_scalar(factor) and factor == 1:
            return G
        return G * factor


def clamp(op: Op) -> Rule:
    """A ReLU, which may be cut off above, or a guard."""
    minimum = op.arguments.get("min", op.arguments.get("min_val"))
    maximum = op.arguments.get("max", op.arguments.get("max_val"))
    if is_scalar(minimum) and minimum >= 0:
        if minimum > 0:
            return POSITIVE
        if maximum is None:
            return RELU
        return RELU6
    if is_scalar(maximum) and maximum >= 0:
        return BOUND
    return ANY_BOUND


def threshold(op: Op) -> Rule:
    """A ReLU, which may be 0 up to a positive threshold; or a jump to another value."""
    limit, value = op.args[1:3]
    if limit < 0 or value < 0:
        return SIGNED_VALUES
    if value:
        return POSITIVE
    if limit:
        return RELU6
    return RELU


def power(op: Op) -> Rule:
    base, exponent = op.args[:2]
    if not isinstance(base, Value):  # 2 ** y
        return POSITIVE
    if isinstance(exponent, Value):
        link = common_source(base, exponent)
        return written_out(op, link, 0) if link else MISSING
    if not is_scalar(exponent):
        return SIGNED_VALUES
    return _fixed_power(exponent)


def _fixed_power(exponent: float) -> Rule:
    if exponent == 1:
        return Scale(nonnegative=None)
    if exponent <= 0:
        return INVERSE
    return EVEN if exponent % 2 == 0 else ODD


def written_out(
    op: Op, link: Link, gate: int | None = Gate.ACTIVATION, *, keeps_zero: bool = False
) -> Activation:
    """The rule of the last operation of an activation that is made of several."""
    return Activation(
        gate=gate, keeps_zero=keeps_zero, nonnegative=never_negative(op, link.source), link=link
    )


def _choice_as_activation(op: Op) -> Rule | None:
    """The rule of a choice between functions of one signal, such as max(x, 0) and where(x > 0, x, x / 5)."""
    link = common_source(*op.inputs)
    if link is None:
        return None
    sizes = (a.shape.numel() for a in op.args if isinstance(a, (Tensor, Value)))
    return None if max(sizes) > link.source.numel else written_out(op, link)


def maximum(op: Op) -> Rule:
    return _choice_as_activation(op) or Winner()


def where(op: Op) -> Rule:
    """By a constant condition, values move."""
    return (isinstance(op.args[0], Value) and _choice_as_activation(op)) or Join()


def _by_channel(op: Op, numbers: Tensor) -> Tensor:
    return trailing_axes(numbers[None].to(op.out.dtype), op.out.ndim)


def _batch_factor(op: Op) -> Tensor:
    gamma, variance, eps, epsilon = op.numbers("weight", "running_var", "eps", "epsilon")
    factor = (variance + (eps or epsilon or 0)).rsqrt()
    if gamma is not None:
        factor = factor * gamma
    return _by_channel(op, factor)


class BatchNorm(Scale):
    """By running statistics."""

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        coefficients = partial(self.coefficients, op)
        return [s and (s[0], s[1]._replace(norm=coefficients)) for s in super().shares(op, P, context)]

    def coefficients(self, op: Op) -> tuple[Tensor, Tensor]:
        """c and d in y = c a + d."""
        mean, beta = op.numbers("running_mean", "bias")
        factor = self.factor(op)
        shift = -_by_channel(op, mean) * factor
        if beta is not None:
            shift = shift + _by_channel(op, beta)
        return factor, shift


@dataclass(eq=False, kw_only=True)
class Norm(Unary):
    """A norm by statistics of the values themselves, of groups that follow one another, as of a layer norm.

    Args:
        by_channel: the weight has an element for each channel, on axis 1.
        of_batch: each channel is a group, with the batch's own statistics.
        has_mean: the mean is subtracted.
    """

    gate: int | None = None
    elementwise: int = 0
    by_channel: bool = False
    of_batch: bool = False
    has_mean: bool = True

    def slope(self, op: Op, G: Tensor) -> Tensor:
        """M^T G, in which the factor of each group is a constant."""
        (gamma,) = op.numbers("weight")
        factor = op.outs[1 + self.has_mean].tensor.reshape(-1, 1)
        if gamma is not None and self.by_channel:
            gamma = trailing_axes(gamma, G.ndim - 1)
        if gamma is not None:
            G = G * gamma
        if self.of_batch:
            G = G.transpose(0, 1)
        groups = G.reshape(len(factor), G.numel() // max(len(factor), 1)) * factor
        if self.has_mean:
            groups = groups.sub_(groups.mean(-1, keepdim=True))
        G = groups.reshape(G.shape)
        if self.of_batch:
            return G.transpose(0, 1)
        return G

    def places(self, op: Op, places: Places) -> Marks:
        return places.reduce(op, op.signal, [0] if self.of_batch else [])


def batch_norm(op: Op) -> Rule:
    has_own_statistics = op.arguments.get("training") or op.arguments.get("running_var") is None
    if has_own_statistics:
        return _BATCH_NORM_OF_BATCH
    return _BATCH_NORM


class AttentionWeights(Activation):
    """The softmax of `scaled_dot_product_attention`."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.is_attention = True


RELU = Rectifier()
RELU6 = Rectifier(is_bounded=True)
POSITIVE = Activation(gate=Gate.NONNEGATIVE, keeps_zero=False, nonnegative=True)
SIGNED_VALUES = Activation(gate=0, keeps_zero=False)
EVEN = Activation(gate=0, nonnegative=True)
ODD = Activation(gate=0, nonnegative=None)
INVERSE = Activation(gate=Gate.MASK, keeps_zero=False, nonnegative=None)
SOFTMAX = Activation(gate=Gate.SWITCH, keeps_zero=False, nonnegative=True, elementwise=0, is_softmax=True)
# a bound against overflow, or rounding, which hardly ever changes a value, is no activation
BOUND = Unary(elementwise=AFFINE, nonnegative=None)
ANY_BOUND = Unary(elementwise=AFFINE)
_BATCH_NORM = BatchNorm(
    factor=lambda op: op.memoize(lambda: _batch_factor(op)), keeps_zero=False, gate=None, elementwise=0
)
_BATCH_NORM_OF_BATCH = Norm(by_channel=True, of_batch=True)

ENTRIES: Table = {
    "relu": RELU,
    "clamp clip clamp_min clamp_max hardtanh": Choice(clamp),
    "leaky_relu elu celu _prelu_kernel rrelu_with_noise hardswish silu gelu mish tanh hardshrink "
    "softshrink erf asinh atan sinh sin expm1 log1p rrelu tan": Activation(nonnegative=None),
    "nan_to_num round trunc native_dropout": Unary(keeps_zero=True, elementwise=AFFINE, nonnegative=None),
    "sign sgn": ODD,
    "abs sqrt": EVEN,
    "sigmoid hardsigmoid": Activation(gate=Gate.SWITCH, keeps_zero=False, nonnegative=True),
    "_softmax _masked_softmax": SOFTMAX,
    "_safe_softmax": AttentionWeights(
        **vars(SOFTMAX)
    ),  # scaled_dot_product_attention, where it is not one operation
    "_log_softmax": Activation(gate=None, keeps_zero=False, elementwise=0, is_softmax=True),
    "exp exp2 softplus": POSITIVE,
    "reciprocal rsqrt": INVERSE,
    "log log2 log10 logit cos": SIGNED_VALUES,
    "threshold": Choice(threshold),
    "pow float_power": Choice(power),
    "maximum minimum fmax fmin": Choice(maximum),
    "where": Choice(where),
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
    "_batch_norm_with_update _native_batch_norm_legit_no_training _batch_norm_no_update": Choice(batch_norm),
    "native_layer_norm": Norm(),
    "native_group_norm": Norm(by_channel=True),
    "_fused_rms_norm": Norm(has_mean=False),
}
