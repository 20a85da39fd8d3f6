"""A tensor that only takes another one's shape or type does not come from the input: added, it is a bias.

The twin of each network has the constant in its convolution's bias, or in its linear layer.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Block, assert_twins, images, seeded

import ebcli

B = torch.randn(4, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def with_bias(shift):
    """The block without anything in between and with `shift` (4,) added to its convolution's bias."""
    net = seeded(lambda: Block(lambda net, y: y))
    net.conv.bias.data += shift
    return net


CONSTANTS = {
    "expand_as": lambda y, b: b.expand_as(y),
    "broadcast_to": lambda y, b: b.broadcast_to(y.shape),
    "to": lambda y, b: b.to(y),
    "type_as": lambda y, b: b.type_as(y),
    "times_ones_like": lambda y, b: b * torch.ones_like(y),
    "plus_new_zeros": lambda y, b: b + y.new_zeros(y.shape),
    "new_tensor": lambda y, b: y.new_tensor(b.tolist()),
    "empty_like": lambda y, b: torch.empty_like(y).copy_(b),
    "new_empty": lambda y, b: y.new_empty(y.shape).copy_(b),
    "reshape_as": lambda y, b: b.expand(y.shape).reshape_as(y),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layer", [None, "conv"])
@pytest.mark.parametrize("is_parameter", [True, False])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_tensor_shaped_like_the_signal_is_a_bias(name, is_parameter, layer):
    def between(net, y):
        return y + CONSTANTS[name](y, net.b)

    net = seeded(lambda: Block(between))
    if is_parameter:
        net.b = nn.Parameter(B.clone())
    else:
        net.register_buffer("b", B.clone())
    assert_twins(net, with_bias(B.flatten()), layer=layer)


@pytest.mark.parametrize(
    "cast", [lambda w, y: w.to(y), lambda w, y: w.type_as(y), lambda w, y: w.to(y.dtype)]
)
@pytest.mark.parametrize(
    "product", [lambda y, w: y @ w, lambda y, w: F.linear(y, w.T), torch.matmul, torch.mm]
)
def test_a_weight_cast_to_the_signal_is_a_weight(product, cast):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.w = nn.Linear(6, 5), nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            y = self.first(x).relu()
            return product(y, cast(self.w, y))

    net = seeded(Cast)
    twin = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4, bias=False)).double()
    twin[0].load_state_dict(net.first.state_dict())
    twin[2].weight.data = net.w.data.T.clone()
    assert_twins(net, twin, images((2, 6)))


DIFFERENCES = {
    "tensor": lambda y, c: c - y,
    "sub": lambda y, c: torch.sub(c, y),
    "rsub": torch.rsub,
    "negated": lambda y, c: -y + c,
    "negative_alpha": lambda y, c: torch.add(c, y, alpha=-1),
    "sub_alpha": lambda y, c: 2 * torch.sub(c / 2, y, alpha=0.5),
    "in_place": lambda y, c: c.clone().expand_as(y).contiguous().sub_(y),
}


@pytest.mark.parametrize("at_the_head", [False, True])
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_constant_minus_the_signal_follows_the_sign_of_the_difference(name, at_the_head):
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.fc = nn.Linear(6, 5), nn.Identity() if at_the_head else nn.Linear(5, 4)
            self.register_buffer("c", torch.randn(5))

        def forward(self, x):
            return self.fc(DIFFERENCES[name](self.first(x), self.c))

    net = seeded(Difference)
    twin = nn.Sequential(nn.Linear(6, 5), net.fc).double()
    twin[0].weight.data, twin[0].bias.data = -net.first.weight.data, net.c - net.first.bias.data
    inputs = images((3, 6))
    if not at_the_head:
        assert ((net.first(inputs) > 0) == (net.c - net.first(inputs) > 0)).any(), "both signs must occur"
    assert_twins(net, twin, inputs)


def test_one_minus_the_signal_by_hand():
    # y = x_1 - 4 x_2 = -3 at ones; 1 - y = 4 is positive through x_2 alone, whose weight in it is +4
    net = nn.Linear(2, 1, bias=False)
    net.weight.data = torch.tensor([[1.0, -4.0]])
    x = torch.ones(1, 2, requires_grad=True)
    with ebcli.excitation_mode():
        z = 1 - net(x)
        out = nn.functional.relu(z)
    (P,) = torch.autograd.grad(out, x, torch.ones(1, 1))
    assert P.tolist() == [[0.0, 1.0]]
