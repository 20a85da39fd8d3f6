"""Weighted sums: layers with weights, attention, and averages and interpolation by fixed weights.

Attention weights are non-negative, so they are the excitatory weights of Eq. 4, with the values as inputs. Queries and
keys only determine the weights and get nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ebcli.eb.facts import SUMMED, Facts, signal_of, values_of
from ebcli.eb.operations import SUMS, Op, Value, aten
from ebcli.eb.products import LinearMap, shared
from ebcli.eb.rules.rule import ENDS, MISSING, Arrived, How, Join, Rule, Share, Winner

_Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class Layer(Rule):
    """y = W a + b: P_in = a * W^T (P / Z), by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        linear: W.
        at: which input the signal is.
        is_learned: it has weights, so that it can be the classifier, and a norm can follow.
        has_no_negatives: neither its weights nor its bias are ever negative.
        bias: b, shaped to be added to the response; 0 if there is none, and None if it is unknown.
    """

    linear: Callable[[Op], LinearMap]
    at: int = 0
    is_learned: bool = True
    has_no_negatives: bool = False
    bias: Callable[[Op], Tensor | int | None] = lambda _: None

    def operands(self, op: Op) -> list[Value]:
        return [op.inputs[self.at]]

    def keeps(self, op: Op) -> Sequence[Value]:
        return *op.inputs, *(out for out in op.outs[:1] if not out.facts.nonnegative)  # whose signs matter

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative = self.has_no_negatives and op.operands[0].facts.nonnegative
        facts.is_open = self.is_learned
        facts.gate = SUMMED.get(facts.gate, 0)
        facts.layers += self.is_learned

    def averages(self, op: Op) -> bool:
        """Whether it makes fewer elements, as averages by fixed weights."""
        weight = self.linear(op).weight if self.is_learned else None
        if weight is None or weight.is_meta or isinstance(weight, Parameter) or isinstance(weight._base, Parameter):
            return False
        return op.out.shape.numel() <= op.operands[0].shape.numel() and bool((weight >= 0).all())

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        linear, signal, signs = self.linear(op), op.operands[0], how.signs
        nonnegative, a = signal.facts.nonnegative, signal.tensor
        if signs is None:
            is_positive = how.above_classifier if self.is_learned else linear.is_nonnegative and nonnegative
            signs = 1 if is_positive else op.out.tensor
        if not nonnegative and signal.maker is None and not a.is_meta:
            nonnegative = bool((a >= 0).all())  # which changes no number
        parts = shared(linear, a, P[0], signs, nonnegative=nonnegative, response=op.out.kept, bias=self.bias(op))
        return [(parts, How(None, how.above_classifier and not self.is_learned, spares_zeros=True))]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        return [self.linear(op).transposed(G[0], op.operands[0].tensor)]


def _convolution(op: Op) -> LinearMap:
    # input (B, in, ...), weight (out, in / groups, ...); if transposed, (in, out / groups, ...)
    weight, options, signal = op.args[1], op.args[3:9], op.operands[0]
    is_transposed, groups = options[3], options[5]
    is_by_output = len(signal.shape) == weight.ndim and not (is_transposed and groups > 1)
    trailing = [1] * (weight.ndim - 1 - is_transposed)
    return LinearMap(
        lambda a, w: aten.convolution(a, w, None, *options),
        weight,
        (lambda scale: scale.reshape(-1, *trailing)) if is_by_output else None,
        lambda q, w: aten.convolution_backward(q, signal.tensor, w, None, *options, [True, False, False])[0],
    )


def _bias_of_channels(op: Op) -> Tensor | int:
    bias = op.args[2]
    return 0 if bias is None else bias.reshape(1, -1, *[1] * (len(op.out.shape) - 2))


_CONVOLUTION = Layer(_convolution, bias=_bias_of_channels)


def convolution(op: Op) -> Rule:
    return _CONVOLUTION if isinstance(op.args[0], Value) and len(op.inputs) == 1 else MISSING


class Weighed(Layer):
    """Values weighed by numbers that depend on the image, as by attention: one more mixture."""

    def describe(self, op: Op, facts: Facts) -> None:
        gate = facts.gate
        super().describe(op, facts)
        facts.gate, facts.mixtures = gate, facts.mixtures + (op.inputs[0].shape[-1] > 1)


def _factors(op: Op) -> tuple[Any, Any]:
    first = op.name in SUMS  # behind the bias
    left, right = op.args[first : first + 2]
    return left, right


def _matrix(op: Op, at: int) -> LinearMap:
    """A product of the signal, which is on the left (0) or on the right (1), and a matrix."""
    factor, alpha = _factors(op)[1 - at], op.kwargs.get("alpha", 1)
    w = factor.tensor if isinstance(factor, Value) else factor
    w = w if alpha == 1 else w * alpha
    apply: _Product = (lambda a, w: w @ a) if at else torch.matmul
    back: _Product | None = ((lambda q, w: w.mT @ q) if at else lambda q, w: q @ w.mT) if op.name in _PLAIN else None
    if isinstance(factor, Value) and factor.facts.nonnegative and alpha > 0:
        return LinearMap(lambda a: apply(a, w), back=back and (lambda q: back(q, w)))
    return LinearMap(apply, w, (lambda scale: scale[None]) if op.name in ("mm", "addmm") and not at else None, back)


def _bias_of_sum(op: Op) -> Tensor | int:
    return op.args[0] * op.kwargs.get("beta", 1) if op.name in SUMS else 0


_PLAIN = ("mm", "bmm", "addmm", "baddbmm")
_MATRIX = [Layer(partial(_matrix, at=at), bias=_bias_of_sum) for at in (0, 1)]


def matrix_product(op: Op) -> Rule:
    left, right = _factors(op)
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return _MATRIX[isinstance(right, Value)]
    if left.shape[-1] == 1 and op.name in ("mm", "bmm", "baddbmm"):  # each element is a product of two
        at = signal_of(left, right, (*left.shape[:-1], right.shape[-1]))
    else:
        at = values_of(left, right)
    if at is None:
        return MISSING
    # one of the signals holds the weights of the other's elements, as attention does
    has_no_negatives = op.name not in SUMS and op.inputs[1 - at].facts.nonnegative
    return Weighed(partial(_matrix, at=at), at, False, has_no_negatives, _bias_of_sum)


def _attention(op: Op) -> LinearMap:
    """(..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev)."""
    q, k, scale, is_causal, mask, bias = op.numbers("query", "key", "scale", "is_causal", "attn_mask", "attn_bias")
    nothing, mask = k[..., :0], mask if bias is None else bias
    _, A = aten._scaled_dot_product_attention_math(
        q, k, nothing, mask, is_causal=bool(is_causal), scale=scale, enable_gqa=True
    )
    repeats = q.shape[-3] // k.shape[-3] if q.ndim > 3 else 1
    if repeats > 1:
        return LinearMap(lambda a: A @ a.repeat_interleave(repeats, -3))
    return LinearMap(partial(torch.matmul, A), back=partial(torch.matmul, A.mT))


def attention(op: Op) -> Rule:
    value = op.named["value"]
    if not isinstance(value, Value):
        return ENDS
    at = max(i for i, a in enumerate(op.inputs) if a is value)
    return Weighed(_attention, at, is_learned=False, has_no_negatives=True)


class Average(Layer):
    """Fixed, non-negative weights."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        weighed = op.name == "sum" and not op.signal.facts.weighed.isdisjoint(reduced_axes(op))
        facts.mixtures += weighed or (op.name.startswith("grid_sampler") and len(op.inputs) > 1)

    def averages(self, op: Op) -> bool:
        return op.out.shape.numel() < op.signal.shape.numel()


def _itself(op: Op) -> LinearMap:
    return LinearMap(lambda a: op.at(a, *(value.tensor for value in op.inputs[1:])))


class Written(Winner):
    """Adds to what is there: a layer y = a + W b, whose signals are both a and b."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative &= not any(map(_is_bias, op.args))
        facts.gate = SUMMED.get(facts.gate, 0)

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        sizes = [value.shape.numel() for value in op.operands]

        def apply(a: Tensor) -> Tensor:
            parts = (part.view(v.shape) for part, v in zip(a.split(sizes), op.operands, strict=True))
            return op.of(*parts, constant=lambda a: torch.zeros_like(a) if _is_bias(a) else a)

        a = torch.cat([value.tensor.flatten() for value in op.operands])
        found = shared(LinearMap(apply), a, P[0], op.out.tensor, nonnegative=False).split(sizes)
        below = How(None, how.above_classifier, spares_zeros=True)
        return [(part.view(value.shape), below) for part, value in zip(found, op.operands, strict=True)]


def _is_bias(a: object) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


def reduced_axes(op: Op) -> set[int]:
    """The axes of its signal that a sum, mean or maximum takes together, counted from the last."""
    ndim, given = len(op.signal.shape), op.args[1] if len(op.args) > 1 else None
    axes = [given] if isinstance(given, int) else range(ndim) if given is None or given == [] else given
    is_told = isinstance(axes, (list, range)) and all(isinstance(axis, int) for axis in axes)
    return {axis % ndim - ndim for axis in axes} if is_told else set()


def sampled(op: Op) -> Rule:
    """Of `grid_sample`: the grid is where to look, and gets nothing, as queries and keys."""
    if op.named["interpolation_mode"] == 2:
        return MISSING  # bicubic, whose weights have both signs
    return _AVERAGE if isinstance(op.args[0], Value) else ENDS


def _bicubic(op: Op) -> LinearMap:
    """W a = R a C^T, whose rows R and columns C have negative weights too."""
    like = op.signal

    def along(axis: int) -> list[Tensor]:
        other, units = -3 - axis, torch.eye(like.shape[axis], dtype=like.dtype, device=like.device)
        images = units[:, None].unsqueeze(other).expand(-1, 1, *like.shape[-2:])  # alike along the other axis
        weight = op.at(images.contiguous())[:, 0].select(other, 0).T
        return [weight.clamp(min=0), (-weight).clamp(min=0)]

    rows, columns = along(-2), along(-1)

    def resample(a: Tensor, sides: Tensor) -> Tensor:
        """With the positive weights of W, and with the negative ones."""
        positive = rows[0] @ a @ columns[0].T + rows[1] @ a @ columns[1].T
        negative = rows[0] @ a @ columns[1].T + rows[1] @ a @ columns[0].T
        return positive * sides[0] + negative * sides[1]

    return LinearMap(resample, torch.tensor([1, -1]).to(rows[0]))


_AVERAGE = Average(_itself, is_learned=False, has_no_negatives=True)
_WRITTEN = Written()

ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    "convolution _convolution": convolution,
    "mm bmm mv dot vdot addmm baddbmm addmv": matrix_product,
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable": attention,
    "mean sum _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d trace "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "_upsample_bilinear2d_aa cumsum col2im torchvision.roi_align torchvision.ps_roi_align": _AVERAGE,
    "avg_pool1d avg_pool2d avg_pool3d": lambda op: MISSING if (op.named.get("divisor_override") or 0) < 0 else _AVERAGE,
    "upsample_bicubic2d _upsample_bicubic2d_aa": Layer(_bicubic, is_learned=False),
    "grid_sampler_2d grid_sampler_3d": sampled,
    "index_add scatter_add": lambda op: _WRITTEN if op.kwargs.get("alpha", 1) > 0 else MISSING,
    "index_put _unsafe_index_put": lambda op: _WRITTEN if op.named.get("accumulate", False) else Join(),
}
