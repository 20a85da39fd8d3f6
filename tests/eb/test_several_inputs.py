"""Networks with several inputs, compared with networks of one input that holds all of them."""

import pytest
import torch
from torch import nn

import ebcli
from ebcli.errors import ConfigurationError, LayerError


class PictureAndTable(nn.Module):
    """A picture (B, 3, 6, 5) and a row of a table (B, 4), and perhaps a number of a category (B,)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.table = nn.Conv2d(3, 4, 3), nn.Linear(4, 6)
        self.category = nn.Embedding(3, 54)
        self.head = nn.Linear(48 + 6, 5)

    def forward(self, picture, table, category=None):
        features = torch.cat([self.conv(picture).relu().flatten(1), self.table(table).relu()], 1)
        if category is not None:
            features = features * self.category(category).sigmoid()
        return self.head(features)


class Change(nn.Module):
    """Two pictures through the same layers, of which the second one comes first in the list."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Linear(96, 5)

    def forward(self, before, after):
        after = self.body(after)
        return self.head(torch.cat([self.body(before), after], 1).flatten(1))


class Packed(nn.Module):
    """A network of several inputs as one of a single input (B, elements)."""

    def __init__(self, net, shapes):
        super().__init__()
        self.net, self.shapes = net, shapes

    def forward(self, packed):
        parts = packed.split([shape.numel() for shape in self.shapes], 1)
        return self.net(*(part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)))


def inputs_of(kind, batch):
    generator = torch.Generator().manual_seed(batch)
    shapes = [(3, 6, 5), (3, 6, 5)] if kind is Change else [(3, 6, 5), (4,)]
    return [torch.randn(batch, *shape, generator=generator, dtype=torch.double) for shape in shapes]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("joint", "contrastive"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", [PictureAndTable, Change])
def test_inputs_share_the_probability_of_all(kind, joint, contrastive, batch):
    net = kind().eval().double()
    inputs = inputs_of(kind, batch)
    packed = Packed(net, [a.shape[1:] for a in inputs])
    options = {"contrastive": contrastive, "joint": joint}
    whole = ebcli.excitation_backprop(packed, torch.cat([a.flatten(1) for a in inputs], 1), 2, **options)
    parts = ebcli.excitation_backprop(net, tuple(inputs), 2, [None, "input:1"], **options)
    relevance = torch.cat([part.relevance.flatten(1) for part in parts], 1)
    if joint:  # each layer's share of the joint neuron is 1
        positive = whole.relevance.split([a[0].numel() for a in inputs], 1)
        expected = torch.cat([part / part.sum(1, keepdim=True) for part in positive], 1)
    else:
        expected = whole.relevance
    torch.testing.assert_close(relevance, expected)
    assert [part.layer for part in parts] == [None, "input:1"]
    assert [part.relevance.shape for part in parts] == [a.shape for a in inputs]
    assert parts[0].maps.shape == (batch, 6, 5)


def test_inputs_are_given_by_name_or_in_order():
    net = PictureAndTable().eval()
    picture, table = (a.float() for a in inputs_of(PictureAndTable, 2))
    by_order = ebcli.excitation_backprop(net, [picture, table], 1, [None, "input:0", "input:1"])
    by_name = ebcli.excitation_backprop(
        net, {"table": table, "picture": picture}, 1, [None, "input:picture", "input:table"]
    )
    for first, second in zip(by_order, by_name, strict=True):
        torch.testing.assert_close(first.relevance, second.relevance)
    assert [result.layer for result in by_name] == [None, None, "input:table"]  # the picture is drawn
    (layer,) = ebcli.excitation_backprop(net, (picture, table), 1, ["conv"])
    assert layer.maps.shape == (2, 4, 3)


def test_inputs_in_order_can_be_named_by_their_arguments():
    net = PictureAndTable().eval()
    inputs = tuple(a.float() for a in inputs_of(PictureAndTable, 2))
    expected = ebcli.excitation_backprop(net, inputs, 1, "input:1")
    found = ebcli.excitation_backprop(net, inputs, 1, "input:table")
    torch.testing.assert_close(found.relevance, expected.relevance)
    assert found.layer == "input:1"
    pictures = tuple(inputs_of(Change, 2))
    by_name = ebcli.excitation_backprop(Change().eval().double(), pictures, 1, ["before", "after"])
    assert [result.layer for result in by_name] == [None, "input:1"]
    # a module of that name comes first
    assert ebcli.excitation_backprop(net, inputs, 1, "table").layer == "table"


def test_whole_numbers_are_constants():
    net = PictureAndTable().eval()
    picture, table = (a.float() for a in inputs_of(PictureAndTable, 2))
    category = torch.tensor([2, 0])
    both = ebcli.excitation_backprop(net, (picture, table, category), 1, [None, "input:1"])
    assert torch.stack([result.mass for result in both]).sum(0).allclose(torch.ones(2))
    with pytest.raises(
        LayerError, match="input '2' has whole numbers, which carry no signal: choose one of 0, 1"
    ):
        ebcli.excitation_backprop(net, (picture, table, category), 1, "input:2")


def test_what_is_no_input_is_said():
    net = PictureAndTable().eval()
    picture, table = (a.float() for a in inputs_of(PictureAndTable, 1))
    with pytest.raises(LayerError, match="the network gets no input 'tabel': choose one of picture, table"):
        ebcli.excitation_backprop(net, {"picture": picture, "table": table}, 1, "input:tabel")
    with pytest.raises(ConfigurationError, match="the inputs must be tensors, not a str"):
        ebcli.excitation_backprop(net, (picture, "table"), 1)
    with pytest.raises(ConfigurationError, match="no inputs given"):
        ebcli.excitation_backprop(net, (), 1)
    with pytest.raises(LayerError, match="the output does not depend on input '1'"):
        ebcli.excitation_backprop(Unused(), (picture, picture), 1, "input:1")


class Unused(nn.Module):
    def forward(self, picture, _):
        return picture.mean((2, 3))
