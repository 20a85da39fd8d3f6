"""Recurrent layers: the loop over time that PyTorch documents, made of layers, gates, products and sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.primitives import by_parts
from ebcli.eb.registry import Call, name_of, overloads, rule


@rule(*overloads("lstm", "gru", "rnn_tanh", "rnn_relu"))
def recurrent_layers(
    call: Call,
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Any:
    # input (T, B, in), hx (layers * directions, B, hidden), a pair of those for an LSTM
    if not isinstance(has_biases, bool) or (train and dropout):
        return NotImplemented  # a packed sequence, which has other arguments, or dropout that cannot be repeated
    orders = (1, -1) if bidirectional else (1,)

    def spelled_out() -> tuple[Tensor, ...]:
        x = input.transpose(0, 1) if batch_first else input
        states = zip(*(state.unbind() for state in _states(hx)), strict=True)
        size, last = len(params) // (num_layers * len(orders)), []
        weights = iter(params[at : at + size] for at in range(0, len(params), size))
        for _ in range(num_layers):
            outputs = []
            for order in orders:
                state, (w, u, *rest) = next(states), next(weights)
                b, *rest = rest if has_biases else (None, None, *rest)
                steps = []
                for now in F.linear(x, w, b).unbind()[::order]:
                    state = _next_state(call, now, state, u, *rest)
                    steps.append(state[0])
                outputs.append(torch.stack(steps[::order]))
                last.append(state)
            x = torch.cat(outputs, -1)
        return x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*last, strict=True))

    return by_parts(call, spelled_out)


@rule(*overloads("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"))
def recurrent_cell(
    call: Call, input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    def spelled_out() -> Any:
        state = _next_state(call, F.linear(input, w_ih, b_ih), _states(hx), w_hh, b_hh)
        return state if len(state) > 1 else state[0]

    return by_parts(call, spelled_out)


def _states(hx: Any) -> tuple[Tensor, ...]:
    """h, and for an LSTM c."""
    return (hx,) if isinstance(hx, Tensor) else tuple(hx)


def _next_state(
    call: Call, x: Tensor, state: tuple[Tensor, ...], u: Tensor, c: Tensor | None, projection: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The state after one step, from W x + b and the state before."""
    cell = _CELLS[name_of(call.func).removesuffix("_cell")]
    h, *memory = cell(x, F.linear(state[0], u, c), state[-1])
    return h if projection is None else F.linear(h, projection), *memory


def _lstm(x: Tensor, h: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x + h).chunk(4, -1)
    memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru(x: Tensor, h: Tensor, before: Tensor) -> tuple[Tensor]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
    return ((1 - z) * n + z * before,)


_CELLS: dict[str, Any] = {
    "rnn_tanh": lambda x, h, _: ((x + h).tanh(),),
    "rnn_relu": lambda x, h, _: ((x + h).relu(),),
    "lstm": _lstm,
    "gru": _gru,
}
