"""One table of rules: an entry for each operation of ATen."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.engine.facts import CURVED, MASK
from benchmarks.engine.operations import Op
from benchmarks.engine.rules import activations, arithmetic, averages, layers, norms
from benchmarks.engine.rules.rule import ENDS, MISSING, Ends, Join, Rule, Winner

# Each element of the result is an element of an input, so the ordinary gradient, which is 1 there, is the rule
_MOVES = (
    "view permute transpose t expand unsqueeze squeeze select slice split unbind alias detach diagonal unfold "
    "as_strided split_with_sizes lift_fresh same read _unsafe_view clone _to_copy lift_fresh_copy flip roll rot90 "
    "repeat pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle gather take masked_select index "
    "index_select im2col _reshape_alias unsafe_split unsafe_split_with_sizes _unsafe_index narrow_copy contiguous "
    "view_copy split_copy expand_copy permute_copy reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _conj"
).split()

# Likewise, but other elements of the result may be constants
_JOINS = (
    "cat stack constant_pad_nd write masked_fill masked_scatter index_copy index_fill scatter tril triu "
    "diag_embed block_diag select_scatter slice_scatter diagonal_scatter as_strided_scatter max_unpool2d max_unpool3d"
).split()

# The winner takes all
_WINNERS = (
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
    "fractional_max_pool3d max min amax amin aminmax median nanmedian topk sort kthvalue mode cummax cummin"
).split()

# Results that nothing differentiable comes from: comparisons, counts, types
_MASKS = (
    "gt ge lt le eq ne isnan isinf isfinite logical_not logical_and logical_or logical_xor bitwise_not bitwise_and "
    "bitwise_or argmax argmin argsort"
).split()


class Mask(Ends):
    """A comparison: a function of its input, and no signal."""

    def learn(self, op: Op) -> None:
        super().learn(op)
        for out in op.outs:
            out.facts.gate, out.facts.nonnegative = MASK, True
        if len(op.inputs) == 1 and op.out.shape == op.signal.shape:
            op.out.facts.elementwise = CURVED


def _scatter(op: Op) -> Rule:
    return MISSING if op.kwargs.get("reduce") else Join()


RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    **dict.fromkeys(_MOVES, Rule()),
    **dict.fromkeys(_JOINS, Join()),
    **dict.fromkeys(_WINNERS, Winner()),
    **dict.fromkeys(_MASKS, Mask()),
    **activations.ENTRIES,
    **arithmetic.ENTRIES,
    **layers.ENTRIES,
    **averages.ENTRIES,
    **norms.ENTRIES,
    "scatter": _scatter,
    "floor_divide": ENDS,
}


def rule_of(op: Op) -> Rule:
    """The rule of an operation."""
    entry = RULES.get(op.name, MISSING)
    return entry if isinstance(entry, Rule) else entry(op)
