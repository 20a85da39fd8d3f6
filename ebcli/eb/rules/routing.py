"""Operations that need no excitation rule, grouped by the reason.

Any other operation without a rule is reported. Functions whose results carry no signal (shapes, comparisons, argmax)
need no entry, because no probability can pass through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ebcli.eb.registry import overloads

# Each output element is one input element, so the ordinary gradient, which is 1 there, is the rule.
MOVES = [
    *overloads("reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
    *overloads("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "as_strided"),
    *overloads("narrow", "narrow_copy", "select", "index_select", "take", "take_along_dim", "gather", "masked_select"),
    *overloads("diagonal", "diag", "diag_embed", "tril", "triu", "rot90", "flip", "fliplr", "flipud", "roll"),
    *overloads("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "atleast_2d"),
    *overloads("split", "split_with_sizes", "tensor_split", "chunk", "unbind", "hsplit", "vsplit", "dsplit"),
    *overloads("unsafe_split", "unsafe_chunk", "meshgrid", "block_diag", "broadcast_tensors", "atleast_3d"),
    *overloads("contiguous", "clone", "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    *overloads("native_channel_shuffle", "unfold", "atleast_1d", "__getitem__", "__setitem__", "copy_"),
    *overloads("where", "masked_fill", "masked_scatter", "index_copy", "index_fill", "index_put", "scatter"),
    *overloads("fill", "zero_", "select_scatter", "slice_scatter", "diagonal_scatter"),
    Tensor.T.__get__,  # type: ignore[attr-defined]
    Tensor.mT.__get__,  # type: ignore[attr-defined]
    Tensor.H.__get__,  # type: ignore[attr-defined]
    Tensor.mH.__get__,  # type: ignore[attr-defined]
    Tensor.__iter__,
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
    *overloads("max_unpool1d", "max_unpool2d", "max_unpool3d"),
    *overloads("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "aminmax", "median", "nanmedian"),
    *overloads("topk", "sort", "kthvalue", "mode", "cummax", "cummin", "msort"),
]

# The same values on another device or in another precision.
CASTS = [
    *overloads("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *overloads("requires_grad_", "retain_grad", "register_hook", "pin_memory", "resolve_conj", "resolve_neg"),
    *overloads("backward", "__deepcopy__", "__reduce_ex__", "set_"),
]

IGNORED: frozenset[Callable[..., Any]] = frozenset([*MOVES, *COPIES, *WINNERS, *CASTS])
"""All functions whose ordinary gradient is the rule."""
