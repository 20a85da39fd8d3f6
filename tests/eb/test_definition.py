"""Whole small networks against the paper's definition, restated through each layer's Jacobian."""

import pytest
import torch
from nets import ACTIVATIONS, NETS, NUM_CLASSES, head, unsettle
from reference import Reference
from torch import nn
from torch.nn import functional as F

import ebcli

TARGETS = torch.tensor([[0, 3], [4, 1]])  # (B, K)


def make(name):
    torch.manual_seed(len(name))
    build, shape, layers = NETS[name]
    net = unsettle(build())
    return net, torch.randn(shape, dtype=torch.float64) * 2, [*layers, None]


def one_hot(classes):
    return F.one_hot(classes, NUM_CLASSES).double()


def assert_equal(found, expected):
    scale = max(1, expected.abs().max().item())
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-10 * scale


def test_by_hand():
    """Two inputs, two hidden neurons, one class: numbers small enough to do without a computer."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    net[0].weight.data = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double()
    net[0].bias.data = torch.tensor([-1.0, 0.0]).double()
    net[2].weight.data = torch.tensor([[1.0, 0.5]]).double()
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    # hidden neurons: 1*1 + 2*2 - 1 = 4 and 3*1 - 1*2 + 0 = 1, so the class hears 4*1 and 1*0.5: P = 8/9, 1/9.
    # the first got 1 and 4 (the bias takes no share), the second 3 and nothing: P = 8/9 * (1/5, 4/5) + 1/9 * (1, 0)
    expected = torch.tensor([[8 / 45 + 5 / 45, 32 / 45]], dtype=torch.float64)
    assert_equal(Reference(net, x).relevance(torch.ones(1, 1).double()), expected)
    assert_equal(ebcli.excitation_backprop(net, x, 0).relevance, expected)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("contrastive", [False, True], ids=["marginal", "contrastive"])
@pytest.mark.parametrize("name", NETS)
def test_network(name, contrastive):
    net, x, layers = make(name)
    reference = Reference(net, x)
    results = ebcli.excitation_backprop(net, x, TARGETS, layers, contrastive)
    with_losses = ebcli.excitation_backprop(net, x, TARGETS, layers, contrastive, track_lost_mass=True)
    for layer, result, tracked in zip(layers, results, with_losses, strict=True):
        for k, classes in enumerate(TARGETS.T):
            expected = reference.relevance(one_hot(classes), layer, contrastive=contrastive)
            marginal = reference.relevance(one_hot(classes), layer) if contrastive else expected
            assert expected.abs().max() > 1e-6  # something to compare
            assert_equal(result.relevance[:, k], expected)
            assert_equal(tracked.relevance[:, k], expected)
            assert_equal(tracked.mass[:, k], marginal.flatten(1).sum(1))
    assert torch.equal(results[0].logits, net(x).detach())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activation(activation):
    """Pass through, whatever the slope, and the layer below explains the sign of its own response."""
    torch.manual_seed(1)
    net = unsettle(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), activation, nn.Conv2d(4, 4, 2), *head(4))
    )
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64) * 5
    reference = Reference(net, x)
    for contrastive in (False, True):
        result = ebcli.excitation_backprop(net, x, [2, 4], contrastive=contrastive)
        expected = reference.relevance(one_hot(torch.tensor([2, 4])), contrastive=contrastive)
        assert_equal(result.relevance, expected)


@pytest.mark.parametrize("contrastive", [False, True], ids=["marginal", "contrastive"])
@pytest.mark.parametrize("name", ["cnn", "residual", "squeeze_excitation", "classifier_conv_relu"])
def test_prior_is_a_linear_combination(name, contrastive):
    net, x, (*_, layer, _) = make(name)
    prior = torch.rand(2, NUM_CLASSES, dtype=torch.float64)
    mixed = ebcli.excitation_backprop(net, x, prior, layer, contrastive).relevance
    classes = torch.arange(NUM_CLASSES).expand(2, -1)
    each = ebcli.excitation_backprop(net, x, classes, layer, contrastive).relevance
    assert mixed.abs().max() > 1e-6
    assert_equal(mixed, (prior.reshape(2, NUM_CLASSES, *(1 for _ in each.shape[2:])) * each).sum(1))


class SeparateBias(nn.Module):
    def __init__(self, layer, *, in_place):
        super().__init__()
        self.layer, self.bias = layer, nn.Parameter(layer.bias.detach().clone())
        layer.bias = None
        self.in_place = in_place

    def forward(self, x):
        y = self.layer(x)
        if self.in_place:
            y += self.bias
            return y
        return y + self.bias


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["out_of_place", "in_place"])
def test_adding_a_parameter_is_a_bias(in_place, activation):
    """W x + b is one layer, whether b is handed to F.linear or added afterwards."""
    torch.manual_seed(3)
    layers = [nn.Linear(6, 9), nn.Linear(9, NUM_CLASSES)]
    nn.init.normal_(layers[0].bias, std=2)
    x = torch.randn(2, 6, dtype=torch.float64)
    whole = nn.Sequential(layers[0], activation, layers[1]).double()
    expected = Reference(whole, x).relevance(one_hot(torch.tensor([1, 2])))
    assert_equal(ebcli.excitation_backprop(whole, x, [1, 2]).relevance, expected)
    apart = nn.Sequential(SeparateBias(layers[0], in_place=in_place), activation, layers[1]).double()
    assert_equal(ebcli.excitation_backprop(apart, x, [1, 2]).relevance, expected)
