"""Where shortcuts make it fast, numbers are the same: large matrices, and the mass of contrastive maps."""

import pytest
import torch
from nets import NUM_CLASSES, head, unsettle
from test_definition import TARGETS, assert_equal
from torch import nn

import ebcli


def by_eq_4(signal, weight, response, P):
    """Eq. 4 for a layer, with max(W, 0), max(-W, 0), max(a, 0) and max(-a, 0) written out."""
    up, down, W_up, W_down = (
        signal.clamp(min=0),
        (-signal).clamp(min=0),
        weight.clamp(min=0),
        (-weight).clamp(min=0),
    )
    total = torch.zeros_like(signal)
    for sign, (first, second) in ((1, (W_up, W_down)), (-1, (W_down, W_up))):
        z = up @ first.T + down @ second.T
        q = torch.where((response.sign() == sign) & (z > 0), P / z, 0)
        total += up * (q @ first) + down * (q @ second)
    return total


WIDTH, UNITS = 2100, 2050  # more than four million weights, which some way of multiplying may take in blocks


@pytest.mark.one_in(3)
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid()], ids=str)
def test_large_matrices(activation):
    torch.manual_seed(0)
    net = unsettle(
        nn.Sequential(
            nn.Linear(WIDTH, UNITS), nn.BatchNorm1d(UNITS), activation, nn.Linear(UNITS, NUM_CLASSES)
        )
    )
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    layer, norm, _, head_layer = net
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    response = net[:2](x).detach()
    units = activation(response)
    for classes in TARGETS.T:
        weight = head_layer.weight[classes].detach()
        shares = [(s * weight * units).clamp(min=0) for s in (1, -1)]
        maps = [
            by_eq_4(x, (layer.weight * scale[:, None]).detach(), response, z / z.sum(1, keepdim=True))
            for z in shares
        ]
        marginal, contrastive = (
            ebcli.excitation_backprop(net, x, classes, contrastive=c) for c in (False, True)
        )
        assert maps[0].max() > 1e-6
        assert_equal(marginal.relevance, maps[0])
        assert_equal(contrastive.relevance, maps[0] - maps[1])
        assert_equal(marginal.mass, maps[0].sum(1))


def test_all_rows_silent():
    net = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, 2))
    nn.init.constant_(net[0].bias, -100)
    result = ebcli.excitation_backprop(net, torch.rand(2, WIDTH), 1)
    assert result.relevance.abs().sum() == 0
    assert result.mass.tolist() == [0, 0]


class Beside(nn.Module):
    """A path from the layer to the output that loses probability for reasons other than neurons."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Conv2d(3, 6, 3), change
        self.rest = nn.Sequential(nn.Conv2d(6, 4, 2), nn.ReLU(), *head(4))

    def forward(self, x):
        y = self.layer(x).relu()
        return self.rest(self.change(y, x))


@pytest.mark.parametrize(
    "change",
    [
        lambda y, x: torch.cat([y[:, :3], torch.ones_like(y[:, 3:]).detach()], 1),
        lambda y, x: y + x[:, :1, 1:-1, 1:-1].abs(),
        lambda y, x: torch.nn.functional.pad(y, (1, 1, 1, 1), value=1.0),
        lambda y, x: torch.nn.functional.pad(y, (1, -1, 1, -1), value=1.0),
        lambda y, x: y.masked_fill(y > 0.5, 2.0),
        lambda y, x: torch.where(y > 0.5, torch.full_like(y, 2.0), y),
        lambda y, x: torch.exp(y),
    ],
    ids=["cat", "skip", "pad", "shift", "fill", "where", "exp"],
)
def test_what_is_lost_without_a_bias(change):
    torch.manual_seed(0)
    net, x = Beside(change).double(), torch.randn(2, 3, 7, 7, dtype=torch.float64)
    marginal = ebcli.excitation_backprop(net, x, [1, 2], "layer")
    contrastive = ebcli.excitation_backprop(net, x, [1, 2], "layer", contrastive=True, track_lost_mass=True)
    assert_equal(contrastive.mass, marginal.mass)


@pytest.mark.parametrize("added", [(0, 0, 0, 0), (0, -1, -1, 0)], ids=["padded by nothing", "cropped"])
def test_the_mass_is_whole_without_a_bias(added):
    torch.manual_seed(0)
    pool = nn.Sequential(nn.MaxPool2d(2), nn.ConstantPad2d(added, 1.0))
    net = nn.Sequential(nn.Conv2d(3, 9, 3, bias=False), nn.ReLU(), pool, nn.Conv2d(9, 9, 2), *head(9))
    for bias in (net[3].bias, net[-1].bias):
        nn.init.zeros_(bias)
    x = torch.rand(2, 3, 8, 8).double()
    result = ebcli.excitation_backprop(net.double(), x, TARGETS, "1", contrastive=True, track_lost_mass=True)
    torch.testing.assert_close(result.mass, torch.ones_like(result.mass), rtol=0, atol=1e-12)
