"""Shortcuts that make it fast change nothing: matrices in blocks, and the mass told without a second pass."""

import pytest
import torch
from nets import NUM_CLASSES, head, unsettle
from reference import Reference
from test_definition import TARGETS, assert_equal, make, one_hot
from torch import nn

import ebcli
from ebcli.eb import products
from ebcli.eb.stepwise import Stepwise


@pytest.fixture
def in_blocks(monkeypatch):
    """Matrices of any size are taken a few rows or columns at a time; tells which pieces there were."""
    pieces = []

    def counting(self, *block, oriented=products.LinearMap.oriented):
        pieces.append(block)
        return oriented(self, *block)

    monkeypatch.setattr(products, "_LARGE", 1)
    monkeypatch.setattr(products, "_BLOCK", 14)
    monkeypatch.setattr(products.LinearMap, "oriented", counting)
    return pieces


@pytest.mark.parametrize("contrastive", [False, True], ids=["marginal", "contrastive"])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid()], ids=str)
def test_blocks(in_blocks, activation, contrastive):
    torch.manual_seed(0)
    layers = [nn.Linear(7, 9), nn.BatchNorm1d(9), activation, nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, NUM_CLASSES)]
    net, x = unsettle(nn.Sequential(*layers)), torch.randn(2, 7, dtype=torch.float64)
    reference = Reference(net, x)
    result = ebcli.excitation_backprop(net, x, TARGETS, contrastive=contrastive)
    for k, classes in enumerate(TARGETS.T):
        expected = reference.relevance(one_hot(classes), contrastive=contrastive)
        assert expected.abs().max() > 1e-6
        assert_equal(result.relevance[:, k], expected)
        one = ebcli.excitation_backprop(net, x, classes, contrastive=contrastive)
        assert_equal(one.relevance, expected)
        assert_equal(one.mass, result.mass[:, k])
    assert (slice(4, 6),) in in_blocks  # of 7 columns, two rows at a time


def test_all_rows_silent(in_blocks):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    nn.init.constant_(net[0].bias, -100)
    result = ebcli.excitation_backprop(net, torch.rand(2, 3).double(), 1)
    assert in_blocks
    assert result.relevance.abs().sum() == 0
    assert result.mass.tolist() == [0, 0]


@pytest.fixture
def passes(monkeypatch):
    """Counts the backward passes."""
    taken = []

    def counting(*args, down=Stepwise._maps):
        taken.append(args)
        return down(*args)

    monkeypatch.setattr(Stepwise, "_maps", counting)
    return taken


@pytest.mark.parametrize("name", ["cnn", "residual", "squeeze_excitation", "classifier_conv_relu", "dense"])
def test_mass_of_contrastive_runs(passes, name):
    net, x, layers = make(name)
    for layer in layers:
        marginal = ebcli.excitation_backprop(net, x, TARGETS, layer)
        contrastive = ebcli.excitation_backprop(net, x, TARGETS, layer, contrastive=True)
        assert_equal(contrastive.mass, marginal.mass)
    assert len(passes) >= 2 * len(layers)


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
def test_what_is_lost_without_a_bias(passes, change):
    torch.manual_seed(0)
    net, x = Beside(change).double(), torch.randn(2, 3, 7, 7, dtype=torch.float64)
    marginal = ebcli.excitation_backprop(net, x, [1, 2], "layer")
    contrastive = ebcli.excitation_backprop(net, x, [1, 2], "layer", contrastive=True)
    assert_equal(contrastive.mass, marginal.mass)


@pytest.mark.parametrize("added", [(0, 0, 0, 0), (0, -1, -1, 0)], ids=["padded by nothing", "cropped"])
def test_one_backward_pass_is_enough(passes, added):
    torch.manual_seed(0)
    pool = nn.Sequential(nn.MaxPool2d(2), nn.ConstantPad2d(added, 1.0))
    net = nn.Sequential(nn.Conv2d(3, 9, 3, bias=False), nn.ReLU(), pool, nn.Conv2d(9, 9, 2), *head(9))
    for bias in (net[3].bias, net[-1].bias):
        nn.init.zeros_(bias)
    result = ebcli.excitation_backprop(net.double(), torch.rand(2, 3, 8, 8).double(), TARGETS, "1", contrastive=True)
    assert len(passes) == 1
    assert result.mass.tolist() == [[1, 1], [1, 1]]
