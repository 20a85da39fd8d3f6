"""Faster ways to the same maps: products with W and |W|, and arithmetic instead of masks."""

import copy

import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional as F

import ebcli


def eq4(weight, a, y, P):
    """Eq. 4, neuron by neuron: inputs (N,), responses and their probabilities (M,)."""
    shares = torch.zeros_like(a)
    for w, response, probability in zip(weight, y, P, strict=True):
        z = (response.sign() * w * a).clamp(min=0)
        shares += probability * z / z.sum() if z.sum() > 0 else 0
    return shares


@pytest.mark.parametrize("width", [3, 200])  # small sums often lose too many digits, large ones do not
def test_signed_neurons_in_float32(width):
    torch.manual_seed(0)
    layer, a, P = nn.Linear(width, 40), torch.randn(1, width), torch.rand(1, 40)
    y = layer(a).detach()
    with ebcli.excitation_mode():
        read = F.linear(a.requires_grad_(), layer.weight, layer.bias) @ torch.diag(
            y[0].sign()
        )  # by the class
    found = torch.autograd.grad(read, a, P)[0]
    expected = eq4(layer.weight.detach().double(), a[0].detach().double(), y[0].double(), P[0].double())
    assert (found >= 0).all()
    assert (found - expected).abs().max() < 1e-6 * expected.max()


def shares(weight, a, P):
    """By the mode, for neurons that their biases make positive."""
    with ebcli.excitation_mode():
        y = F.linear(a.requires_grad_(), weight, torch.full((len(weight),), 1e4))
        read = y @ torch.eye(len(weight))  # by the class
    assert (y > 0).all()
    return torch.autograd.grad(read, a, P)[0]


def test_a_small_contribution_among_large_inhibitions_in_float32():
    """W a and |W| |a| differ by little more than rounding: the probability is lost, or all on the first input."""
    torch.manual_seed(1)
    a, P = torch.randn(1, 300), torch.rand(1, 8)
    weight = -a.sign() * torch.rand(8, 300)
    assert not shares(weight, a.clone(), P).any()
    weight[:, 0] = a[:, 0].sign() * 1e-5
    found = shares(weight, a.clone(), P)
    assert not found[:, 1:].any()
    torch.testing.assert_close(found[:, 0], P.sum(1))


def test_no_share_is_negative_in_float32():
    """Half of the inputs excite only one neuron, which has hardly any probability."""
    torch.manual_seed(2)
    a, P = torch.randn(1, 200), torch.rand(1, 40)
    weight = a.sign() * torch.rand(40, 200)
    weight[:-1, :100] *= -1
    P[:, -1] = 1e-8
    assert (shares(weight, a, P) >= 0).all()


def test_maps_of_transformers_in_float32():
    specimen = zoo.small("swin_t")
    exact = copy.deepcopy(specimen.net).double()
    for contrastive in (False, True):
        arguments = 3, specimen.layer, contrastive
        found = ebcli.excitation_backprop(specimen.net, specimen.inputs, *arguments).relevance
        expected = ebcli.excitation_backprop(exact, specimen.inputs.double(), *arguments).relevance
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
        assert contrastive or (found >= 0).all()


def test_joint_units_at_zero():
    """The class's unit is at zero before a sigmoid: what follows the classifier passes its dual and its class on."""
    torch.manual_seed(2)
    head = nn.Linear(4, 3, bias=False)
    net = nn.Sequential(nn.Linear(6, 4), nn.GELU(), head).double().eval()
    x = torch.randn(1, 6).double()
    h = net[:2](x)[0]
    head.weight.data[1] = torch.stack([h[1], -h[0], torch.zeros_like(h[0]), torch.zeros_like(h[0])]).detach()
    assert net(x)[0, 1] == 0
    plain, behind = (
        ebcli.excitation_backprop(n, x, 1, contrastive=True, joint=True).relevance
        for n in (net, nn.Sequential(*net, nn.Sigmoid()))
    )
    assert plain.any()
    torch.testing.assert_close(plain, behind)


def test_a_unit_whose_input_is_zero_has_no_weight():
    """exp(0) = 1, but P / u has no value at u = 0."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    net[0].weight.data = torch.tensor([[1.0, -1.0], [1.0, 2.0]]).double()
    net[1].weight.data = torch.ones(1, 2).double()
    net.insert(1, Exponential())
    found = ebcli.excitation_backprop(net, torch.ones(1, 2).double(), 0, joint=True)
    torch.testing.assert_close(found.relevance, torch.tensor([[1 / 3, 2 / 3]]).double())


class Exponential(nn.Module):
    def forward(self, u):
        return u.exp()
