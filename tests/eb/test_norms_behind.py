"""Batch norm behind what moves values is a part of the layer, and behind averages it is not: against the definition."""

import pytest
import torch
from reference import Reference
from torch import nn
from torch.nn import functional as F
from twins import Block, images, seeded

import ebcli

MOVED = {
    "overlapping max pooling": lambda net, y: net.pool(y),
    "two poolings": lambda net, y: net.pool(net.pool(y)),
    "max pooling of padded values": lambda net, y: net.pool(F.pad(y, (1, 1, 1, 1))),
    "concatenation": lambda net, y: torch.cat([y, net.other(y)], 1),
    "concatenation of overlapping parts": lambda net, y: torch.cat([y[:, :3], y[:, 1:]], 1),
    "padding": lambda net, y: F.pad(y, (1, 0, 0, 2)),
    "padding by a number": lambda net, y: F.pad(y, (1, 0, 0, 2), value=0.3),
}
AVERAGED = {
    "average pooling": lambda net, y: F.avg_pool2d(y, 2),
    "overlapping average pooling": lambda net, y: F.avg_pool2d(y, 3, 1),
    "adaptive average pooling": lambda net, y: F.adaptive_avg_pool2d(y, 2),
    "mean": lambda net, y: y.mean(3, keepdim=True),
    "sum": lambda net, y: y.sum(3, keepdim=True),
}


ACTIVATIONS = {"none": lambda y: y, "relu": F.relu, "tanh": torch.tanh}


def normed(between, act):
    """A network of a convolution, a function, a batch norm with gammas of both signs, and an activation."""
    net = Block(
        lambda net, y: act(net.bn(between(net, y))), pool=nn.MaxPool2d(2, 1), other=nn.Conv2d(4, 3, 1)
    )
    net.bn = nn.BatchNorm2d(between(net, net.conv(torch.zeros(1, 3, 6, 6))).shape[1])
    net.fc = nn.Linear(net.between(net, net.conv(torch.zeros(1, 3, 6, 6))).numel(), 5)
    return net


def assert_as_defined(net, layers):
    x, prior = images(), torch.eye(5, dtype=torch.float64)[[1, 3]]
    reference = Reference(net, x)
    for contrastive in (False, True):
        for result in ebcli.excitation_backprop(net, x, [1, 3], layers, contrastive):
            expected = reference.relevance(prior, result.layer, contrastive=contrastive)
            assert expected.abs().max() > 1e-4
            torch.testing.assert_close(result.relevance, expected, rtol=0, atol=1e-10)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("act", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("name", MOVED)
def test_batch_norm_behind_moves_is_a_part_of_the_layer_by_definition(name, act):
    net = seeded(lambda: normed(MOVED[name], act))
    assert {*net.bn.weight.sign().tolist()} == {-1, 1}
    assert_as_defined(net, [None, "conv"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("act", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("name", AVERAGED)
def test_batch_norm_behind_averages_is_no_part_of_the_layer(name, act):
    """An average is a neuron of its own, which is explained by its own response."""
    net = seeded(lambda: normed(AVERAGED[name], act))
    assert_as_defined(net, [None, "conv"])


@pytest.mark.parametrize("name", [name for name in AVERAGED if name != "sum"])
def test_batch_norm_before_an_average_has_another_map(name):
    """Though it is the same function: so the test above would notice if it were folded."""
    behind = seeded(lambda: normed(AVERAGED[name], torch.tanh))
    before = seeded(lambda: normed(AVERAGED[name], torch.tanh))
    before.load_state_dict(behind.state_dict())
    before.between = lambda net, y: AVERAGED[name](net, net.bn(y)).tanh()
    found, other = (ebcli.excitation_backprop(net, images(), 1) for net in (behind, before))
    torch.testing.assert_close(found.logits, other.logits)
    assert (found.relevance - other.relevance).abs().max() > 1e-3
