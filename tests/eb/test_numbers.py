"""Zero, infinite, tiny and missing numbers: mass and lost mass make 1, and nothing wrong passes without a word."""

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
            *(
                nn.Conv2d(3, 6, 3),
                nn.ReLU(),
                nn.Conv2d(6, 3, 1),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
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


def small(dtype=torch.float64):
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))).to(
        dtype
    )


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
def test_numbers_that_are_not_finite_are_refused(where, value, contrastive):
    net, x = spoiled(where, value)
    with pytest.raises(EbcliError, match="NaN or infinite"):
        ebcli.excitation_backprop(net, x, 1, "0", contrastive)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_activations_of_any_size_share_alike(size):
    """Eq. 4 does not depend on the scale of the activations."""
    net = nn.Linear(3, 1, bias=False)
    net.weight.data = torch.tensor([[1.0, 3.0, -2.0]])
    found = ebcli.excitation_backprop(net, torch.full((1, 3), size), 0)
    torch.testing.assert_close(found.relevance, torch.tensor([[0.25, 0.75, 0.0]]), rtol=0, atol=1e-2)
    torch.testing.assert_close(found.mass, torch.ones(1), rtol=0, atol=1e-2)


@pytest.mark.filterwarnings("error")
def test_sums_and_averages_of_tiny_numbers():
    class Sum(nn.Module):
        def forward(self, x):
            return F.avg_pool2d(x + 3 * x.flip(-1), 2).flatten(1)

    found = ebcli.excitation_backprop(Sum(), torch.full((1, 1, 2, 2), 1e-39), 0)
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
