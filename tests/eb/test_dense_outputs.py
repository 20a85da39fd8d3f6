"""Networks that name a class for each pixel: each pixel is a classifier of its own, and priors are linear."""

import pytest
import torch
from nets import unsettle
from torch import nn

import ebcli

CLASSES, HEIGHT, WIDTH = 5, 6, 4


class OnePixel(nn.Module):
    """The plain classifier that one pixel of a dense network is."""

    def __init__(self, net, row, column):
        super().__init__()
        self.net, self.row, self.column = net, row, column

    def forward(self, x):
        return self.net(x)[:, :, self.row, self.column]


def assert_same(found, expected):
    assert expected.abs().max() > 1e-6
    assert (found - expected).abs().max() <= 1e-10 * max(1, expected.abs().max().item())


@pytest.fixture
def dense():
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, CLASSES, 1),
    ]
    net = nn.Sequential(*body, nn.Upsample(size=(HEIGHT, WIDTH), mode="bilinear"))
    return unsettle(net), torch.randn(2, 3, 8, 8, dtype=torch.float64)


def by_pixel(net, x, target, contrastive):
    """(H, W, ...): the relevance for each pixel's own classifier."""
    rows = []
    for row in range(HEIGHT):
        for column in range(WIDTH):
            one = OnePixel(net, row, column)
            rows.append(ebcli.excitation_backprop(one, x, target, contrastive=contrastive).relevance)
    return torch.stack(rows).unflatten(0, (HEIGHT, WIDTH))


@pytest.mark.parametrize("contrastive", [False, True])
def test_pixels_and_masks(dense, contrastive):
    net, x = dense
    singly = by_pixel(net, x, [1, 4], contrastive)

    def explain(where):
        return ebcli.excitation_backprop(net, x, [1, 4], contrastive=contrastive, where=where).relevance

    assert_same(explain((2, 3)), singly[2, 3])
    assert_same(explain(None), singly.mean((0, 1)))
    mask = torch.rand(HEIGHT, WIDTH) * (torch.rand(HEIGHT, WIDTH) > 0.5)
    assert_same(explain(mask), torch.einsum("hw,hw...->...", mask.double() / mask.double().sum(), singly))
    each = torch.zeros(2, HEIGHT, WIDTH, dtype=torch.bool)
    each[0, 1:3, 0] = each[1, 5, 2] = True
    assert_same(explain(each), torch.stack([singly[1:3, 0, 0].mean(0), singly[5, 2, 1]]))


def test_several_classes_of_one_pixel(dense):
    net, x = dense
    result = ebcli.excitation_backprop(net, x, [[0, 1], [2, 3]], where=(0, 0))
    assert result.relevance.shape == (2, 2, 3, 8, 8)
    assert result.maps.shape == (2, 2, 8, 8)
    second = ebcli.excitation_backprop(net, x, [1, 3], where=(0, 0))
    assert_same(result.relevance[:, 1], second.relevance)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((6, 0), r"pixel \(6, 0\) is outside the output, 6 x 4"),
        ((-1, 0), "is outside the output"),
        ((1,), "is outside the output"),
        (torch.ones(4, 6), r"mask has shape \(4, 6\).*\(6, 4\)"),
        (torch.zeros(6, 4), "positive somewhere"),
        (torch.ones(2, 6, 4).index_fill(0, torch.tensor(1), 0), "positive somewhere in each image"),
        (-torch.eye(6, 4), "must be non-negative"),
    ],
)
def test_pixels_that_are_not_there(dense, where, message):
    net, x = dense
    with pytest.raises(ebcli.ConfigurationError, match=message):
        ebcli.excitation_backprop(net, x, 1, where=where)


def test_where_is_for_pixels(dense):
    net, x = dense
    with pytest.raises(ebcli.ConfigurationError, match="one prediction per image"):
        ebcli.excitation_backprop(OnePixel(net, 0, 0), x, 1, where=(0, 0))
    with pytest.raises(ebcli.ConfigurationError, match="cannot be combined with a prior"):
        ebcli.excitation_backprop(net, x, torch.ones(2, CLASSES, HEIGHT, WIDTH), where=(0, 0))


@pytest.mark.parametrize("contrastive", [False, True])
def test_several_priors_on_different_pixels(dense, contrastive):
    net, x = dense
    singly = by_pixel(net, x, [1, 4], contrastive)
    places = [(2, 3), (0, 0), (5, 1)]
    priors = torch.zeros(2, len(places), CLASSES, HEIGHT, WIDTH, dtype=torch.float64)
    for k, (row, column) in enumerate(places):
        priors[0, k, 1, row, column] = priors[1, k, 4, row, column] = 1
    found = ebcli.excitation_backprop(net, x, priors, contrastive=contrastive, track_lost_mass=True)
    assert found.mass.shape == (2, len(places))
    for k, place in enumerate(places):
        assert_same(found.relevance[:, k], singly[place])


def test_priors_to_contrast_are_on_the_same_pixels(dense):
    net, x = dense
    priors = torch.zeros(2, 2, CLASSES, HEIGHT, WIDTH, dtype=torch.float64)
    priors[:, 0, 1, 2, 3] = priors[:, 1, 1, 0, 0] = 1
    with pytest.raises(ebcli.ConfigurationError, match="pass those on other pixels one at a time"):
        ebcli.excitation_backprop(net, x, priors, against=2)
