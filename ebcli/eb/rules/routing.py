"""Operations that need no excitation rule, grouped by the reason.

Any other operation without a rule is reported. Functions whose results carry no signal (shapes, comparisons, argmax)
need no entry, because no probability can pass through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ebcli.eb import graph
from ebcli.eb.facts import (
    Constants,
    Source,
    ValueFacts,
    bypasses,
    carries_signal,
    facts_about,
    facts_of,
    has_share,
    is_nonnegative,
    note,
    tensors_in,
)
from ebcli.eb.folding import Folded, FoldTarget, overwritten
from ebcli.eb.gates import gate_of
from ebcli.eb.registry import Call, overloads, spelled
from ebcli.eb.saved_values import Saved, keep_saved

# The elements of a single tensor in another order or shape, or a part of them: batch norm is folded through these.
REARRANGEMENTS = [
    *overloads("reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
    *overloads("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint"),
    *overloads("narrow", "narrow_copy", "select", "index_select", "diagonal", "rot90", "flip", "fliplr", "flipud"),
    *overloads("roll", "split", "split_with_sizes", "tensor_split", "chunk", "unbind", "hsplit", "vsplit", "dsplit"),
    *overloads("unsafe_split", "unsafe_chunk", "contiguous", "clone", "pixel_shuffle", "pixel_unshuffle"),
    *overloads("channel_shuffle", "native_channel_shuffle", "atleast_1d", "atleast_2d", "atleast_3d", "__getitem__"),
    Tensor.T.__get__,  # type: ignore[attr-defined]
    Tensor.mT.__get__,  # type: ignore[attr-defined]
    Tensor.H.__get__,  # type: ignore[attr-defined]
    Tensor.mH.__get__,  # type: ignore[attr-defined]
]

# Each output element is an input element, so the ordinary gradient, which is 1 there, is the rule.
MOVES = [
    *REARRANGEMENTS,
    *overloads("as_strided", "take", "take_along_dim", "gather", "masked_select", "diag", "unfold", "meshgrid"),
    *overloads("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"),
    *overloads("broadcast_tensors"),
    Tensor.__iter__,
]

# Likewise, but some output elements may be constants.
FILLS = [
    *overloads("tril", "triu", "diag_embed", "block_diag", "pad", "__setitem__", "copy_", "where", "masked_fill"),
    *overloads("masked_scatter", "index_copy", "index_fill", "fill", "zero_"),
    *overloads("select_scatter", "slice_scatter", "diagonal_scatter", "max_unpool1d", "max_unpool2d", "max_unpool3d"),
]

# Copies of an element: the ordinary gradient sums their probabilities.
COPIES = [
    *overloads("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile"),
]

# The winner takes all, as in the ordinary gradient.
WINNERS = [
    *overloads("max_pool1d", "max_pool2d", "max_pool3d"),
    *overloads("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *overloads("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *overloads("adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices"),
    *overloads("adaptive_max_pool3d_with_indices", "fractional_max_pool2d", "fractional_max_pool3d"),
    *overloads("fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices"),
    *overloads("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "aminmax", "median", "nanmedian"),
    *overloads("topk", "sort", "kthvalue", "mode", "cummax", "cummin", "msort"),
]

# The same values on another device or in another precision.
CASTS = [
    *overloads("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *overloads("requires_grad_", "retain_grad", "register_hook", "pin_memory", "resolve_conj", "resolve_neg"),
    *overloads("backward", "__deepcopy__", "__reduce_ex__", "set_"),
]

# Operators of torch.ops with names of their own.
OPERATORS = [
    "aten._unsafe_view",
    "aten.alias",
    "aten._to_copy",
    "aten.lift_fresh_copy",
    "aten.slice",
    "aten.split_copy",
]
OPERATORS += [f"aten.{kind}_pad{axes}d" for kind in ("reflection", "replication") for axes in (1, 2, 3)]
OPERATORS += ["aten.constant_pad_nd", "aten.index"]

# What the value depends on: the first operand alone, the others giving a shape or type, or no operand's values.
FIRST_ONLY = frozenset(overloads("to", "type", "type_as", "expand_as", "view_as", "reshape_as"))
SHAPE_ONLY = frozenset(
    [
        *overloads("ones_like", "zeros_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
        *(getattr(Tensor, f"new_{kind}") for kind in ("ones", "zeros", "full", "empty", "tensor", "empty_strided")),
    ]
)

IGNORED: frozenset[Callable[..., Any] | str] = frozenset([*MOVES, *FILLS, *COPIES, *WINNERS, *CASTS, *OPERATORS])
"""All functions whose ordinary gradient is the rule."""

_LOSSLESS = frozenset([*MOVES, *COPIES, *WINNERS, *CASTS, "aten._unsafe_view", "aten._to_copy", "aten.slice"])
_SAME = frozenset([*CASTS, *overloads("clone"), "aten._to_copy", "aten.lift_fresh_copy"])
_REARRANGES = frozenset([*REARRANGEMENTS, *CASTS, "aten._unsafe_view", "aten._to_copy", "aten.slice"])


def is_routing(func: Callable[..., Any]) -> bool:
    """Whether the ordinary gradient of a function is the rule."""
    return not IGNORED.isdisjoint(spelled(func))


def is_first_only(func: Callable[..., Any]) -> bool:
    """Whether a function takes nothing but a shape or a type from all operands except the first."""
    return not FIRST_ONLY.isdisjoint(spelled(func))


def is_shape_only(func: Callable[..., Any]) -> bool:
    """Whether a function takes nothing but a shape or a type from its operands."""
    return not SHAPE_ONLY.isdisjoint(spelled(func))


def routed(call: Call) -> Any:
    """The value of a call whose ordinary gradient is the rule, with the facts that it inherits."""
    names, operands = spelled(call.func), tensors_in((call.args, call.kwargs))
    signals = [a for a in operands if a.is_floating_point()]
    lossless = (not _LOSSLESS.isdisjoint(names) or _adds_nothing(call, names)) and all(map(carries_signal, signals))
    fillings = _fillings(call, names)
    facts = ValueFacts(
        all(map(is_nonnegative, signals)) and all(map(is_nonnegative, fillings)),
        min((gate_of(a) for a in operands if has_share(a)), default=0),
    )
    if len(signals) == 1 and not _SAME.isdisjoint(names) and not call.is_in_place:
        facts = replace(facts, source=Source(signals[0], signals[0]._version, True))
    target = None if _REARRANGES.isdisjoint(names) else _inherited_layer(call)
    overwritten(call)
    before = frozenset(node for a in operands for node in graph.own_nodes(a))
    with keep_saved():
        value = call.compute()
    for at, result in enumerate(value if isinstance(value, (list, tuple)) else [value]):
        if not isinstance(result, Tensor) or (any(result is a for a in operands) and not call.is_in_place):
            continue
        if carries_signal(result):
            graph.mark_routing(result, before, lossless=lossless)
            if not lossless and not any(map(bypasses, signals)):
                is_zero = all(filling == 0 for filling in fillings) and all(map(carries_signal, signals))
                saved = None if is_zero else Saved(result, call.operation)
                facts_about(result.grad_fn).constants = Constants(saved, call.operation, before)
        position = at if isinstance(value, (list, tuple)) else None
        note(result, facts if target is None else _rearranged(facts, target, call, position))
    if call.is_in_place:
        mark_in_place(call, value)
    return value


def mark_in_place(call: Call, value: Any) -> None:
    """Account for the nodes that autograd makes when a tensor is overwritten through a view."""
    for tensor in (*tensors_in(value), *tensors_in(call.args[:1])):
        if carries_signal(tensor):
            graph.mark_routing(tensor)
            note(tensor, facts_of(tensor))


def _rearranged(facts: ValueFacts, target: FoldTarget, call: Call, position: int | None) -> ValueFacts:
    """The facts about a rearranged layer's output; `position` is the one in the operation's list of results."""
    move = Folded(call.args[0].shape, move=partial(_moved, call.func, call.args[1:], call.kwargs, position))
    return replace(facts, layer=target.behind(move))


def _moved(func: Callable[..., Any], rest: Any, kwargs: dict[str, Any], position: int | None, value: Tensor) -> Tensor:
    moved = func(value, *rest, **kwargs)
    return moved if position is None else moved[position]


def _inherited_layer(call: Call) -> FoldTarget | None:
    """The layer whose output is rearranged, if the rearrangement can be repeated."""
    rest = tensors_in((call.args[1:], call.kwargs))
    if call.is_in_place or any(map(carries_signal, rest)) or not (call.args and isinstance(call.args[0], Tensor)):
        return None
    return facts_of(call.args[0]).layer


def _fillings(call: Call, names: tuple[Any, ...]) -> list[Any]:
    """The numbers with which an operation fills elements; a negative one if they are unknown."""
    if _FILLS.isdisjoint(names) or not _ZEROS.isdisjoint(names):
        return []
    if _NUMBERS.isdisjoint(names):
        return [-1]
    return [a for a in (*call.args[1:], *call.kwargs.values()) if isinstance(a, (int, float))]


def _adds_nothing(call: Call, names: tuple[Any, ...]) -> bool:
    """Whether an operation pads by nothing, as Swin does where its windows fit, or crops."""
    if _PADS.isdisjoint(names):
        return False
    widths = call.args[1] if len(call.args) > 1 else call.kwargs.get("pad", [1])
    return all(width <= 0 for width in widths)


_PADS = frozenset([*overloads("pad", "constant_pad_nd"), "aten.constant_pad_nd"])
_FILLS = frozenset([*FILLS, *overloads("as_strided"), "aten.constant_pad_nd"])
_ZEROS = frozenset(overloads("tril", "triu", "zero_", "diag_embed", "block_diag"))
_NUMBERS = frozenset(overloads("where", "masked_fill"))
