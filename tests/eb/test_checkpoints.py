"""Modules that are recorded twice give the maps of a network that is recorded as a whole."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import ebcli
from ebcli.eb.checkpoints import checkpointed
from ebcli.errors import EbcliError

N, D = 5, 8


class Layer(nn.Module):
    """Attention that also looks at a learned token, in place, and a gated unit, as in large language models."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.memory = nn.Parameter(torch.randn(1, 1, D))
        self.up, self.gate, self.down = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x, *, scale):
        both = torch.cat([self.memory, x], 1)
        x = x + self.attention(both, both, both)[0][:, 1:]
        x += self.down(self.up(x) * nn.functional.silu(self.gate(x)))
        return x * scale, None


class Net(nn.Module):
    def __init__(self, *, twice, layer=Layer):
        super().__init__()
        self.read = nn.Identity()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.head = nn.Linear(D, 4)
        self.twice = twice

    def forward(self, x):
        states = self.read(x)
        with checkpointed(self) if self.twice else nullcontext():
            for layer in self.layers:
                states, _ = layer(states, scale=torch.tensor(1.5))
        return self.head(states[:, -1])


def results(net, priors):
    torch.manual_seed(1)
    x = torch.randn(1, N, D).double()
    result = ebcli.excitation_backprop(net, x, priors, "read", joint=True)
    return result.relevance, result.mass


def twins():
    nets = [Net(twice=twice).double().eval() for twice in (True, False)]
    nets[0].load_state_dict(nets[1].state_dict())
    return nets


@pytest.mark.parametrize("priors", [torch.eye(4)[None, :1], torch.eye(4)[None], -torch.eye(4)[None, 2:]])
def test_one_class_and_several(priors):
    for a, b in zip(*(results(net, priors.double()) for net in twins()), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_each_class_as_alone():
    net, _ = twins()
    together = results(net, torch.eye(4).double()[None])[0][0]
    for one, prior in zip(together, torch.eye(4).double(), strict=True):
        torch.testing.assert_close(one, results(net, prior[None, None])[0][0, 0], atol=1e-12, rtol=1e-10)


def test_a_constant_in_a_module_takes_its_share():
    """The learned tokens explain something, so less than all is left for the input."""
    net, _ = twins()
    _, mass = results(net, torch.eye(4).double()[None])
    assert (mass < 0.99).all()
    with torch.no_grad():
        for layer in net.layers:
            layer.memory.zero_()
    torch.testing.assert_close(results(net, torch.eye(4).double()[None])[1], torch.ones(1, 4).double())


def test_only_one_module_is_held_at_a_time(monkeypatch):
    """Of what is recorded with numbers, as much as one module makes is held, however many there are."""
    from ebcli.eb.tape import Tape

    held = []
    clear = Tape.clear

    def measure(tape):
        ops = [op for op in vars(tape).get("ops", ()) if "outs" in vars(op)]
        held.append(sum(out.numbers is not None for op in ops for out in op.outs))
        clear(tape)

    monkeypatch.setattr(Tape, "clear", measure)
    for net in twins():
        held.clear()
        results(net, torch.eye(4).double()[None])
        largest = max(held)
        if net.twice:
            of_module = largest
    assert 2.5 * of_module < largest


def test_modules_with_a_state_are_refused():
    class Counting(Layer):
        count = 0

        def forward(self, x, *, scale):
            self.count += 1
            return super().forward(x, scale=scale * self.count)

    net = Net(twice=True, layer=Counting).double().eval()
    with pytest.raises(EbcliError, match="does something else when it is called again"):
        results(net, torch.eye(4).double()[None])
