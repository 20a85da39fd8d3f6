"""Operations that need no excitation rule, by the reason why not.

Everything else that meets the signal without a rule is reported. Functions whose results carry no signal at all
(shapes, comparisons, argmax) need no entry: nothing can come down through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ebcli.eb.registry import spellings

# Each output element is one input element, so the ordinary gradient, 1 from there to here, is the rule itself.
MOVES = [
    *spellings("reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
    *spellings("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "as_strided"),
    *spellings("narrow", "narrow_copy", "select", "index_select", "take", "take_along_dim", "gather", "masked_select"),
    *spellings("diagonal", "diag", "diag_embed", "tril", "triu", "rot90", "flip", "fliplr", "flipud", "roll"),
    *spellings("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "atleast_2d"),
    *spellings("split", "split_with_sizes", "tensor_split", "chunk", "unbind", "hsplit", "vsplit", "dsplit"),
    *spellings("unsafe_split", "unsafe_chunk", "meshgrid", "block_diag", "broadcast_tensors", "atleast_3d"),
    *spellings("contiguous", "clone", "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    *spellings("native_channel_shuffle", "unfold", "atleast_1d", "__getitem__", "__setitem__", "copy_"),
    *spellings("where", "masked_fill", "masked_scatter", "index_copy", "index_fill", "index_put", "scatter"),
    *spellings("fill", "zero_", "select_scatter", "slice_scatter", "diagonal_scatter"),
    Tensor.T.__get__,  # type: ignore[attr-defined]
    Tensor.mT.__get__,  # type: ignore[attr-defined]
    Tensor.H.__get__,  # type: ignore[attr-defined]
    Tensor.mH.__get__,  # type: ignore[attr-defined]
    Tensor.__iter__,
]

# Copies of one element: their probabilities add up, as the ordinary gradient has it.
COPIES = [
    *spellings("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile"),
]

# The winner takes all, and the ordinary gradient goes to the winner.
WINNERS = [
    *spellings("max_pool1d", "max_pool2d", "max_pool3d"),
    *spellings("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *spellings("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *spellings("adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices"),
    *spellings("adaptive_max_pool3d_with_indices", "fractional_max_pool2d", "fractional_max_pool3d"),
    *spellings("fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices"),
    *spellings("max_unpool1d", "max_unpool2d", "max_unpool3d"),
    *spellings("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "aminmax", "median", "nanmedian"),
    *spellings("topk", "sort", "kthvalue", "mode", "cummax", "cummin", "msort"),
]

# The same values in another place or precision.
CASTS = [
    *spellings("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *spellings("requires_grad_", "retain_grad", "register_hook", "pin_memory", "resolve_conj", "resolve_neg"),
    *spellings("backward", "__deepcopy__", "__reduce_ex__", "set_"),
]

IGNORED: frozenset[Callable[..., Any]] = frozenset([*MOVES, *COPIES, *WINNERS, *CASTS])
"""All of them."""
