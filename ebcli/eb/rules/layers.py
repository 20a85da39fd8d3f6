"""Weighted sums: layers with weights, attention, and averages and interpolation by fixed weights.

Attention weights are non-negative, so they are the excitatory weights of Eq. 4, with the values as inputs. Queries and
keys only determine the weights and get nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.facts import AFTER_SUM, Facts, signal_of, values_of
from ebcli.eb.operations import Dims, Op, Value, Values, aten, flatten_all, split_like, trailing_axes
from ebcli.eb.places import Marks, Places
from ebcli.eb.products import LinearMap, excitation_shares, vjp
from ebcli.eb.rules.moves import (
    MISSING,
    NO_SHARE,
    Axes,
    Join,
    Winner,
    along,
    is_floating_constant,
    spatial_axes,
)
from ebcli.eb.rules.rule import BackwardContext, Choice, Gradients, Incoming, Rule, Shares, Table
from ebcli.eb.torch_private import attention_weights, is_parameter

_Product = Callable[[Tensor, Tensor], Tensor]


def all_axes(op: Op) -> Dims | None:
    """None: each output may depend on all elements."""
    return None


def _no_axes(op: Op) -> Dims:
    return ()


@dataclass(eq=False, kw_only=True)
class Layer(Rule):
    """y = W a + b: P_in = a * W^T (P / Z), by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        linear: W.
        axes: the axes of the signal that are summed over; None for all.
        windows: those along which sums are over windows.
        position: which input the signal is.
        is_learned: it has weights, so that it can be the classifier, and a norm can follow.
        has_no_negatives: neither its weights nor its bias are ever negative.
        bias: b, shaped to be added to the response; 0 if there is none, and None if it is unknown.
    """

    linear: Callable[[Op], LinearMap]
    axes: Axes
    windows: Callable[[Op], Dims] = _no_axes
    position: int = 0
    is_learned: bool = True
    has_no_negatives: bool = False
    bias: Callable[[Op], Tensor | int | None] = lambda _: None

    def operands(self, op: Op) -> Values:
        return [op.inputs[self.position]]

    def needs(self, op: Op) -> Values:
        return *op.inputs, *(out for out in op.outs[:1] if not out.facts.nonnegative)  # whose signs matter

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative = self.has_no_negatives and op.operand.facts.nonnegative
        facts.is_open = self.is_learned
        facts.gate = AFTER_SUM.get(facts.gate, 0)
        facts.layers += self.is_learned

    def averages(self, op: Op) -> bool:
        """Whether it makes fewer elements, as averages by fixed weights."""
        if not self.is_learned:
            return False
        weight = self.linear(op).weight
        if weight is None or weight.is_meta or is_parameter(weight):
            return False
        return op.out.numel <= op.operand.numel and bool((weight >= 0).all())

    def averaged_axes(self, op: Op) -> list[int]:
        """The axes of the signal that an average takes together."""
        axes = self.axes(op)
        if axes is None:
            return [*range(op.operand.ndim)]
        return [*axes, *(axis for axis in self.windows(op) if op.operand.shape[axis] != op.out.shape[axis])]

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        linear = self.linear(op)
        signal = op.operand
        a = signal.tensor
        nonnegative = signal.facts.nonnegative
        signs = context.signs
        if signs is None:
            is_positive = (
                context.above_classifier if self.is_learned else linear.is_nonnegative and nonnegative
            )
            signs = 1 if is_positive else op.out.tensor
        if not nonnegative and signal.maker is None and not a.is_meta:
            nonnegative = bool((a >= 0).all())  # which changes no number
        share = excitation_shares(
            linear, a, P[0], signs, nonnegative=nonnegative, response=op.out.numbers, bias=self.bias(op)
        )
        is_above = context.above_classifier and not self.is_learned
        return [(share, BackwardContext(None, is_above, skips_zeros=True))]

    def slopes(self, op: Op, G: Incoming) -> Gradients:
        return [self.linear(op).transposed(G[0], op.operand.tensor)]

    def places(self, op: Op, places: Places) -> Marks:
        axes = self.axes(op)
        if axes is None:
            return places.weigh(op, self.linear(op).with_sizes)
        return places.reduce(op, op.operand, axes, self.windows(op))


def _convolution(op: Op) -> LinearMap:
    # input (B, in, ...), weight (out, in / groups, ...); if transposed, (in, out / groups, ...)
    weight = op.args[1]
    options = op.args[3:9]
    signal = op.operand
    *_, is_transposed, _, groups = options
    is_by_output = signal.ndim == weight.ndim and not (is_transposed and groups > 1)
    return LinearMap(
        lambda a, w: aten.convolution(a, w, None, *options),
        weight,
        (lambda scale: trailing_axes(scale, weight.ndim - is_transposed)) if is_by_output else None,
        lambda q, w: aten.convolution_backward(q, signal.tensor, w, None, *options, [True, False, False])[0],
    )


def _bias_of_channels(op: Op) -> Tensor | int:
    bias = op.args[2]
    if bias is None:
        return 0
    return trailing_axes(bias[None], op.out.ndim)


class Convolution(Layer):
    """Of a convolution in groups, each mixes its own channels, which may be those of an image."""

    def places(self, op: Op, places: Places) -> Marks:
        groups = op.args[8]
        if groups > 1 and places.marks_of(op.operand).shape[1] > 1:
            return places.weigh(op, self.linear(op).with_sizes)
        return super().places(op, places)


_CONVOLUTION = Convolution(
    linear=_convolution, axes=lambda _: [1], windows=spatial_axes, bias=_bias_of_channels
)


def convolution(op: Op) -> Rule:
    if isinstance(op.args[0], Value) and op.has_one_input:
        return _CONVOLUTION
    return MISSING


@dataclass(eq=False, kw_only=True)
class AttentionProduct(Layer):
    """Values weighed by numbers that depend on the image, as by attention: one more mixture.

    Args:
        query_axis: the axis of the result along which the weights vary.
    """

    query_axis: int
    is_learned: bool = False

    def describe(self, op: Op, facts: Facts) -> None:
        gate = facts.gate
        super().describe(op, facts)
        facts.gate = gate
        facts.mixtures += op.inputs[0].shape[-1] > 1

    def query_axes(self, op: Op) -> set[int]:
        """The axes of the result along which the attention weights vary."""
        ndim = op.out.ndim
        if ndim:
            return {self.query_axis % ndim}
        return set()


def _matrix(op: Op, side: int, first: int) -> LinearMap:
    """A product of the signal, which is the left factor (0) or the right one (1), and a matrix.

    Args:
        op: the operation.
        side: of the signal among the factors.
        first: of the factors among the arguments.
    """
    w = op.args[first + 1 - side]
    alpha = op.kwargs.get("alpha", 1)
    is_nonnegative = False
    if isinstance(w, Value):
        is_nonnegative = w.facts.nonnegative and alpha > 0
        w = w.tensor
    if alpha != 1:
        w = w * alpha
    are_matrices = w.ndim > 1 and op.operand.ndim > 1
    apply: _Product = (lambda a, w: w @ a) if side else torch.matmul
    back: _Product | None = None
    if are_matrices:
        back = (lambda q, w: w.mT @ q) if side else lambda q, w: q @ w.mT
    if is_nonnegative:
        return LinearMap(lambda a: apply(a, w), back=back and (lambda q: back(q, w)))
    is_by_output = are_matrices and w.ndim == 2 and not side
    return LinearMap(apply, w, (lambda scale: scale[None]) if is_by_output else None, back)


def _contracted_axes(op: Op, side: int) -> list[int]:
    if side and op.operand.ndim > 1:
        return [-2]
    return [-1]


def _scaled_bias(op: Op) -> Tensor | int:
    return op.args[0] * op.kwargs.get("beta", 1)


def _product(kind: type[Layer], side: int, *, has_bias: bool, **options: Any) -> Layer:
    return kind(
        linear=partial(_matrix, side=side, first=int(has_bias)),
        axes=partial(_contracted_axes, side=side),
        bias=_scaled_bias if has_bias else lambda _: 0,
        **options,
    )


_learned_product = cache(partial(_product, Layer))


def matrix_product(op: Op, *, has_bias: bool = False) -> Rule:
    """The rule of a product of two matrices or vectors.

    Args:
        op: the operation.
        has_bias: the first argument is added to the product.
    """
    left, right = op.args[has_bias : has_bias + 2]
    if not (isinstance(left, Value) and isinstance(right, Value)):
        if op.signal.facts.is_attention:  # of constant values
            return NO_SHARE
        return _learned_product(int(isinstance(right, Value)), has_bias=has_bias)
    is_outer = left.shape[-1] == 1 and len(right.shape) > 1  # each element is a product of two
    position = signal_of(left, right) if is_outer else values_of(left, right)
    if position is None:
        return MISSING
    # one of the signals holds the weights of the other's elements, as attention does
    has_no_negatives = not has_bias and op.inputs[1 - position].facts.nonnegative
    options = {"position": position, "has_no_negatives": has_no_negatives, "query_axis": -1 - position}
    return _product(AttentionProduct, position, has_bias=has_bias, **options)


def _attention(op: Op) -> LinearMap:
    """(..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev)."""
    q, k, scale, is_causal, mask, bias = op.numbers(
        "query", "key", "scale", "is_causal", "attn_mask", "attn_bias"
    )
    if bias is not None:
        mask = bias
    _, A = attention_weights(q, k, k[..., :0], mask, is_causal=bool(is_causal), scale=scale, enable_gqa=True)
    if q.ndim > 3 and q.shape[-3] > k.shape[-3]:
        repeats = q.shape[-3] // k.shape[-3]
        return LinearMap(lambda a: A @ a.repeat_interleave(repeats, -3))
    return LinearMap(partial(torch.matmul, A), back=partial(torch.matmul, A.mT))


class Attention(AttentionProduct):
    """Of `scaled_dot_product_attention`."""

    def slopes(self, op: Op, G: Incoming) -> Gradients:
        """As PyTorch computes it, without the matrix of all attention weights."""
        q, k, value, scale, is_causal, mask, bias = op.numbers(
            "query", "key", "value", "scale", "is_causal", "attn_mask", "attn_bias"
        )
        options = {"is_causal": bool(is_causal), "scale": scale, "enable_gqa": True}
        if bias is not None:
            mask = bias
        return [vjp(lambda a: F.scaled_dot_product_attention(q, k, a, mask, **options), value, G[0])]


def attention(op: Op) -> Rule:
    value = op.arguments["value"]
    if not isinstance(value, Value):
        return NO_SHARE
    # heads of values have several of queries
    is_grouped = value.shape[:-2] != op.arguments["query"].shape[:-2]
    return Attention(
        linear=_attention,
        axes=lambda _: [-3, -2] if is_grouped else [-2],
        position=max(i for i, a in enumerate(op.inputs) if a is value),
        has_no_negatives=True,
        query_axis=-2,
    )


def _inverse(op: Op) -> LinearMap:
    """B -> A^-1 B, of a triangular A."""
    (A,) = op.numbers("self")
    units = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    inverse = torch.linalg.solve_triangular(A, units, **op.kwargs)
    return LinearMap(lambda a, w: w @ a, inverse, back=lambda q, w: w.mT @ q)


def solve_triangular(op: Op) -> Rule:
    """Of a system that depends on the image, as in gated delta nets, A holds the weights."""
    if not op.arguments["left"]:
        return MISSING
    if not isinstance(op.args[1], Value):
        return NO_SHARE
    return AttentionProduct(
        linear=_inverse, axes=lambda _: [-2], position=len(op.inputs) - 1, bias=lambda _: 0, query_axis=-2
    )


def _fixed_map(op: Op) -> LinearMap:
    return LinearMap(lambda a: op.run(a, *(value.tensor for value in op.inputs[1:])))


@dataclass(eq=False, kw_only=True)
class Average(Layer):
    """Fixed, non-negative weights."""

    linear: Callable[[Op], LinearMap] = _fixed_map
    is_learned: bool = False
    has_no_negatives: bool = True

    def averages(self, op: Op) -> bool:
        return op.out.numel < op.signal.numel


class Interpolation(Average):
    """Weights that sum to 1, so that it does not matter whether a batch norm comes before or after it."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.is_open = op.signal.facts.is_open

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        if context.norm is None or context.signs is None:
            return super().shares(op, P, context._replace(signs=None))
        factor, shift = context.norm()
        a = op.signal.tensor * factor + shift
        share = excitation_shares(self.linear(op), a, P[0], context.signs * factor.sign(), nonnegative=False)
        return [(share, BackwardContext((a * factor).sign(), context.above_classifier, skips_zeros=True))]


def reduced_axes(op: Op) -> Dims:
    """The axes that a sum, mean or maximum takes together."""
    axes = along(op)
    if axes is None:
        return range(op.signal.ndim)
    return axes


class Reduction(Average):
    """A sum or mean. Over elements that a softmax has weighed, it mixes them as attention does."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.mixtures += not op.signal.facts.attention_axes.isdisjoint(self._negative_axes(op))

    def query_axes(self, op: Op) -> set[int]:
        """The axes of the result along which the weights of the softmax vary."""
        ndim = op.signal.ndim
        summed_axes = self._negative_axes(op)
        axes = [axis for axis in range(-ndim, 0) if axis not in summed_axes or op.out.ndim == ndim]
        weights = op.signal.facts.attention_axes - summed_axes
        return {position for position, axis in enumerate(axes) if axis in weights}

    def _negative_axes(self, op: Op) -> set[int]:
        """The axes that are reduced, counted from the last, whichever way they are given."""
        ndim = op.signal.ndim
        if ndim:
            return {axis % ndim - ndim for axis in reduced_axes(op)}
        return set()


class Sampling(Average):
    """Of `grid_sample`: the grid is where to look, and gets nothing, as queries and keys."""

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        facts.mixtures += not op.has_one_input

    def query_axes(self, op: Op) -> set[int]:
        """The axes of the result along which the grid varies."""
        return {*range(2, op.out.ndim)}


def sampling(op: Op) -> Rule:
    if op.arguments["interpolation_mode"] == 2:
        return MISSING  # bicubic, whose weights have both signs
    if isinstance(op.args[0], Value):
        return _SAMPLING
    return NO_SHARE


class ScatterAdd(Winner):
    """Adds to what is there: a layer y = a + W b, whose signals are both a and b."""

    keeps_order = False

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative &= not any(map(is_floating_constant, op.args))
        facts.gate = AFTER_SUM.get(facts.gate, 0)

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        def without_bias(a: Any) -> Any:
            if is_floating_constant(a):
                return torch.zeros_like(a)
            return a

        def apply(a: Tensor) -> Tensor:
            return op.run_floating(*split_like(a, op.operands), constant=without_bias)

        a = flatten_all(value.tensor for value in op.operands)
        share = excitation_shares(LinearMap(apply), a, P[0], op.out.tensor, nonnegative=False)
        context_below = BackwardContext(None, context.above_classifier, skips_zeros=True)
        return [(part, context_below) for part in split_like(share, op.operands)]

    def places(self, op: Op, places: Places) -> Marks:
        return places.sum_up(op)


def scatter_add(op: Op) -> Rule:
    if op.kwargs.get("alpha", 1) > 0:
        return ScatterAdd()
    return MISSING


def index_put(op: Op) -> Rule:
    if op.arguments.get("accumulate"):
        return ScatterAdd()
    return Join()


def average_pool(op: Op) -> Rule:
    if (op.arguments.get("divisor_override") or 0) < 0:
        return MISSING
    return _POOL


def _bicubic(op: Op) -> LinearMap:
    """W a = R a C^T, whose rows R and columns C have negative weights too."""
    like = op.signal

    def along(axis: int) -> tuple[Tensor, Tensor]:
        """The positive and the negative ones, without their sign."""
        other = -3 - axis
        units = torch.eye(like.shape[axis], dtype=like.dtype, device=like.device)
        images = units[:, None].unsqueeze(other).expand(-1, 1, *like.shape[-2:])  # alike along the other axis
        weight = op.run(images.contiguous())[:, 0].select(other, 0).T
        return weight.clamp(min=0), (-weight).clamp(min=0)

    more_rows, less_rows = along(-2)
    more_columns, less_columns = along(-1)

    def resample(a: Tensor, sides: Tensor) -> Tensor:
        """With the positive weights of W, and with the negative ones."""
        positive = more_rows @ a @ more_columns.T + less_rows @ a @ less_columns.T
        negative = more_rows @ a @ less_columns.T + less_rows @ a @ more_columns.T
        return positive * sides[0] + negative * sides[1]

    return LinearMap(resample, torch.tensor([1, -1]).to(more_rows))


_POOL = Average(axes=_no_axes, windows=spatial_axes)
_SAMPLING = Sampling(axes=spatial_axes)

ENTRIES: Table = {
    "convolution _convolution": Choice(convolution),
    "mm bmm mv dot vdot": Choice(matrix_product),
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable": Choice(attention),
    "linalg_solve_triangular": Choice(solve_triangular),
    "mean sum": Reduction(axes=reduced_axes),
    "trace": Average(axes=all_axes),
    "cumsum": Average(axes=_no_axes, windows=reduced_axes),
    "col2im": Average(axes=lambda _: [-2, -1]),
    "torchvision.roi_align torchvision.ps_roi_align": Average(axes=all_axes),
    "adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d": _POOL,
    "avg_pool1d avg_pool2d avg_pool3d": Choice(average_pool),
    "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d": Interpolation(
        axes=_no_axes, windows=spatial_axes
    ),
    "upsample_bicubic2d _upsample_bicubic2d_aa": Layer(
        linear=_bicubic, axes=_no_axes, windows=spatial_axes, is_learned=False
    ),
    "grid_sampler_2d grid_sampler_3d": Choice(sampling),
    "index_add scatter_add": Choice(scatter_add),
    "index_put _unsafe_index_put": Choice(index_put),
}
