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
from benchmarks.engine.operations import SUMS, Op, Value, aten
from benchmarks.engine.products import LinearMap, shared
from benchmarks.engine.rules.rule import ENDS, MISSING, Arrived, How, Rule, Share


class Layer(Rule):
    """y = W a + b: P_in = a * W^T (P / Z), by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        linear: W.
        at: which input the signal is.
        is_learned: it has weights, so that it can be the classifier, and a norm can follow.
        nonnegative: whether the value is never negative.
    """

    def __init__(
        self,
        linear: Callable[[Op], LinearMap],
        at: int = 0,
        *,
        is_learned: bool = True,
        nonnegative: Callable[[Op], bool] = lambda _: False,
    ) -> None:
        self._linear, self._at, self.is_learned, self._nonnegative = linear, at, is_learned, nonnegative

    def operands(self, op: Op) -> list[Value]:
        return [op.inputs[self._at]]

    def keeps(self, op: Op) -> Sequence[Value]:
        return *op.inputs, *op.outs[:1]

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative, facts.is_open = self._nonnegative(op), self.is_learned
        facts.gate = MIXED if facts.gate in (MIXED, SWITCH) else 0
        facts.layers += self.is_learned
        for out in op.outs:
            out.facts = facts

    def averages(self, op: Op) -> bool:
        is_smaller = op.out.shape.numel() <= op.operands[0].shape.numel()
        return self.is_learned and is_smaller and self._linear(op).averages

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        linear, signal, signs = self._linear(op), op.operands[0], how.signs
        nonnegative, a = signal.facts.nonnegative, signal.tensor
        if signs is None:
            is_positive = how.above_classifier if self.is_learned else linear.is_nonnegative and nonnegative
            signs = 1 if is_positive else op.out.tensor
        if not nonnegative and signal.maker is None and not a.is_meta:
            nonnegative = bool((a >= 0).all())  # which changes no number
        parts = shared(linear, a, P[0], signs, nonnegative=nonnegative, response=op.out.kept, bias=self._bias(op))
        return [(parts, How(None, how.above_classifier and not self.is_learned, spares_zeros=True))]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        return [self._linear(op).transposed(G[0], op.operands[0].tensor)]

    def _bias(self, op: Op) -> Tensor | int | None:
        """b, shaped to be added to the response; None if it is unknown."""
        return None


class Convolution(Layer):
    def _bias(self, op: Op) -> Tensor | int:
        bias = op.args[2]
        return 0 if bias is None else bias.reshape(1, -1, *[1] * (len(op.out.shape) - 2))


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


_CONVOLUTION = Convolution(_convolution)


def convolution(op: Op) -> Rule:
    return _CONVOLUTION if isinstance(op.args[0], Value) and len(op.inputs) == 1 else MISSING


def _factors(op: Op) -> tuple[Any, Any]:
    first = op.name in SUMS  # behind the bias
    left, right = op.args[first : first + 2]
    return left, right


def _product_of(op: Op) -> Callable[[Tensor, Tensor], Tensor]:
    return (lambda a, b: (a @ b).sum(0)) if op.name == "addbmm" else torch.matmul


class MatrixProduct(Layer):
    """A constant matrix and a signal."""

    def __init__(self) -> None:
        super().__init__(_matrix)

    def _bias(self, op: Op) -> Tensor | int:
        return op.args[0] * op.kwargs.get("beta", 1) if op.name in SUMS else 0


def _matrix(op: Op) -> LinearMap:
    left, right = _factors(op)
    product, alpha = _product_of(op), op.kwargs.get("alpha", 1)
    is_left, is_plain = isinstance(left, Value), op.name in ("mm", "bmm", "addmm", "baddbmm")
    weight = (right if is_left else left) * alpha if alpha != 1 else right if is_left else left
    if not is_left:
        return LinearMap(lambda a, w: product(w, a), weight, back=(lambda q, w: w.mT @ q) if is_plain else None)
    by_output = (lambda scale: scale[None]) if op.name in ("mm", "addmm") else None
    return LinearMap(product, weight, by_output, back=(lambda q, w: q @ w.mT) if is_plain else None)


class Weighed(Layer):
    """Values weighed by numbers that depend on the image, as by attention: one more mixture."""

    def __init__(self, linear: Callable[[Op], LinearMap], at: int, nonnegative: Callable[[Op], bool]) -> None:
        super().__init__(linear, at, is_learned=False, nonnegative=nonnegative)

    def learn(self, op: Op) -> None:
        super().learn(op)
        op.out.facts.mixtures += op.inputs[0].shape[-1] > 1
        op.out.facts.gate = min(value.facts.gate for value in op.inputs)


def _of_two(at: int) -> Layer:
    """A matrix product of two signals, of which one holds the weights of the other's elements, as attention does."""

    def linear(op: Op) -> LinearMap:
        product, weights = _product_of(op), op.inputs[1 - at]
        w = weights.tensor
        apply = (lambda a, w: product(w, a)) if at else product
        if weights.facts.nonnegative:
            back = (lambda q: w.mT @ q) if at else (lambda q: q @ w.mT)
            return LinearMap(lambda a: apply(a, w), back=back if op.name in ("mm", "bmm") else None)
        positive, negative = w.clamp(min=0), (-w).clamp(min=0)
        return LinearMap(lambda a: apply(a, positive), negative=lambda a: apply(a, negative))

    return Weighed(linear, at, lambda op: all(value.facts.nonnegative for value in op.inputs))


_MATRIX, _WEIGHED = MatrixProduct(), (_of_two(0), _of_two(1))


def matrix_product(op: Op) -> Rule:
    left, right = _factors(op)
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return _MATRIX
    if left.shape[-1] == 1 and op.name in ("mm", "bmm", "baddbmm"):  # each element is a product of two
        at = signal_of(left, right, (*left.shape[:-1], right.shape[-1]))
    else:
        at = values_of(left, right)
    return MISSING if at is None else _WEIGHED[at]


def _attention(op: Op) -> LinearMap:
    """(..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev)."""
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
    at = max(i for i, a in enumerate(op.inputs) if a is value)
    return Weighed(_attention, at, lambda op: op.operands[0].facts.nonnegative)


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
