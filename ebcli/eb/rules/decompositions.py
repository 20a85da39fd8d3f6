"""Operations that are explained as others, of which they are made."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.operations import AnyFunction, Op, Value, quiet
from ebcli.eb.rules.layers import matrix_product
from ebcli.eb.rules.moves import MISSING, Join
from ebcli.eb.rules.rule import Choice, Decomposition, Rule, Table
from ebcli.eb.torch_private import decomposition_of
from ebcli.eb.torch_private import loops_over_time as loops


def fill(input: Tensor, value: Any = 0) -> Tensor:
    if isinstance(value, Tensor):
        return value.expand(input.shape)
    return torch.full_like(input, value)


def _bilinear(x1: Tensor, weight: Tensor, x2: Tensor, *_: Any) -> Tensor:
    """x1 (B, in1), W (out, in1, in2), x2 (B, in2), of which x2 makes a matrix for x1."""
    matrix = (x2 @ weight.reshape(-1, weight.shape[-1]).mT).view(len(x2), *weight.shape[:2])  # (B, out, in1)
    return (matrix @ x1[..., None])[..., 0]


def _swap(x1: Tensor, weight: Tensor, x2: Tensor, *_: Any) -> Tensor:
    return _bilinear(x2, weight.transpose(1, 2), x1)


def trilinear(op: Op) -> Rule | Decomposition:
    """Of `bilinear`. A constant makes the matrix."""
    if list(map(list, op.args[3:7])) != [[1, 3], [0], [1, 2], [2, 3]]:
        return MISSING
    if isinstance(op.args[0], Value):
        return Decomposition(_bilinear)
    return Decomposition(_swap)


def variance(
    input: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    axes = dim or tuple(range(input.ndim))
    squares = (input - input.mean(axes, keepdim=True)).square().sum(axes, keepdim=keepdim)
    count = input.numel() / max(squares.numel(), 1)
    if correction is None:
        correction = 1
    return squares / max(count - correction, 0)


def with_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def with_both(
        input: Tensor, dim: Any = None, *, keepdim: bool = False, **options: Any
    ) -> tuple[Tensor, Tensor]:
        return spread(input, dim, keepdim=keepdim, **options), input.mean(dim, keepdim)

    return with_both


def log_sum_exp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """A unit that adds up exp(a_k), and its logarithm."""
    with quiet():
        largest = input.amax(dim, keepdim=True)
        fits = input.is_meta or bool((largest < math.log(torch.finfo(input.dtype).max) - 10).all())
    if fits:
        return input.exp().sum(dim, keepdim).log()
    remaining = (input - largest).exp().sum(dim, keepdim).log()
    if not keepdim:
        largest = largest.squeeze(dim)
    return remaining + largest


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = input @ weight.mT
    if bias is None:
        return product
    return product + bias


def _lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return input * (1 - weight) + end * weight


def _copy(input: Tensor, src: Tensor, _non_blocking: bool = False) -> Tensor:
    return src.expand(input.shape).to(input.dtype)


def _standard_deviation(*args: Any, **options: Any) -> Tensor:
    return torch.var(*args, **options).sqrt()


def _log_sigmoid(input: Tensor) -> tuple[Tensor, Tensor]:
    return -F.softplus(-input), input


def _sum_of_products(input: Tensor, left: Tensor, right: Tensor, **scales: Any) -> Tensor:
    return torch.addmm(input, left.transpose(0, 1).flatten(1), right.flatten(0, 1), **scales)


def _scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor, **_: str) -> Tensor:
    return input.scatter_add(dim, index, src)


def scatter(op: Op) -> Rule | Decomposition:
    reduce = op.kwargs.get("reduce")
    if reduce is None:
        return Join()
    is_sum = reduce == "add" and isinstance(op.args[3], (Tensor, Value))
    if is_sum:
        return Decomposition(_scatter_add)
    return MISSING


def product_with_bias(name: str) -> Choice:
    """A product to which a bias is added. If a signal is added, it is a sum of two signals."""
    decomposition = Decomposition(decomposition_of(name))

    def choose(op: Op) -> Rule | Decomposition:
        if isinstance(op.args[0], Value):
            return decomposition
        return matrix_product(op, has_bias=True)

    return Choice(choose)


ENTRIES: Table = {
    **{name: Decomposition(decomposition_of(name)) for name in "addcmul addcdiv glu".split()},
    **{name: product_with_bias(name) for name in "addmm addmv baddbmm".split()},
    "linalg_vector_norm": Decomposition(decomposition_of("linalg_vector_norm"), is_gate=True),
    "linear": Decomposition(_linear),  # on devices that have it in one piece
    "lerp": Decomposition(_lerp),
    "copy": Decomposition(_copy),
    "fill zero": Decomposition(fill),
    "scatter": Choice(scatter),
    "log_sigmoid_forward": Decomposition(_log_sigmoid),
    "logsumexp": Decomposition(log_sum_exp),
    "_trilinear": Choice(trilinear),
    "var": Decomposition(variance, is_gate=True),
    "std": Decomposition(_standard_deviation, is_gate=True),
    "var_mean": Decomposition(with_mean(torch.var), is_gate=True),
    "std_mean": Decomposition(with_mean(torch.std), is_gate=True),
    "addbmm": Decomposition(_sum_of_products),
}

# Functions of PyTorch that some devices compute in one operation: the loop over time that PyTorch decomposes them to


def recurrent_layers(
    cell: AnyFunction, input: Tensor, hx: Any, params: Any, has_biases: Any, *options: Any
) -> Any:
    # input (T, B, in), hx (layers * directions, B, hidden), a pair of those for an LSTM
    if not isinstance(has_biases, bool) or (options[1] and options[2]):
        # a packed sequence, which has other arguments, or dropout that cannot be repeated
        return NotImplemented
    is_lstm = cell is loops.lstm_cell
    weights = loops.gather_params(params, has_biases, is_lstm and hx[0].shape[2] != hx[1].shape[2])
    states = list(zip(*hx, strict=True)) if is_lstm else hx.unbind()
    layer = loops.one_layer_lstm if is_lstm else partial(loops.one_layer_rnn, hidden_fn=cell)
    out, last = loops._rnn_helper(input, states, weights, has_biases, *options, layer)  # type: ignore[call-arg]
    return out, *map(torch.stack, zip(*last, strict=True) if is_lstm else [last])


def recurrent_cell(
    cell: AnyFunction, input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    x = F.linear(input, w_ih, b_ih)
    if cell is loops.lstm_cell:
        return loops.lstm_cell(x, hx[0], hx[1], w_hh, b_hh, None, 1)
    return cell(x, hx, None, None, w_hh, b_hh)


def gru(x: Tensor, before: Tensor, _w: Any, _b: Any, u: Tensor, c: Any) -> Tensor:
    """(1 - z) n + z h, as documented, and not (h - n) z + n, where n excites and inhibits."""
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = F.linear(before, u, c).chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return (1 - z) * n + z * before


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    a, b = torch.broadcast_tensors(x1, x2)
    x = F.normalize(a, dim=dim, eps=eps).movedim(dim, -1)
    y = F.normalize(b, dim=dim, eps=eps).movedim(dim, -1)
    return (x[..., None, :] @ y[..., None])[..., 0, 0]


FUNCTIONS: dict[Any, AnyFunction] = {torch.cosine_similarity: cosine_similarity}
for layers, one_step, cell in (
    (torch.rnn_tanh, torch.rnn_tanh_cell, loops.rnn_cell(torch.tanh)),
    (torch.rnn_relu, torch.rnn_relu_cell, loops.rnn_cell(torch.relu)),
    (torch.gru, torch.gru_cell, gru),
    (torch.lstm, torch.lstm_cell, loops.lstm_cell),
):
    FUNCTIONS[one_step] = partial(recurrent_cell, cell)
    for function in (layers, getattr(torch.ops.aten, layers.__name__)):
        FUNCTIONS[function] = partial(recurrent_layers, cell)
