"""What a map is contrasted with: its dual over the cells of the map, or other classes."""

import pytest
import torch
from nets import NUM_CLASSES, classifier
from torch import nn
from torch.nn import functional as F

import ebcli

TARGETS = [[1, 3], [0, 4]]


class Tokens(nn.Module):
    """16 patches of an 8 x 8 image, class and register tokens, an attention block, and a head on the class token."""

    def __init__(self, special: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, stride=2)
        self.first = nn.Parameter(0.1 * torch.randn(1, special, 8))
        self.joined = nn.Identity()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        tokens = self.joined(torch.cat([self.first.expand(len(x), -1, -1), tokens], 1))
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(F.gelu(tokens)[:, 0])


def tokens(special=1):
    torch.manual_seed(0)
    return Tokens(special).double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.double)


def marginal_maps(net, x, targets, layer):
    return ebcli.excitation_backprop(net, x, targets, layer).maps


def over_cells(maps):
    """Maps over their sums; zero where all probability is elsewhere."""
    return (maps / maps.sum((-2, -1), keepdim=True)).nan_to_num(0)


@pytest.mark.parametrize("special", [1, 4])
def test_with_class_and_register_tokens_both_maps_are_normalized_over_the_patches(special):
    net, x = tokens(special)
    found = ebcli.excitation_backprop(net, x, TARGETS, "joined", contrastive=True)
    target = marginal_maps(net, x, TARGETS, "joined")
    mass = target.sum((2, 3))
    assert ((mass > 0.1) & (mass < 0.9)).any()  # the special tokens take the rest
    net.head.weight.data.neg_()  # Eq. 6: the dual unit has negated weights
    expected = over_cells(target) - over_cells(marginal_maps(net, x, TARGETS, "joined"))
    torch.testing.assert_close(found.maps, expected)


def test_the_mass_counts_all_tokens():
    net, x = tokens()
    for contrast in ({"contrastive": True}, {"against": 2}):
        found = ebcli.excitation_backprop(net, x, TARGETS, "joined", track_lost_mass=True, **contrast)
        torch.testing.assert_close(found.mass, ebcli.excitation_backprop(net, x, TARGETS, "joined").mass)


def test_a_map_is_blank_if_all_probability_is_on_the_class_token():
    net, x = tokens()
    net.attention.register_forward_hook(lambda *_: (torch.zeros(2, 17, 8, dtype=torch.double), None))
    for contrast in ({"contrastive": True}, {"against": 2}):
        maps = ebcli.excitation_backprop(net, x, TARGETS, "joined", **contrast).maps
        assert torch.equal(maps, torch.zeros_like(maps))


class ApartTokens(nn.Module):
    """2 x 3 cells behind a class token, signed neurons that read all tokens, and a classifier.

    The class token excites the first half of the neurons, and the cells the other half, which alone excites class 0.
    So the class token alone excites the dual of class 0.
    """

    def __init__(self):
        super().__init__()
        self.joined, self.token = nn.Identity(), nn.Parameter(torch.rand(1, 1, 8) + 5)
        self.neurons, self.head = nn.Linear(7, 24, bias=False), nn.Linear(24 * 8, 2, bias=False)
        for layer in (self.neurons, self.head):
            nn.init.uniform_(layer.weight, 0.01, 0.1)
        self.neurons.weight.data[:12, 1:] *= -0.2
        self.neurons.weight.data[12:, 0] *= -0.01
        self.head.weight.data[0, : 12 * 8] *= -1

    def forward(self, x):
        return self.head(self.neurons(self.joined(self.tokens(x)).mT).tanh().mT.flatten(1))

    def tokens(self, x):
        return torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2).mT], 1)

    def marginal(self, x):
        """The map (B, 7, 8) of class 0, by Eq. 4."""
        tokens = self.tokens(x).double()
        z = self.neurons.weight.double()[..., None] * tokens[:, None]  # (B, 24 neurons, 7 tokens, 8 channels)
        response = z.sum(2)
        excitation = (self.head.weight[0].double().reshape(24, 8) * response.tanh()).clamp(min=0)
        P = excitation / excitation.sum((1, 2), keepdim=True)
        z = (z * response.sign()[:, :, None]).clamp(min=0)
        return (z * (P / z.sum(2))[:, :, None]).sum(1).detach()


@pytest.mark.parametrize("targets", [0, [[0, 0], [0, 0]]], ids=["one", "two"])
def test_a_dual_that_is_blank_on_the_cells_changes_nothing_there(targets):
    """In single precision, too: what rounding leaves there is no map that could be normalized."""
    torch.manual_seed(0)
    net, x = ApartTokens(), torch.rand(2, 8, 2, 3) + 0.05
    found = ebcli.excitation_backprop(net, x, targets, "joined", contrastive=True)
    assert found.relevance.dtype == torch.float32
    expected = over_cells(net.marginal(x)[:, 1:].sum(2).unflatten(1, (2, 3)))
    for maps in found.maps.reshape(2, -1, 2, 3).unbind(1):
        torch.testing.assert_close(maps.double(), expected, rtol=1e-4, atol=1e-5)
    exact = ebcli.excitation_backprop(net.double(), x.double(), 0, "joined", contrastive=True)
    torch.testing.assert_close(exact.maps, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("layer", "special"), [("joined", 4), ("patches", 0), ("head", 0), (None, 0)])
def test_special_tokens_are_those_before_the_grid(layer, special):
    net, x = tokens(4)
    assert ebcli.excitation_backprop(net, x, 1, layer).special_tokens == special


@pytest.mark.parametrize("against", [2, [2], (0, 2, 4)])
@pytest.mark.parametrize("targets", [1, [[1, 3], [3, 1]]])
def test_against_other_classes_is_the_difference_of_normalized_marginal_maps(against, targets):
    net, x = classifier()
    found = ebcli.excitation_backprop(net, x, targets, "1", against=against, track_lost_mass=True)
    others = [against] if isinstance(against, int) else against
    lead = (slice(None), None) if isinstance(targets, list) else (slice(None),)
    mean = torch.stack([over_cells(marginal_maps(net, x, other, "1")) for other in others]).mean(0)
    plain = ebcli.excitation_backprop(net, x, targets, "1")
    torch.testing.assert_close(found.maps, over_cells(plain.maps) - mean[lead])
    torch.testing.assert_close(found.mass, plain.mass)
    assert found.contrastive
    assert found.against == tuple(others)
    assert plain.against is None


def test_against_several_layers_and_tokens():
    net, x = tokens()
    results = ebcli.excitation_backprop(net, x, TARGETS, ["joined", None], against=2)
    for layer, result in zip(["joined", None], results, strict=True):
        maps = over_cells(marginal_maps(net, x, TARGETS, layer)) - over_cells(
            marginal_maps(net, x, [[2], [2]], layer)
        )
        torch.testing.assert_close(result.maps, maps)


def test_against_dense_predictions_starts_from_the_same_pixels():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, NUM_CLASSES, 3)).double().eval()
    x = torch.rand(2, 3, 8, 8, dtype=torch.double)
    found = ebcli.excitation_backprop(net, x, 1, "1", against=2, where=(1, 2))
    maps = [over_cells(ebcli.excitation_backprop(net, x, k, "1", where=(1, 2)).maps) for k in (1, 2)]
    torch.testing.assert_close(found.maps, maps[0] - maps[1])


@pytest.mark.parametrize(
    ("against", "message"),
    [
        (NUM_CLASSES, f"class {NUM_CLASSES} does not exist: the network has classes 0 to {NUM_CLASSES - 1}"),
        ([2, -1], "class -1 does not exist"),
        (1, "class 1 is both a target and contrasted with"),
        ([], "no class to contrast with"),
        (["tabby"], r"'tabby', which is not a class index.*categories\.index"),
    ],
)
def test_classes_that_cannot_be_contrasted_with(against, message):
    net, x = classifier()
    with pytest.raises(ebcli.ConfigurationError, match=message):
        ebcli.excitation_backprop(net, x, [[0, 1], [3, 4]], "1", against=against)
