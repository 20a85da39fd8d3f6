"""Operations that only move values, and those that probability does not pass."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, MOVE, NONLINEAR, Facts, Gate
from ebcli.eb.operations import Dims, Op, Values, flatten_arguments
from ebcli.eb.places import Marks, Places, reshape_marks
from ebcli.eb.products import gradients
from ebcli.eb.rules.rule import BackwardContext, Choice, Gradients, Incoming, Rule, Shares, Table

Axes = Callable[[Op], Dims | None]


def axes_named(*names: str) -> Axes:
    """The axes that an argument names, given by its possible names; None if it names none."""

    def named_axes(op: Op) -> Dims | None:
        axes = next((axes for axes in map(op.arguments.get, names) if axes is not None), None)
        if isinstance(axes, int):
            return [axes]
        return axes or None

    return named_axes


def spatial_axes(op: Op) -> range:
    """The axes of an image, clip or sequence, behind those of the batch and of channels."""
    return range(2, op.operand.ndim)


def padded_axes(op: Op) -> list[int]:
    """The axes that are padded; `pad` has two numbers for each, from the last one on."""
    return [-1 - i // 2 for i, size in enumerate(op.arguments["pad"]) if size]


class Move(Rule):
    """Each element of the results is an element of an input: probability and slope follow the gradient, which is 1
    there, and so do the signs of responses.

    Args:
        axes: along which elements move; None if they are unknown.
        reads_memory: it reads elements where they lie in memory.

    Attributes:
        elementwise: what kind of function of one element of the operand each element is.
        needs_numbers: the gradient depends on the numbers of the inputs.
    """

    elementwise = MOVE
    keeps_order = False
    needs_numbers = False

    def __init__(self, axes: Axes = lambda _: None, *, reads_memory: bool = False) -> None:
        self._axes = axes
        self.reads_memory = reads_memory

    def needs(self, op: Op) -> Values:
        return [value for value in op.inputs if self.needs_numbers or not value.is_floating]

    def describe(self, op: Op, facts: Facts) -> None:
        facts.is_open = any(value.facts.is_open for value in op.operands)
        if op.has_one_input and not self.joins:
            facts.is_softmax = op.signal.facts.is_softmax
            facts.is_attention = op.signal.facts.is_attention
            if not any(isinstance(a, Tensor) for a in flatten_arguments(op.args)):
                facts.elementwise = self.elementwise

    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        moved_back = self.pull_back(op, P)
        signs: Sequence[Any] = [context.signs] * len(moved_back)
        if isinstance(context.signs, Tensor):
            signs = self.pull_back(op, [None if p is None else context.signs.expand(p.shape) for p in P])
        pairs = zip(moved_back, signs, strict=True)
        return [None if p is None else (p, context._replace(signs=sign, norm=None)) for p, sign in pairs]

    def slopes(self, op: Op, G: Incoming) -> Gradients:
        return self.pull_back(op, G)

    def places(self, op: Op, places: Places) -> Marks:
        return places.move(op)

    def touched_axes(self, op: Op) -> Dims | None:
        return self._axes(op)

    def pull_back(self, op: Op, incoming: Incoming) -> Gradients:
        """The gradient."""
        leaves = [value.leaf(with_numbers=self.needs_numbers) for value in op.floating]
        return [*gradients(op.run_floating, leaves, incoming)]


class Part(Move):
    """Elements are left out, repeated or put beside others, all in their order."""

    keeps_order = True


class ChannelMove(Move):
    """The axis of channels moves from behind that of the images to the end, or back."""

    keeps_order = True


class Reshape(Move):
    """All elements stay in their order."""

    keeps_order = True

    def pull_back(self, op: Op, incoming: Incoming) -> Gradients:
        (gradient,) = incoming
        if gradient.is_complex() and not op.signal.dtype.is_complex:
            gradient = gradient.real
        return [gradient.reshape(op.signal.shape).to(op.signal.dtype)]

    def places(self, op: Op, places: Places) -> Marks:
        if op.out.numel != op.signal.numel:  # a view of another type
            return places.everything(op)
        return [reshape_marks(places.marks_of(op.signal), op.signal.shape, op.out.shape)]


class Copy(Reshape):
    """Each element is that of the operand at the same place."""

    elementwise = AFFINE

    def places(self, op: Op, places: Places) -> Marks:
        return [places.marks_of(op.signal)]


class Join(Move):
    """Elements move to places beside constants, such as a class token or the zeros of padding."""

    joins = True
    keeps_order = True
    elementwise = 0

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        fills = map(op.arguments.get, ("value", "self", "other"))
        facts.nonnegative &= not any(is_scalar(fill) and fill < 0 for fill in fills)
        facts.nonnegative &= not any(map(is_floating_constant, flatten_arguments(op.args, op.kwargs)))


class Write(Join):
    """Elements go to places that are given by numbers."""

    keeps_order = False


class Winner(Move):
    """A maximum, sorting, max pooling: the winner takes all.

    Args:
        axes: along which values compete; None for all.
    """

    keeps_order = True
    needs_numbers = True
    elementwise = 0

    def places(self, op: Op, places: Places) -> Marks:
        if len(op.operands) > 1:
            return places.merge(op)
        return places.reduce(op, op.signal, self._axes(op) or range(op.signal.ndim))


class WindowWinner(Winner):
    """Values compete in windows along the axes of space."""

    def places(self, op: Op, places: Places) -> Marks:
        return places.reduce(op, op.signal, (), spatial_axes(op))


class Sort(Winner):
    """Values and the indices along an axis that they come from."""

    keeps_order = False

    def reorders(self, op: Op, places: Places) -> bool:
        """Whether the order of several places depends on the values. A single winner is made of all that compete."""
        axis = op.arguments["dim"]
        is_single = op.out.ndim < op.signal.ndim or op.out.ndim == 0 or op.out.shape[axis] == 1
        return not is_single and places.marks_of(op.signal).shape[axis] > 1

    def places(self, op: Op, places: Places) -> Marks:
        if not self.reorders(op, places):
            return super().places(op, places)
        wide = places.marks_of(op.signal).expand(op.signal.shape)
        return [wide.gather(op.arguments["dim"], op.outs[1].tensor.cpu())]


class Missing(Winner):
    """An operation without a rule, of which only the ordinary gradient is known."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative = False

    def places(self, op: Op, places: Places) -> Marks:
        return places.everything(op)


class NoShare(Missing):
    """Probability ends: the result depends on the operands only as on gates, queries and keys."""

    def operands(self, op: Op) -> Values:
        return []


class Mask(NoShare):
    """A comparison: a function of its input, and no signal."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.gate = Gate.MASK
        facts.nonnegative = True
        if op.has_one_input and op.out.shape == op.signal.shape:
            facts.elementwise = NONLINEAR


class ShapeOnly(NoShare):
    """Nothing but shape and type is read."""

    reads_only_shape = True


def _permutation(op: Op) -> Move:
    ndim = op.signal.ndim
    axes = [axis % ndim for axis in op.arguments["dims"]]
    channels_last = [0, *range(2, ndim), 1]
    channels_first = [0, ndim - 1, *range(1, ndim - 1)]
    return _CHANNEL_MOVE if axes in (channels_last, channels_first) else _MOVE


def is_floating_constant(a: object) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


def is_scalar(a: object) -> TypeGuard[float]:
    return isinstance(a, (int, float))


def is_number(constant: Any) -> bool:
    return is_scalar(constant) or (constant.numel() == 1 and not constant.is_meta)


def has_no_negatives(constant: Any) -> bool:
    constant = torch.as_tensor(constant)
    return not constant.is_meta and bool((constant >= 0).all())


MISSING = Missing()
NO_SHARE = NoShare()
_MOVE = Move()
_CHANNEL_MOVE = ChannelMove()
along = axes_named("dim", "dims")
_SORT = Sort(along)
_WINNER = Winner(along)

ENTRIES: Table = {
    "clone alias detach _to_copy same lift_fresh lift_fresh_copy contiguous": Copy(),
    "view _unsafe_view unsqueeze squeeze view_copy _reshape_alias": Reshape(),
    "flip roll index_select": Move(along),
    "upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d "
    "upsample_nearest3d _upsample_nearest_exact3d": Part(),
    "as_strided": Move(reads_memory=True),
    "permute permute_copy": Choice(_permutation),
    "expand expand_copy repeat select slice narrow_copy unfold split split_copy split_with_sizes unsafe_split "
    "unsafe_split_with_sizes unbind pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "_conj": Part(),
    "transpose t diagonal rot90 gather take masked_select index im2col _unsafe_index": _MOVE,
    # likewise, but other elements of the result may be constants
    "cat": Join(along),
    "constant_pad_nd": Join(padded_axes),
    "as_strided_scatter": Write(reads_memory=True),
    "write masked_scatter index_copy": Write(),
    "stack masked_fill index_fill tril triu diag_embed block_diag select_scatter slice_scatter diagonal_scatter "
    "max_unpool2d max_unpool3d": Join(),
    # the winner takes all
    "max_pool2d_with_indices adaptive_max_pool2d fractional_max_pool2d max_pool3d_with_indices "
    "adaptive_max_pool3d fractional_max_pool3d": WindowWinner(),
    "max min median nanmedian": Choice(lambda op: _SORT if "dim" in op.arguments else _WINNER),
    "topk sort kthvalue mode cummax cummin": _SORT,
    "amax amin aminmax": _WINNER,
    # nothing differentiable comes from comparisons, counts, types
    "gt ge lt le eq ne isnan isinf isfinite logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or argmax argmin argsort": Mask(),
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones "
    "new_full new_empty new_empty_strided": ShapeOnly(),
    "floor_divide": NO_SHARE,
}
