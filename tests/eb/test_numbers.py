"""Zero, infinite, tiny and missing numbers: mass and lost mass make 1, and nothing wrong passes without a word."""

import re
import warnings

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from twins import images, seeded

import ebcli
from ebcli.errors import EbcliError


def squeezed(bias):
    """A classifier as in SqueezeNet, ReLU and pooling behind it; a bias of -100 keeps class 1 at exactly 0."""
    net = seeded(
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        )
    )
    net[0].bias.data += 5  # all neurons below the classifier are active
    net[2].weight.data[:, 0] = net[2].weight.data[:, 0].abs()
    net[2].bias.data = torch.tensor([0.5, bias, 0.5]).double()
    return net


@pytest.mark.parametrize("targets", [1, [[1, 0], [2, 1]]])
@pytest.mark.parametrize("bias", [-100.0, 0.5])
def test_a_class_whose_logit_is_zero(bias, targets):
    net = squeezed(bias)
    marginal, contrastive = (
        ebcli.excitation_backprop(net, images(), targets, "1", contrastive, track_lost_mass=True)
        for contrastive in (False, True)
    )
    if bias < 0:
        assert not marginal.logits[:, 1].any()
    torch.testing.assert_close(contrastive.mass, marginal.mass)
    for result in (marginal, contrastive):
        lost = sum(result.lost_mass.values(), torch.zeros_like(result.mass))
        torch.testing.assert_close(result.mass + lost, torch.ones_like(result.mass))
        if bias < 0 and targets == 1:
            assert not result.relevance.any()


class Losing(nn.Module):
    """Linear layers over tokens (B, N, C), some of whose neurons are active only through their bias.

    Args:
        layout: how tokens lie while the layers work on them.
    """

    def __init__(self, layout):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.layout = layout

    def forward(self, x):
        batch, tokens, _ = x.shape
        x = x.flatten(2) if self.layout == "batch_first" else x
        if self.layout == "folded":
            x = x.reshape(batch * tokens, -1)
        elif self.layout == "sequence_first":
            x = x.transpose(0, 1)
        elif self.layout == "windows":
            x = x.unflatten(1, (2, -1)).flatten(0, 1)
        x = F.relu(self.second(F.relu(self.first(x))))
        if self.layout == "folded":
            x = x.reshape(batch, tokens, -1)
        elif self.layout == "sequence_first":
            x = x.transpose(0, 1)
        elif self.layout == "windows":
            x = x.unflatten(0, (batch, 2)).flatten(1, 2)
        return self.fc(x.mean(1))


@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("targets", [[1, 2], [[1, 2, 3], [0, 1, 2]]])
@pytest.mark.parametrize("layout", ["batch_first", "folded", "sequence_first", "windows"])
def test_lost_mass_is_each_images_own(layout, targets, contrastive):
    net, x = seeded(lambda: Losing(layout)), images((2, 4, 3)).abs()
    net.second.weight.data = -net.second.weight.data.abs()  # nothing but the bias makes a neuron active
    net.second.weight.data[::2] *= -1
    net.second.bias.data = net.second.bias.data.abs() + 3
    result = ebcli.excitation_backprop(net, x, targets, contrastive=contrastive, track_lost_mass=True)
    assert result.lost_mass
    for lost in result.lost_mass.values():
        assert lost.shape == result.mass.shape
    total = sum(result.lost_mass.values())
    assert (total > 0.05).any()
    torch.testing.assert_close(result.mass + total, torch.ones_like(total))
    for i in range(2):
        alone = ebcli.excitation_backprop(
            net, x[i : i + 1], [targets[i]], contrastive=contrastive, track_lost_mass=True
        )
        assert set(alone.lost_mass) <= set(result.lost_mass)
        for site, lost in alone.lost_mass.items():
            torch.testing.assert_close(result.lost_mass[site][i : i + 1], lost)


def small(dtype=torch.float64):
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))).to(dtype)


def spoiled(where, value):
    net, x = small(), images()
    if where == "inputs":
        x[1, 0, 2, 2] = value
    elif where == "weights":
        net[0].weight.data[0, 0, 0, 0] = value
    elif where == "logits":
        net[3].bias.data[1] = value
    return net, x


@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["inputs", "weights", "logits"])
def test_numbers_that_are_not_finite_are_spoken_of(where, value, contrastive):
    net, x = spoiled(where, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ebcli.excitation_backprop(net, x, 1, "0", contrastive)
        except EbcliError as error:
            said = [str(error)]
        else:
            said = [str(warning.message) for warning in caught]
    assert any(re.search("NaN|nan|finite|infinit", message) for message in said), said


@pytest.mark.parametrize("size", [1e-42, 1e-40, 1e-30, 1e30])
def test_activations_of_any_size_share_alike(size):
    """Eq. 4 does not depend on the scale of the activations; near the least float32 it may be refused."""
    net = nn.Linear(3, 1, bias=False)
    net.weight.data = torch.tensor([[1.0, 3.0, -2.0]])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = ebcli.excitation_backprop(net, torch.full((1, 3), size), 0)
    except (EbcliError, UserWarning, RuntimeWarning):
        assert size < 1e-37
        return
    torch.testing.assert_close(found.relevance, torch.tensor([[0.25, 0.75, 0.0]]), rtol=0, atol=1e-2)
    torch.testing.assert_close(found.mass, torch.ones(1), rtol=0, atol=1e-2)


@pytest.mark.parametrize("size", [1e-42, 1e-39])
def test_sums_and_averages_of_tiny_numbers(size):
    class Sum(nn.Module):
        def forward(self, x):
            return F.avg_pool2d(x + 3 * x.flip(-1), 2).flatten(1)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = ebcli.excitation_backprop(Sum(), torch.full((1, 1, 2, 2), size), 0)
    except (EbcliError, UserWarning, RuntimeWarning):
        return
    torch.testing.assert_close(found.relevance, torch.full((1, 1, 2, 2), 0.25), rtol=0, atol=1e-2)


@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize(("size", "weight"), [(1e-43, 1.0), (1e-45, 1.0), (1e-30, 1e-12)])
def test_inputs_and_logits_without_full_precision_are_refused(size, weight, contrastive):
    """One image of a batch is enough."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 2, bias=False))
    nn.init.constant_(net[1].weight, weight)
    x = torch.ones(2, 3, 6, 6) * torch.tensor([1, size]).reshape(2, 1, 1, 1)
    with pytest.raises(EbcliError, match=r"in torch.float32: use torch.float64"):
        ebcli.excitation_backprop(net, x, 1, contrastive=contrastive)


def test_an_image_of_zeros_is_no_error():
    assert not ebcli.excitation_backprop(small(torch.float32), torch.zeros(1, 3, 6, 6), 1).mass.any()


def test_an_image_without_its_batch():
    with pytest.raises(EbcliError, match="batch"):
        ebcli.excitation_backprop(small(), images()[0], 1)


def test_a_sequence_without_its_batch():
    net = seeded(lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5)))
    with pytest.raises(EbcliError, match="batch"):
        ebcli.excitation_backprop(net, images((3, 8)), 1)


def test_a_loaded_model_in_place_of_its_network():
    loaded = ebcli.load_model("resnet18", weights="none")
    image = torch.rand(1, 3, 64, 64)
    found, expected = (ebcli.excitation_backprop(one, image, 1).maps for one in (loaded, loaded.net))
    assert torch.equal(found, expected)
    with pytest.raises(EbcliError, match="or LoadedModel, not a str"):
        ebcli.excitation_backprop("resnet18", image, 1)


def test_a_photo_in_place_of_a_tensor():
    with pytest.raises(EbcliError, match="transforms"):
        ebcli.excitation_backprop(small(), Image.new("RGB", (6, 6)), 1)


@pytest.mark.parametrize("targets", ["tabby", ["tabby", "tiger cat"], [["tabby"], ["tiger cat"]]])
def test_class_names_in_place_of_indices(targets):
    with pytest.raises(EbcliError, match=r"categories\.index"):
        ebcli.excitation_backprop(small(), images(), targets)


@pytest.mark.parametrize(
    "last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sequential(nn.Identity(), nn.Softmax(-1), nn.Identity())]
)
def test_a_network_that_ends_in_softmax_says_so(last):
    with pytest.warns(UserWarning, match="softmax"):
        ebcli.excitation_backprop(nn.Sequential(small(), last), images(), 1)


@pytest.mark.parametrize("last", [nn.Identity(), nn.Sigmoid()])
def test_other_networks_warn_of_nothing(last):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ebcli.excitation_backprop(nn.Sequential(small(), last), images(), 1)
