"""Layers with weights: convolutions and matrix products with a constant. And attention: products of two signals.

Attention weights are non-negative, so they are the excitatory weights of Eq. 4, with the values as inputs. Queries and
keys only determine the weights and get nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.facts import MIXED, SWITCH, inherited, signal_of, values_of
from benchmarks.engine.products import Blocks, LinearMap, Neurons
from benchmarks.engine.record import Op, Value, aten
from benchmarks.engine.rules.rule import ENDS, MISSING, Arrived, How, Rule, Share

Half = Callable[[Tensor], Tensor]


_NO_BIAS = object()


class Layer(Rule):
    """y = W a + b: P_in = a * W^T (P / Z), by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        linear: W.
        at: which operand the signal is.
    """

    def __init__(self, linear: Callable[[Op], LinearMap], at: int = 0) -> None:
        super().__init__()
        self._linear, self.position = linear, at

    @property
    def is_learned(self) -> bool:
        """Whether it has weights, so that it can be the classifier."""
        return True

    def rearranges(self, op: Op) -> bool:
        return False

    def keeps(self, op: Op) -> Sequence[Value]:
        return (*op.inputs, *op.outs)

    def takes(self, op: Op, at: int) -> bool:
        return at == self.position

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative, facts.is_open = False, True
        facts.gate = MIXED if facts.gate in (MIXED, SWITCH) else 0
        facts.layers += 1
        op.out.facts = facts

    def is_linear(self, op: Op) -> bool:
        return self._bias(op) is _NO_BIAS

    def averages(self, op: Op) -> bool:
        return op.out.shape.numel() <= op.operands[self.position].shape.numel() and self._linear(op).averages

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        found: list[Share] = [None] * len(op.operands)
        below = How(None, how.above_classifier and not self.is_learned, spares_zeros=True)
        found[self.position] = self._neurons(op, how).shares(P[0]), below
        return found

    def loses(self, op: Op, how: How) -> Tensor | None:
        return self._neurons(op, how).normalizer == 0

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        assert G[0] is not None
        found: list[Tensor | None] = [None] * len(op.operands)
        found[self.position] = self._linear(op).transposed(G[0], op.operands[self.position].tensor)
        return found

    def _neurons(self, op: Op, how: How) -> Neurons | Blocks:
        linear, signal, signs = self._linear(op), op.operands[self.position], how.signs
        nonnegative, a = signal.facts.nonnegative, signal.tensor
        if signs is None:
            is_positive = how.above_classifier if self.is_learned else linear.is_nonnegative and nonnegative
            signs = 1 if is_positive else op.out.tensor
        if not nonnegative and signal.maker is None and not a.is_meta:
            nonnegative = bool((a >= 0).all())  # which changes no number
        product, bias = None, self._bias(op)
        if op.out.kept is not None and bias is not None:
            product, bias = (op.out.kept, None) if bias is _NO_BIAS else (op.out.kept - bias, bias)
        return self._made(op, linear, a, nonnegative=nonnegative, signs=signs, product=product, bias=bias)

    def _made(
        self, op: Op, linear: LinearMap, a: Tensor, *, product: Any, bias: Any, **options: Any
    ) -> Neurons | Blocks:
        return Neurons(linear, a, product=product, bias=bias, **options)

    def _bias(self, op: Op) -> Any:
        """b, shaped to be added to the response; `_NO_BIAS` if there is none, None if it is unknown."""
        return None

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        linear, labels = self._linear(op), of[self.position]
        ones = torch.ones_like(linear.weight, dtype=labels.dtype) if linear.weight is not None else None
        return [weighted_label(lambda a: linear.apply(a) if ones is None else linear.apply(a, ones), labels)]


def weighted_label(apply: Half, labels: Tensor) -> Tensor:
    """The labels of sums with non-negative weights: the mean of different ones, without those that are -1."""
    is_labeled = (labels >= 0).to(labels.dtype)
    total = apply(is_labeled)
    return torch.where(total == 0, -1, apply(labels * is_labeled) / total)


class Convolution(Layer):
    def __init__(self) -> None:
        super().__init__(_convolution)

    def _bias(self, op: Op) -> Any:
        bias = op.args[2]
        return _NO_BIAS if bias is None else bias.reshape(1, -1, *[1] * (len(op.out.shape) - 2))


def _convolution(op: Op) -> LinearMap:
    # input (B, in, ...), weight (out, in / groups, ...); if transposed, (in, out / groups, ...)
    weight, options, signal = op.args[1], op.args[3:9], op.operands[0]

    def back(q: Tensor, w: Tensor) -> Tensor:
        mask = [True, False, False]
        result: Tensor = aten.convolution_backward(q, signal.tensor, w, None, *options, mask)[0]
        return result

    is_transposed, groups = options[3], options[5]
    return LinearMap(
        lambda a, w: aten.convolution(a, w, None, *options),
        weight,
        _by_output(weight, groups if is_transposed else None) if len(signal.shape) == weight.ndim else None,
        back=back,
    )


def _by_output(weight: Tensor, groups: int | None) -> Callable[[Tensor], Tensor]:
    """A function from scales (C_out,) to a tensor that scales the weight by output; with `groups`, if transposed."""

    def by_output(scale: Tensor) -> Tensor:
        if groups is None:
            return scale.reshape(-1, *[1] * (weight.ndim - 1))
        rows = weight.shape[0] // groups  # inputs of one group, connected to all outputs of that group
        by_row = scale.reshape(groups, -1).repeat_interleave(rows, dim=0)
        return by_row.reshape(*by_row.shape, *[1] * (weight.ndim - 2))

    return by_output


_CONVOLUTION = Convolution()


def convolution(op: Op) -> Rule:
    return _CONVOLUTION if isinstance(op.args[0], Value) and len(op.inputs) == 1 else MISSING


_FACTORS = {"addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}  # where the factors are, behind the bias


def _factors(op: Op) -> tuple[Any, Any]:
    first = _FACTORS.get(op.name, 0)
    left, right = op.args[first : first + 2]
    return left, right


def _product_of(op: Op) -> Callable[[Tensor, Tensor], Tensor]:
    return (lambda a, b: (a @ b).sum(0)) if op.name == "addbmm" else torch.matmul


class MatrixProduct(Layer):
    """A constant matrix and a signal.

    Args:
        is_left: the signal is the left factor.
    """

    def __init__(self, *, is_left: bool) -> None:
        super().__init__(self._map)
        self._is_left = is_left

    def _map(self, op: Op) -> LinearMap:
        left, right = _factors(op)
        product, alpha = _product_of(op), op.kwargs.get("alpha", 1)
        weight = right if self._is_left else left
        weight = weight if alpha == 1 else weight * alpha
        is_plain = op.name in ("mm", "bmm", "addmm", "baddbmm")
        if self._is_left:
            by_output = (lambda scale: scale[None]) if op.name in ("mm", "addmm") else None
            return LinearMap(product, weight, by_output, back=(lambda q, w: q @ w.mT) if is_plain else None)
        return LinearMap(lambda a, w: product(w, a), weight, back=(lambda q, w: w.mT @ q) if is_plain else None)

    def _bias(self, op: Op) -> Any:
        return op.args[0] * op.kwargs.get("beta", 1) if op.name in _FACTORS else _NO_BIAS

    def _made(
        self, op: Op, linear: LinearMap, a: Tensor, *, product: Any, bias: Any, **options: Any
    ) -> Neurons | Blocks:
        if self._is_left and op.name in ("mm", "addmm") and Blocks.suit(linear.weight):
            assert linear.weight is not None
            return Blocks(linear.weight.t(), a, **options)
        return Neurons(linear, a, product=product, bias=bias, **options)


class Weighed(Layer):
    """A matrix product of two signals, of which one holds the weights of the other's elements, as attention does.

    Args:
        at: which factor holds the values.
    """

    def __init__(self, at: int) -> None:
        super().__init__(self._map, at)

    @property
    def is_learned(self) -> bool:
        return False

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.mixtures += self.mixes(op)
        op.out.facts = facts

    def mixes(self, op: Op) -> bool:
        return op.inputs[0].shape[-1] > 1

    def averages(self, op: Op) -> bool:
        return False

    def _map(self, op: Op) -> LinearMap:
        product, weights = _product_of(op), op.inputs[1 - self.position]
        w = weights.tensor
        apply = (lambda a, w: product(w, a)) if self.position else product
        back = (lambda q, w: w.mT @ q) if self.position else (lambda q, w: q @ w.mT)
        if weights.facts.nonnegative:
            return LinearMap(lambda a: apply(a, w), back=(lambda q: back(q, w)) if op.name in ("mm", "bmm") else None)
        positive, negative = w.clamp(min=0), (-w).clamp(min=0)
        return LinearMap(lambda a: apply(a, positive), negative=lambda a: apply(a, negative))

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of the queries, in whose place the result is."""
        product, labels = _product_of(op), of[1 - self.position]
        ones = torch.ones_like(of[self.position])
        apply = (lambda a: product(a, ones)) if self.position else (lambda a: product(ones, a))
        return [weighted_label(apply, labels)]


_BY_SIDE = {True: MatrixProduct(is_left=True), False: MatrixProduct(is_left=False)}
_WEIGHED = Weighed(0), Weighed(1)


def matrix_product(op: Op) -> Rule:
    left, right = _factors(op)
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return _BY_SIDE[isinstance(left, Value)]
    if left.shape[-1] == 1 and op.name in ("mm", "bmm", "baddbmm"):  # each element is a product of two
        at = signal_of(left, right, (*left.shape[:-1], right.shape[-1]))
    else:
        at = values_of(left, right)
    return MISSING if at is None else _WEIGHED[at]


class Attention(Layer):
    """Values weighed by attention, in one operation: (..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev)."""

    def __init__(self, at: int) -> None:
        super().__init__(_attention, at)

    @property
    def is_learned(self) -> bool:
        return False

    def keeps(self, op: Op) -> Sequence[Value]:
        return (*op.inputs, op.out)

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative, facts.gate = op.operands[self.position].facts.nonnegative, 0
        facts.mixtures += 1
        for out in op.outs:
            out.facts = facts

    def mixes(self, op: Op) -> bool:
        return True

    def averages(self, op: Op) -> bool:
        return False

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of the queries, in whose place the result is."""
        labels = of[0][..., :1] if isinstance(op.args[0], Value) else torch.full_like(op.args[0][..., :1], -1)
        return [labels.expand(out.shape) if out is op.out else torch.zeros(out.shape) for out in op.outs]


def _attention(op: Op) -> LinearMap:
    named = {k: v.tensor if isinstance(v, Value) else v for k, v in op.named.items()}
    q, k = named["query"], named["key"]
    repeats = q.shape[-3] // k.shape[-3] if q.ndim > 3 else 1
    k = k if repeats == 1 else k.repeat_interleave(repeats, -3)
    scale = named.get("scale")
    logits = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if named.get("is_causal"):
        logits = logits + torch.full_like(logits, -math.inf).triu(1)
    bias = named.get("attn_mask", named.get("attn_bias"))
    if bias is not None:
        logits = logits + (
            torch.zeros_like(bias, dtype=q.dtype).masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else bias
        )
    A = logits.softmax(-1).nan_to_num()
    if repeats > 1:
        return LinearMap(lambda a: A @ a.repeat_interleave(repeats, -3))
    return LinearMap(lambda a: A @ a, back=lambda g: A.mT @ g)


def attention(op: Op) -> Rule:
    value = op.named["value"]
    if not isinstance(value, Value):
        return ENDS
    return Attention(max(i for i, a in enumerate(op.inputs) if a is value))


ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    **dict.fromkeys(["convolution", "_convolution"], convolution),
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "vdot", "addmm", "baddbmm", "addmv", "addbmm"], matrix_product),
    **{
        f"_scaled_dot_product_{kind}": attention
        for kind in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
    },
}
