"""Exact zeros, tiny numbers, flipped signs and overwritten memory, each against a statement of its own."""

import math

import pytest
import torch
from nets import assert_same, unsettle
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

import ebcli


class Function(nn.Module):
    """A linear layer, a function of its output (B, 4), and a classifier."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other, self.fc = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 5)
        self.function = function
        self.double()

    def forward(self, x):
        return self.fc(self.function(self, self.first(x), x))


X = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def relevance(function, **options):
    return ebcli.excitation_backprop(Function(function), X, [1, 3], **options).relevance


def test_a_normalizer_has_no_epsilon():
    """Contributions of 1e-300 share as others do, a neuron without any gets nothing to share."""
    net = nn.Linear(2, 1, bias=False).double()
    net.weight.data = torch.tensor([[1e-300, 3e-300]], dtype=torch.float64)
    found = ebcli.excitation_backprop(net, torch.tensor([[1.0, 1.0], [0.0, 0.0]]).double(), 0).relevance
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75], [0.0, 0.0]]).double())


@pytest.mark.parametrize("x", [[math.nan, 1.0], [1.0, math.nan]])
def test_a_share_hides_no_nan(x):
    x = torch.tensor([x], requires_grad=True)
    with ebcli.excitation_mode():
        y = F.linear(F.linear(x, torch.ones(2, 2)), torch.ones(1, 2))
    (P,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert P.isnan().any()


def test_a_sum_of_zero_loses_its_probability():
    net = Function(lambda net, y, x: torch.exp(y - y))
    marginal, contrastive = (
        ebcli.excitation_backprop(net, X, 1, contrastive=c, track_lost_mass=c) for c in (False, True)
    )
    assert marginal.mass.tolist() == contrastive.mass.tolist() == [0, 0]


def test_a_contrastive_map_knows_what_a_sum_of_zero_loses():
    """No neuron below the classifier is at zero, so nothing but the sum loses probability."""

    def half_lost(net, y, x):
        return torch.exp(y - y * torch.tensor([1.0, 1, 0.5, 0.5]).double())

    net = Function(half_lost)
    net.first.weight.data = net.first.weight.data.abs()
    net.first.bias.data.zero_()
    net.fc.weight.data = net.fc.weight.data.abs()
    marginal, contrastive = (
        ebcli.excitation_backprop(net, X, 1, contrastive=c, track_lost_mass=c) for c in (False, True)
    )
    assert (marginal.mass < 0.999).all()
    assert_same(contrastive.mass, marginal.mass)


def test_a_response_of_zero_explains_nothing():
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Softplus(), nn.Linear(1, 2, bias=False))
    nn.init.ones_(net[2].weight)
    net[0].weight.data = torch.tensor([[1.0, -1.0]])
    result = ebcli.excitation_backprop(net, torch.ones(1, 2), 0, track_lost_mass=True)
    assert result.relevance.tolist() == [[0, 0]]
    assert [site.split(" in ")[1] for site in result.lost_mass] == ["0"]
    assert [lost.tolist() for lost in result.lost_mass.values()] == [[1]]


def test_a_constant_that_is_overwritten_again_and_again():
    def overwritten(net, y, x):
        scale = torch.ones((), dtype=y.dtype)
        one = torch.relu(y * scale.fill_(2))
        two = torch.relu(net.other(x) * scale.fill_(-3))
        scale.fill_(7)
        return one + two

    twin = relevance(lambda net, y, x: torch.relu(y * 2) + torch.relu(net.other(x) * -3))
    assert_same(relevance(overwritten), twin)


def test_a_norm_s_weights_that_are_overwritten_later():
    def normed(y, gamma):
        zeros = torch.zeros_like(gamma)
        return torch.relu(torch.nn.functional.batch_norm(y, zeros, zeros + 1, gamma, zeros))

    def overwritten(net, y, x):
        gamma = torch.full((y.shape[1],), -2.0, dtype=y.dtype)
        y = normed(y, gamma)
        gamma.neg_()
        return y

    twin = relevance(lambda net, y, x: normed(y, torch.full((y.shape[1],), -2.0, dtype=y.dtype)))
    assert_same(relevance(overwritten), twin)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_memory_overwritten_where_the_mode_sees_nothing():
    """Right, as if the memory were another."""

    @torch.jit.script
    def negate(x: torch.Tensor):
        x.neg_()

    def hidden(net, y, x):
        z = torch.tanh(y)
        negate(y.detach())
        return z

    assert_same(relevance(hidden), relevance(lambda net, y, x: torch.tanh(y)))


@pytest.mark.parametrize("contrastive", [False, True])
def test_two_batch_norms_in_a_row_are_one_layer_with_the_convolution(contrastive):
    torch.manual_seed(0)
    rest = [nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)]
    net = unsettle(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4), *rest))
    net[2].weight.data = net[2].weight.data.abs() * torch.tensor([-1.0, -1, 1, 1]).double()
    twin = nn.Sequential(fuse_conv_bn_eval(fuse_conv_bn_eval(net[0], net[1]), net[2]), *rest)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    found, expected = (
        ebcli.excitation_backprop(n, x, 1, contrastive=contrastive).relevance for n in (net, twin)
    )
    assert_same(found, expected)


@pytest.mark.parametrize("layer", [None, "first"])
def test_a_gate_in_parts_is_still_the_gate_of_an_activation(layer):
    """Neither broadcasting nor depth tells the signal from the gate: both factors come through one activation."""

    def gated(net, y, x):
        gate = net.other(x).sigmoid()
        return F.gelu(y) * torch.cat([gate[:, :2], gate[:, 2:]], 1)

    assert_same(
        relevance(gated, layer=layer),
        relevance(lambda net, y, x: F.gelu(y) * net.other(x).sigmoid(), layer=layer),
    )


class Focal(nn.Module):
    """Focal modulation: a query times a context that comes through an activation and a linear layer."""

    def __init__(self, product):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.context, self.mix, self.fc = (nn.Linear(4, 4) for _ in range(4))
        self.product = product
        self.double()

    def forward(self, x):
        return self.fc(self.product(self.query(x), self.mix(F.gelu(self.context(x)))))


def test_a_factor_that_passed_an_activation_is_the_gate():
    """All probability at the product goes to the query, so that layer's map sums to what reaches the product."""
    net, x = Focal(lambda q, c: q * c), torch.randn(2, 4, dtype=torch.float64)
    at_query = ebcli.excitation_backprop(net, x, 1, "query").relevance
    z = net.fc.weight[1] * net.product(net.query(x), net.mix(F.gelu(net.context(x))))
    assert_same(at_query, (z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)).detach())
    with pytest.raises(ebcli.LayerError, match="does not depend on layer 'mix'"):
        ebcli.excitation_backprop(net, x, 1, [None, "mix"])
