"""Two blocks worked out one number at a time, in plain Python: a tiny ViT encoder block and a squeeze-excitation."""

import math

import pytest
import torch
from torch import nn
from torchvision.models.vision_transformer import EncoderBlock
from torchvision.ops import SqueezeExcitation

import ebcli


@pytest.fixture
def block():
    torch.manual_seed(3)
    block = (
        EncoderBlock(num_heads=1, hidden_dim=2, mlp_dim=3, dropout=0.0, attention_dropout=0.0).double().eval()
    )
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    return block


def test_squeeze_excitation():
    """Two channels of two pixels: the gate takes nothing, and the signal is not scaled by it on the way down."""
    gated = nn.Sequential(SqueezeExcitation(2, 1), nn.Flatten(), nn.Linear(4, 1)).double()
    for parameter in gated.parameters():
        nn.init.constant_(parameter, 0.5)
    gated[2].weight.data = torch.tensor([[1.0, 2.0, -1.0, 4.0]], dtype=torch.float64)
    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.5]]]], dtype=torch.float64)
    # means 2 and 1.25 -> relu(0.5 * 3.25 + 0.5) = 2.125 -> both gates sigmoid(0.5 * 2.125 + 0.5) = g
    g = 1 / (1 + math.exp(-1.5625))
    assert gated(x).item() == pytest.approx(g * (1 + 6 - 2 + 2) + 0.5)
    # the class hears g, 6 g and 2 g, and the third pixel is against it
    result = ebcli.excitation_backprop(gated, x, 0)
    assert result.relevance.flatten().tolist() == pytest.approx([1 / 9, 6 / 9, 0, 2 / 9])
    contrast = ebcli.excitation_backprop(gated, x, 0, contrastive=True)
    assert contrast.relevance.flatten().tolist() == pytest.approx([1 / 9, 6 / 9, -1, 2 / 9])


def test_probability_at_an_inactive_neuron_goes_to_what_inhibits_it():
    """exp(relu(-2)) = 1 excites the class: the response of -2 is explained by the weight of -3."""
    net = nn.Sequential(
        nn.Linear(2, 1, bias=False), nn.ReLU(), Exponential(), nn.Linear(1, 1, bias=False)
    ).eval()
    net[0].weight.data, net[3].weight.data = torch.tensor([[1.0, -3.0]]), torch.tensor([[1.0]])
    assert ebcli.excitation_backprop(net, torch.ones(1, 2), 0).relevance.tolist() == [[0.0, 1.0]]


class Exponential(nn.Module):
    def forward(self, y):
        return y.exp()
