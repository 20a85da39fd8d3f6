"""Models with habits that get in the way of hooks: right, or an error that names the module.

A network that works in place is compared with its twin that doesn't, and the twin with the definition.
"""

import pytest
import torch
from nets import IMAGE, NUM_CLASSES, assert_same, classifier, head, one_hot
from reference import Reference
from torch import nn
from torch.nn import functional as F

import ebcli


class Habit(nn.Module):
    """Two convolutions and a head; what happens between them differs from twin to twin."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.gate, self.fc = nn.Linear(4, 4), nn.Linear(4, NUM_CLASSES)
        self.between = between

    def forward(self, x):
        return self.fc(self.between(self, x).mean((2, 3)))


def silu_in_place(net, x):
    return net.second(F.silu(net.first(x), inplace=True))


def silu(net, x):
    return net.second(F.silu(net.first(x)))


def add_in_place(net, x):
    x = torch.tanh(net.first(x))
    out = net.second(x)
    out += x
    return out


def add(net, x):
    x = torch.tanh(net.first(x))
    return net.second(x) + x


def add_method_in_place(net, x):
    x = net.first(x).tanh_()
    return net.second(x).add_(x).relu_()


def add_then_relu(net, x):
    x = torch.tanh(net.first(x))
    return torch.relu(net.second(x) + x)


def relu_of_some_channels_in_place(net, x):
    x = net.first(x)
    x[:, :2].relu_()
    return net.second(x)


def relu_of_a_view_of_a_view(net, x):
    x = net.first(x)
    x.transpose(2, 3)[:, :2].relu_()
    return net.second(x)


def relu_in_what_is_left_of_a_tensor(net, x):
    x = torch.cat([net.first(x)] * 2, 1)[:, : net.first.out_channels]
    x[:, :2].relu_()
    return net.second(x)


def relu_of_what_is_left(net, x):
    x = torch.cat([net.first(x)] * 2, 1)[:, : net.first.out_channels]
    return net.second(torch.cat([torch.relu(x[:, :2]), x[:, 2:]], 1))


def relu_of_some_channels(net, x):
    x = net.first(x)
    return net.second(torch.cat([torch.relu(x[:, :2]), x[:, 2:]], 1))


def gate_in_place(net, x):
    x = torch.tanh(net.first(x))
    x.mul_(torch.sigmoid(net.gate(x.mean((2, 3))))[:, :, None, None])
    return net.second(x)


def gate(net, x):
    x = torch.tanh(net.first(x))
    return net.second(x * torch.sigmoid(net.gate(x.mean((2, 3)))[:, :, None, None]))


def written_into_a_buffer(net, x):
    x = net.first(x)
    whole = x.new_zeros(x.shape)
    whole[:, :2] = torch.relu(x[:, :2])
    whole[:, 2:] += x[:, 2:]
    return net.second(whole)


def overwritten_after_a_sum(net, x):
    y = net.first(x)
    total = torch.tanh(y) + y
    y.relu_()  # the sum has been read from y before
    return net.second(total) + y


def relu_after_a_sum(net, x):
    y = net.first(x)
    return net.second(torch.tanh(y) + y) + torch.relu(y)


TWINS = [
    (silu_in_place, silu),
    (add_in_place, add),
    (add_method_in_place, add_then_relu),
    (relu_of_some_channels_in_place, relu_of_some_channels),
    (relu_of_a_view_of_a_view, relu_of_some_channels),
    (relu_in_what_is_left_of_a_tensor, relu_of_what_is_left),
    (gate_in_place, gate),
    (written_into_a_buffer, relu_of_some_channels),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [None, "first"])
@pytest.mark.parametrize(("in_place", "twin"), TWINS, ids=lambda function: function.__name__)
def test_in_place(in_place, twin, layer):
    torch.manual_seed(0)
    net = Habit(twin).double()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    expected = [Reference(net, x).relevance(one_hot(1, 3), layer, contrastive=c) for c in (False, True)]
    logits = net(x).detach()
    net.between = in_place
    for contrastive in (False, True):
        result = ebcli.excitation_backprop(net, x, [1, 3], layer, contrastive)
        assert torch.equal(result.logits, net(x).detach())
        torch.testing.assert_close(result.logits, logits)
        assert_same(result.relevance, expected[contrastive])


def test_overwritten_after_it_was_read():
    """The sum's operands are needed on the way down."""
    torch.manual_seed(0)
    net, x = Habit(relu_after_a_sum).double(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    expected = Reference(net, x).relevance(one_hot(1, 3))
    net.between = overwritten_after_a_sum
    assert_same(ebcli.excitation_backprop(net, x, [1, 3]).relevance, expected)


class Repeated(nn.Module):
    """One ReLU and one convolution for several places."""

    def __init__(self, times=3):
        super().__init__()
        self.stem, self.block, self.fc = (
            nn.Conv2d(3, 9, 1),
            nn.Conv2d(9, 9, 3, padding=1),
            nn.Linear(9, NUM_CLASSES),
        )
        self.relu, self.times, self.spare = nn.ReLU(inplace=True), times, nn.Linear(2, 2)

    def forward(self, x):
        x = self.relu(self.stem(x))
        for _ in range(self.times):
            x = self.relu(self.block(x))
        return self.fc(x.mean((2, 3)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [None, "stem"])
def test_a_module_called_several_times(layer):
    torch.manual_seed(0)
    net, x = Repeated().double(), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    for contrastive in (False, True):
        expected = Reference(net, x).relevance(one_hot(0, 4), layer, contrastive=contrastive)
        assert_same(ebcli.excitation_backprop(net, x, [0, 4], layer, contrastive).relevance, expected)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("block", "layer 'block' is called more than once"),
        ("relu", "layer 'relu' is called more than once"),
        ("spare", "layer 'spare' was not called"),
        ("steam", "no layer 'steam'.*'stem'"),
        ("", "no layer ''"),
        (nn.ReLU(), "ReLU is not a module of the network"),
    ],
)
def test_layers_that_have_no_map(layer, message):
    with pytest.raises(ebcli.LayerError, match=message):
        ebcli.excitation_backprop(Repeated(), torch.rand(1, 3, 5, 5), 0, layer)


def test_a_layer_given_as_a_module():
    net, x = Repeated(), torch.rand(1, 3, 5, 5)
    by_module, by_name = (ebcli.excitation_backprop(net, x, 0, layer) for layer in (net.stem, "stem"))
    assert torch.equal(by_module.relevance, by_name.relevance)
    assert by_module.layer == "stem"


def test_the_network_itself_as_the_layer():
    net, x = Repeated(), torch.rand(1, 3, 5, 5)
    assert torch.equal(ebcli.excitation_backprop(net, x, 2, net).relevance, one_hot(2).float())


def test_nothing_below_the_classifier_to_contrast():
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh()), torch.rand(1, 3)
    assert ebcli.excitation_backprop(net, x, 2, "2").relevance.tolist() == [[0, 0, 1, 0, 0]]
    with pytest.raises(ebcli.LayerError, match="layer '2' is not below the classifier"):
        ebcli.excitation_backprop(net, x, 2, "2", contrastive=True)


def test_a_layer_off_the_path_to_the_output():
    class Aside(Repeated):
        def forward(self, x):
            self.spare(x[..., :2])
            return super().forward(x)

    with pytest.raises(ebcli.LayerError, match="does not depend on layer 'spare'"):
        ebcli.excitation_backprop(Aside(), torch.rand(1, 3, 5, 5), 0, "spare")


def test_a_module_of_two_names_is_found_by_both():
    net, x = classifier()
    net[3].other_name = net[1]
    first, second = (ebcli.excitation_backprop(net, x, 3, name).relevance for name in ("1", "3.other_name"))
    assert_same(first, second)


def test_signals_have_one_axis_of_space():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8, NUM_CLASSES)).double()
    result = ebcli.excitation_backprop(net, torch.randn(2, 2, 10, dtype=torch.float64), [[1, 2], [3, 4]], "1")
    assert result.maps.shape == (2, 2, 8)
    assert_same(result.maps.sum(2), result.mass)


class ComputedWeight(nn.Module):
    """A weight that is made from parameters in each forward pass is a weight still, and no part of the signal."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.head = nn.Sequential(*head(8))

    def standardised(self):
        return (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std()

    def forward(self, x):
        return self.head(F.relu(F.conv2d(x, self.standardised())))


def test_computed_weights():
    torch.manual_seed(0)
    net, x = ComputedWeight().double(), torch.randn(IMAGE, dtype=torch.float64)
    twin = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), *net.head).double()
    twin[0].weight.data = net.standardised().detach()
    expected = Reference(twin, x).relevance(one_hot(3, 3))
    assert_same(ebcli.excitation_backprop(net, x, 3).relevance, expected)
    nn.utils.parametrizations.weight_norm(twin[0])
    assert_same(ebcli.excitation_backprop(twin, x, 3).relevance, expected)


def test_a_map_needs_extent():
    net, x = classifier()
    result = ebcli.excitation_backprop(net, x, 0, "3")
    assert result.relevance.shape == (2, 9)
    with pytest.raises(ebcli.LayerError, match="layer '3' has no spatial dimensions"):
        _ = result.maps
