"""One table of rules: an entry for each operation of ATen."""

from collections.abc import Callable

from ebcli.eb.facts import CURVED, Facts, Gate
from ebcli.eb.operations import Op
from ebcli.eb.rules import activations, arithmetic, layers
from ebcli.eb.rules.rule import ENDS, MISSING, Ends, Join, Rule, Winner

# Each element of the result is an element of an input, so the ordinary gradient, which is 1 there, is the rule
_MOVES = (
    "view permute transpose t expand unsqueeze squeeze select slice split unbind alias detach diagonal unfold "
    "as_strided split_with_sizes lift_fresh same _unsafe_view clone _to_copy lift_fresh_copy flip roll rot90 "
    "repeat pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle gather take masked_select index "
    "index_select im2col _reshape_alias unsafe_split unsafe_split_with_sizes _unsafe_index narrow_copy contiguous "
    "view_copy split_copy expand_copy permute_copy reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _conj"
)

# Likewise, but other elements of the result may be constants
_JOINS = (
    "cat stack constant_pad_nd write masked_fill masked_scatter index_copy index_fill scatter tril triu "
    "diag_embed block_diag select_scatter slice_scatter diagonal_scatter as_strided_scatter max_unpool2d max_unpool3d"
)

# The winner takes all
_WINNERS = (
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
    "fractional_max_pool3d max min amax amin aminmax median nanmedian topk sort kthvalue mode cummax cummin"
)

# Results that nothing differentiable comes from: comparisons, counts, types
_MASKS = (
    "gt ge lt le eq ne isnan isinf isfinite logical_not logical_and logical_or logical_xor bitwise_not bitwise_and "
    "bitwise_or argmax argmin argsort"
)


class Mask(Ends):
    """A comparison: a function of its input, and no signal."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.gate, facts.nonnegative = Gate.MASK, True
        if len(op.inputs) == 1 and op.out.shape == op.signal.shape:
            facts.elementwise = CURVED


_ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    _MOVES: Rule(),
    _JOINS: Join(),
    _WINNERS: Winner(),
    _MASKS: Mask(),
    **activations.ENTRIES,
    **arithmetic.ENTRIES,
    **layers.ENTRIES,
    "scatter": lambda op: MISSING if op.kwargs.get("reduce") else Join(),
    "floor_divide": ENDS,
}
RULES = {name: entry for names, entry in _ENTRIES.items() for name in names.split()}


def rule_of(op: Op) -> Rule:
    """The rule of an operation."""
    entry = RULES.get(op.name, MISSING)
    return entry if isinstance(entry, Rule) else entry(op)
