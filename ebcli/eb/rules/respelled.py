"""Operations that are explained as others, of which they are made. `NotImplemented` leaves one to its own rule."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._decomp import decompositions as loops
from torch.nn import functional as F

from ebcli.eb.operations import RECORD, aten, quiet


def fill(input: Tensor, value: Any = 0) -> Tensor:
    return value.expand(input.shape) if isinstance(value, Tensor) else torch.full_like(input, value)


def trilinear(i1: Tensor, i2: Tensor, i3: Tensor, *expand: Any) -> Any:
    """Of `bilinear`: x1 (B, in1), W (out, in1, in2), x2 (B, in2)."""
    if list(map(list, expand[:4])) != [[1, 3], [0], [1, 2], [2, 3]]:
        return NotImplemented
    record = RECORD.get()
    if record is not None and isinstance(record.value_of(i1), Tensor):  # the constant makes the matrix
        i1, i2, i3 = i3, i2.transpose(1, 2), i1
    matrix = (i3 @ i2.reshape(-1, i2.shape[-1]).mT).view(len(i3), *i2.shape[:2])  # (B, out, in1)
    return (matrix @ i1[..., None])[..., 0]


def variance(input: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    axes = dim or tuple(range(input.ndim))
    squares = (input - input.mean(axes, keepdim=True)).square().sum(axes, keepdim=keepdim)
    count = input.numel() / max(squares.numel(), 1)
    return squares / max(count - (1 if correction is None else correction), 0)


def with_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(input: Tensor, dim: Any = None, *, keepdim: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
        return spread(input, dim, keepdim=keepdim, **options), input.mean(dim, keepdim)

    return both


def log_sum_exp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """A unit that adds up exp(a_k), and its logarithm."""
    with quiet():
        largest = input.amax(dim, keepdim=True)
        fits = input.is_meta or bool((largest < math.log(torch.finfo(input.dtype).max) - 10).all())
    if fits:
        return input.exp().sum(dim, keepdim).log()
    return (input - largest).exp().sum(dim, keepdim).log() + (largest if keepdim else largest.squeeze(dim))


def scatter(input: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None) -> Any:
    return input.scatter_add(dim, index, src) if reduce == "add" and isinstance(src, Tensor) else NotImplemented


RESPELLED: dict[str, Callable[..., Any]] = {
    # as PyTorch decomposes them
    **{
        name: decomposition_table[getattr(aten, name).default]
        for name in "addcmul addcdiv addmm addmv baddbmm glu linalg_vector_norm".split()
    },
    "lerp": lambda input, end, weight: input * (1 - weight) + end * weight,
    "copy": lambda input, src, _non_blocking=False: src.expand(input.shape).to(input.dtype),
    "fill": fill,
    "zero": fill,
    "scatter": scatter,
    "log_sigmoid_forward": lambda input: (-F.softplus(-input), input),
    "logsumexp": log_sum_exp,
    "_trilinear": trilinear,
    "var": variance,
    "std": lambda *args, **options: torch.var(*args, **options).sqrt(),
    "var_mean": with_mean(torch.var),
    "std_mean": with_mean(torch.std),
    "addbmm": lambda input, left, right, **scales: torch.addmm(
        input, left.transpose(0, 1).flatten(1), right.flatten(0, 1), **scales
    ),
}

# Functions of PyTorch that some devices compute in one operation: the loop over time that PyTorch decomposes them to


def recurrent_layers(name: str, input: Tensor, hx: Any, params: Any, has_biases: Any, *options: Any) -> Any:
    # input (T, B, in), hx (layers * directions, B, hidden), a pair of those for an LSTM
    if not isinstance(has_biases, bool) or (options[1] and options[2]):
        return NotImplemented  # a packed sequence, which has other arguments, or dropout that cannot be repeated
    is_lstm = name == "lstm"
    weights = loops.gather_params(params, has_biases, is_lstm and hx[0].shape[2] != hx[1].shape[2])
    states = list(zip(*hx, strict=True)) if is_lstm else hx.unbind()
    layer = loops.one_layer_lstm if is_lstm else partial(loops.one_layer_rnn, hidden_fn=_CELLS[name])
    out, last = loops._rnn_helper(input, states, weights, has_biases, *options, layer)  # type: ignore[call-arg]
    return out, *map(torch.stack, zip(*last, strict=True) if is_lstm else [last])


def recurrent_cell(
    name: str, input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    x = F.linear(input, w_ih, b_ih)
    if name == "lstm_cell":
        return loops.lstm_cell(x, hx[0], hx[1], w_hh, b_hh, None, 1)
    return _CELLS[name.removesuffix("_cell")](x, hx, None, None, w_hh, b_hh)


def _gru(x: Tensor, before: Tensor, _w: Any, _b: Any, u: Tensor, c: Any) -> Tensor:
    """(1 - z) n + z h, as documented, and not (h - n) z + n, where n excites and inhibits."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), F.linear(before, u, c).chunk(3, -1)
    z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
    return (1 - z) * n + z * before


_CELLS: dict[str, Any] = {
    "rnn_tanh": loops.rnn_cell(torch.tanh),
    "rnn_relu": loops.rnn_cell(torch.relu),
    "gru": _gru,
    "lstm": loops.lstm_cell,
}


def cosine_similarity(_: str, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    shape = torch.broadcast_shapes(x1.shape, x2.shape)
    x, y = (F.normalize(a.expand(shape), dim=dim, eps=eps).movedim(dim, -1) for a in (x1, x2))
    return (x[..., None, :] @ y[..., None])[..., 0, 0]


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(home, name): recurrent_layers for name in _CELLS for home in (torch, aten)},
    **{getattr(torch, f"{name}_cell"): recurrent_cell for name in _CELLS},
    torch.cosine_similarity: cosine_similarity,
}
