"""Probability is neither made nor lost, but for what neurons active through their bias alone swallow."""

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import ebcli


def test_bias_only_neurons_by_hand():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    # the first neuron is held up by its bias against both inputs, the second by its bias and one input
    net[0].weight.data = torch.tensor([[-1.0, -2.0], [3.0, -1.0], [0.5, 0.5]]).double()
    net[0].bias.data = torch.tensor([10.0, 4.0, 0.0]).double()
    net[2].weight.data = torch.tensor([[0.25, 0.5, 1.0], [-1.0, 1.0, 1.0]]).double()
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    # hidden 5, 5, 1.5: class 0 hears 1.25, 2.5 and 1.5, so the first neuron swallows 1.25 / 5.25
    result = ebcli.excitation_backprop(net, x, [[0, 1]], track_lost_mass=True)
    ((site, lost),) = result.lost_mass.items()
    assert site.endswith(" in 0")
    assert lost.tolist() == [[pytest.approx(1.25 / 5.25, abs=1e-12), 0]]
    assert result.mass[0, 0].item() == pytest.approx(1 - 1.25 / 5.25, abs=1e-12)
    assert result.mass[0, 1].item() == pytest.approx(1, abs=1e-12)  # class 1 does not hear the first neuron
    assert result.relevance[0, 0].sum().item() == pytest.approx(1 - 1.25 / 5.25, abs=1e-12)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=str)
def test_mass_and_losses_make_one(activation):
    torch.manual_seed(2)
    convs = [nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, 2), nn.Conv2d(6, 4, 2)]
    net = nn.Sequential(
        *(convs[0], activation, convs[1], activation, convs[2], activation, nn.Flatten(), nn.Linear(4, 5))
    ).double()
    for conv in convs:
        conv.weight.data[0] = -conv.weight.data[
            0
        ].abs()  # nothing excites this neuron where inputs are positive,
        conv.bias.data[:2] = 3.0  # and its bias is all that keeps it going
    x = torch.rand(3, 3, 7, 7, dtype=torch.float64)
    lost = torch.zeros(3, dtype=torch.float64)
    by_layer = {}
    a = x
    for index, conv in zip((0, 2, 4), convs, strict=True):
        y = conv(a).detach()
        up, down = a.clamp(min=0), (-a).clamp(min=0)
        W_up, W_down = conv.weight.detach().clamp(min=0), (-conv.weight.detach()).clamp(min=0)
        excitation = F.conv2d(up, W_up, stride=conv.stride) + F.conv2d(down, W_down, stride=conv.stride)
        inhibition = F.conv2d(up, W_down, stride=conv.stride) + F.conv2d(down, W_up, stride=conv.stride)
        by_bias_alone = torch.where(y > 0, excitation, inhibition) == 0
        P = ebcli.excitation_backprop(net, x, 1, str(index)).relevance
        by_layer[str(index)] = (P * by_bias_alone).flatten(1).sum(1)
        lost += by_layer[str(index)]
        a = activation(y)
    result = ebcli.excitation_backprop(net, x, 1, track_lost_mass=True)
    found = {site.split(" in ")[1]: swallowed for site, swallowed in result.lost_mass.items()}
    for layer, swallowed in by_layer.items():
        torch.testing.assert_close(found.get(layer, torch.zeros_like(lost)), swallowed)
    assert set(found) <= set(by_layer)
    contrastive = ebcli.excitation_backprop(net, x, 1, contrastive=True, track_lost_mass=True)
    torch.testing.assert_close(contrastive.lost_mass, result.lost_mass)
    assert ebcli.excitation_backprop(net, x, 1).lost_mass is None
    assert (lost > 0.01).all()
    torch.testing.assert_close(result.mass + lost, torch.ones_like(lost), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.mass, result.relevance.flatten(1).sum(1), rtol=0, atol=1e-12)


def unbiased_resnet():
    return torchvision.models.resnet18(num_classes=6, norm_layer=lambda _channels: nn.Identity())


class Unbiased(nn.Module):
    """Signed residual sums, a gate and several activations, without a bias anywhere."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.gate, self.fc = nn.Linear(8, 8), nn.Linear(8, 6)

    def forward(self, x):
        x = F.silu(self.stem(x))
        x = x + torch.tanh(self.deep(x))
        x = F.max_pool2d(x, 2) * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.fc(F.layer_norm(x, x.shape[1:]).mean((2, 3)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [Unbiased, unbiased_resnet])
def test_contrastive_sums_to_zero_without_biases(make):
    """Class and dual each bring a probability of 1; where no neuron is active by bias, all of both arrives."""
    torch.manual_seed(4)
    net = make().double().eval()
    x = torch.randn(2, 3, 40, 40, dtype=torch.float64)
    layers = [None, "layer1", "layer4"] if make is unbiased_resnet else [None, "stem"]
    for result in ebcli.excitation_backprop(
        net, x, [[0, 1], [2, 5]], layers, contrastive=True, track_lost_mass=True
    ):
        relevance = result.relevance.flatten(2)
        positive = relevance.clamp(min=0).sum(2)
        assert (positive > 1e-3).all()
        assert (relevance.sum(2).abs() <= 1e-6 * positive).all()
        torch.testing.assert_close(result.mass, torch.ones_like(result.mass), rtol=0, atol=1e-9)
