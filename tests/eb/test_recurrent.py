"""Recurrent layers and cells have the maps of a loop over time, by both rules."""

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F
from twins import assert_equal_maps, equal_networks, images

import ebcli

CELLS = {
    "rnn_tanh": lambda x, h, _: ((x + h).tanh(),),
    "rnn_relu": lambda x, h, _: ((x + h).relu(),),
    "lstm": lambda x, h, c: by_gates(*(x + h).chunk(4, -1), c),
    "gru": lambda x, h, before: (renewed(*x.chunk(3, -1), *h.chunk(3, -1), before),),
}


def by_gates(i, f, g, o, c):
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def renewed(xr, xz, xn, hr, hz, hn, before):
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (1 - z) * n + z * before


class Recurrent(nn.Module):
    """A recurrent layer between linear ones; its last states, too, reach the classes. (B, T, 6) -> (B, NUM_CLASSES)."""

    def __init__(self, kind, given=False, **options):
        super().__init__()
        self.kind, self.given = kind.__name__.lower(), given
        if kind is nn.RNN:
            self.kind = f"rnn_{options.get('nonlinearity', 'tanh')}"
        self.stem, self.layer = nn.Linear(6, 5), kind(5, 4, **options)
        self.fc = nn.LazyLinear(NUM_CLASSES)

    def forward(self, x):
        x = self.stem(x if self.layer.batch_first else x.transpose(0, 1))
        sizes = [self.layer.proj_size or 4] + [4] * (self.kind == "lstm")
        number = self.layer.num_layers * (1 + self.layer.bidirectional)
        state = [self.first(x, number, size) for size in sizes]
        y, last = self.run(x, state)
        y = y.mean(1) if self.layer.batch_first else y.mean(0)
        return self.fc(torch.cat([y, *(s.transpose(0, 1).flatten(1) for s in last)], 1))

    def first(self, x, number, size):
        """The first state: zeros, or made of the signal."""
        batch = x.shape[0 if self.layer.batch_first else 1]
        if not self.given:
            return x.new_zeros(number, batch, size)
        mean = x.mean(1 if self.layer.batch_first else 0)
        return mean[:, :size].expand(number, batch, size)

    def run(self, x, state):
        y, last = self.layer(x, tuple(state) if self.kind == "lstm" else state[0])
        return y, last if self.kind == "lstm" else (last,)


class ByHand(Recurrent):
    def run(self, x, state):
        layer, last, at = self.layer, [], 0
        x = x.transpose(0, 1) if layer.batch_first else x
        for number in range(layer.num_layers):
            sides = []
            for suffix in ("", "_reverse")[: 1 + layer.bidirectional]:
                own = {name.removesuffix(f"_l{number}{suffix}"): p for name, p in layer.named_parameters()}
                now, at = [s[at] for s in state], at + 1
                steps = {}
                for t in range(len(x)) if not suffix else reversed(range(len(x))):
                    before = now
                    new = F.linear(x[t], own["weight_ih"], own.get("bias_ih"))
                    old = F.linear(before[0], own["weight_hh"], own.get("bias_hh"))
                    now = list(CELLS[self.kind](new, old, before[-1]))
                    now[0] = F.linear(now[0], own["weight_hr"]) if layer.proj_size else now[0]
                    steps[t] = now[0]
                sides.append(torch.stack([steps[t] for t in range(len(x))]))
                last.append(now)
            x = torch.cat(sides, -1)
        y = x.transpose(0, 1) if layer.batch_first else x
        return y, [torch.stack(part) for part in zip(*last, strict=True)]


class Cells(Recurrent):
    """The same by PyTorch's cells, for a single layer in one direction."""

    def run(self, x, state):
        cell, is_lstm = getattr(torch, f"{self.kind}_cell"), self.kind == "lstm"
        steps, now = [], [s[0] for s in state]
        for step in x:
            now = cell(step, tuple(now) if is_lstm else now[0], *self.layer._flat_weights)
            now = now if is_lstm else [now]
            steps.append(now[0])
        return torch.stack(steps), [s[None] for s in now]


RECURRENT = {
    "lstm": (nn.LSTM, {}),
    "lstm of two layers, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm with a projection": (nn.LSTM, {"proj_size": 3, "num_layers": 2}),
    "lstm without bias": (nn.LSTM, {"bias": False, "proj_size": 2, "given": True}),
    "gru": (nn.GRU, {}),
    "gru, both ways": (nn.GRU, {"num_layers": 2, "bidirectional": True, "given": True}),
    "gru without bias": (nn.GRU, {"bias": False, "batch_first": True}),
    "rnn": (nn.RNN, {"bidirectional": True, "given": True}),
    "rnn of relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_loops(name):
    kind, options = RECURRENT[name]
    x = images((2, 3, 6))
    net, twin = equal_networks(lambda: Recurrent(kind, **options), lambda: ByHand(kind, **options), x)
    assert ebcli.excitation_backprop(net, x, 0).joint == ("relu" not in name)
    assert_equal_maps(net, twin, x, ["stem", None])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "rnn of relu"])
def test_recurrent_cells_are_one_step(name, given):
    kind, options = RECURRENT[name]
    x, options = images((2, 3, 6)), {**options, "num_layers": 1, "bidirectional": False, "given": given}
    net, twin = equal_networks(lambda: Cells(kind, **options), lambda: ByHand(kind, **options), x)
    assert_equal_maps(net, twin, x, ["stem", None])
