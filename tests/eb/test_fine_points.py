"""Small things that a whole network rarely shows: zeros, tiny numbers, precision, memory, and what is no gate."""

import pytest
import torch
from torch import nn
from twins import Block, assert_twins, images, seeded

import ebcli
from ebcli.errors import EbcliError, UnsupportedOpError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    # 2 ** -30 is zero in float16
    [(dtype, power) for dtype in DTYPES for power in (-30, -19, -15, 0, 10)[dtype == torch.float16 :]],
)
@pytest.mark.parametrize("contrastive", [False, True])
def test_low_precision_shares_alike(dtype, exponent, contrastive):
    """1 / z overflows in float16 where z is below 1.5e-5."""
    net = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 2, bias=False)).to(dtype)
    net[0].weight.data = torch.tensor([[1.0, 3.0, -2.0]], dtype=dtype)
    net[1].weight.data = torch.tensor([[1.0], [-1.0]], dtype=dtype)
    found = ebcli.excitation_backprop(
        net, torch.full((1, 3), 2.0**exponent, dtype=dtype), 0, contrastive=contrastive
    )
    expected = torch.tensor([[0.25, 0.75, 0.0]])
    torch.testing.assert_close(found.relevance.float(), expected, rtol=0, atol=1e-2)


def test_a_negative_constant_among_active_neurons_is_an_input():
    """y = 1 * 1 + (-3) * (-2) = 7: the neuron gets a seventh, the constant the rest."""

    class Joined(nn.Module):
        def forward(self, x):
            return torch.cat([x.relu(), torch.full_like(x, -2.0)], 1) @ torch.tensor([[1.0], [-3.0]])

    result = ebcli.excitation_backprop(Joined(), torch.ones(1, 1), 0)
    torch.testing.assert_close(result.relevance, torch.tensor([[1 / 7]]))


UNNOTICED = {
    "no_grad": lambda y: _without_gradients(y.neg_),
    "out": lambda y: _without_gradients(lambda: torch.neg(y, out=y)),
}


def _without_gradients(compute):
    with torch.no_grad():
        compute()


@pytest.mark.parametrize("name", UNNOTICED)
def test_a_response_changed_behind_autograds_back(name):

    def between(net, y):
        y = y + 0 * y.detach()  # not the convolution's own output, which plain autograd needs not either
        UNNOTICED[name](y)
        return y

    def direct(net, y):
        UNNOTICED[name](y)
        return y

    for spelled in (between, direct):
        with pytest.raises(EbcliError, match="in place"):
            ebcli.excitation_backprop(seeded(lambda spelled=spelled: Block(spelled)), images(), 1)


def test_a_response_changed_through_a_detached_view():
    def between(net, y):
        y.detach().neg_()
        return y

    assert_twins(seeded(lambda: Block(between)), seeded(lambda: Block(lambda net, y: -y)))


IGNORED_RETURNS = {
    "add_": (lambda y, other: y.add_(other), lambda y, other: y + other),
    "sub_": (lambda y, other: y.sub_(other, alpha=0.5), lambda y, other: y - 0.5 * other),
    "relu_": (lambda y, other: y.relu_(), lambda y, other: y.relu()),
    "mul_": (lambda y, other: y.mul_(other.sigmoid()), lambda y, other: y * other.sigmoid()),
    "copy_": (lambda y, other: y.copy_(other), lambda y, other: other + 0),
    "setitem": (
        lambda y, other: y.__setitem__((slice(None), slice(2, None)), other[:, 2:]),
        lambda y, other: torch.cat([y[:, :2], other[:, 2:]], 1),
    ),
}


@pytest.mark.parametrize("layer", [None, "conv"])
@pytest.mark.parametrize("name", IGNORED_RETURNS)
def test_in_place_operations_whose_return_is_ignored(name, layer):
    in_place, plain = IGNORED_RETURNS[name]

    def overwrite(net, y):
        in_place(y, net.other(y.clone()))
        return y

    def make(between):
        return seeded(lambda: Block(between, other=nn.Conv2d(4, 4, 3, padding=1)))

    if name == "copy_":
        layer = None
    assert_twins(make(overwrite), make(lambda net, y: plain(y, net.other(y))), layer=layer)


@pytest.mark.parametrize("layer", [None, "conv"])
def test_a_sum_written_back_into_its_own_operand(layer):
    def write(net, y):
        y[:, 1:] = y[:, 1:] + net.other(y.clone())[:, 1:]
        return y

    def together(net, y):
        return torch.cat([y[:, :1], y[:, 1:] + net.other(y)[:, 1:]], 1)

    def make(between):
        return seeded(lambda: Block(lambda net, y: between(net, y.tanh()), other=nn.Conv2d(4, 4, 1)))

    assert_twins(make(write), make(together), layer=layer)


NO_GATES = {
    "gate_last": lambda a, b: torch.cat([b, a.sigmoid()], 1),
    "stacked": lambda a, b: torch.stack([a.sigmoid(), b], 1).flatten(1),
    "maximum": lambda a, b: torch.maximum(a.repeat(1, 2).sigmoid(), b.repeat(1, 2)),
}


@pytest.mark.parametrize("name", NO_GATES)
def test_what_holds_a_gate_and_something_else_is_no_gate(name):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.fc = (
                nn.Linear(6, 4),
                nn.Linear(6, 4),
                nn.Linear(6, 8),
                nn.Linear(8, 3),
            )

        def forward(self, x):
            # both factors come from one activation, and neither through it directly
            return self.fc(self.c(x.relu()) * NO_GATES[name](self.a(x), self.b(x)))

    with pytest.raises(UnsupportedOpError, match="mul"):
        ebcli.excitation_backprop(seeded(Product), images((3, 6)), 1)
