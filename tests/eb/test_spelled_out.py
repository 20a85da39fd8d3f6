"""Operations that are made of others have the maps of an equal network that spells them out, by both rules."""

import numpy as np
import pytest
import torch
from nets import NUM_CLASSES
from test_joint import by_definition
from torch import nn
from torch.nn import functional as F
from twins import Between, assert_equal_maps, equal_networks, images

import ebcli


def centered(a, dim):
    return a - a.mean(dim, keepdim=True)


def layer_norm_by_var_mean(a):
    var, mean = torch.var_mean(a, -1, correction=0, keepdim=True)
    return (a - mean) / (var + 1e-5).sqrt()


TEXTS = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
W = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
PAIRS = {
    "var": (lambda a: a.var(1), lambda a: centered(a, 1).square().sum(1) / 2),
    "var of a view": (lambda a: torch.var(a.mT, 2, True, True), lambda a: centered(a, 1).square().sum(1) / 2),
    "std": (lambda a: torch.std(a, 1, correction=0), lambda a: centered(a, 1).square().mean(1).sqrt()),
    "std and mean": (
        lambda a: torch.cat(torch.std_mean(a, 1), 1),
        lambda a: torch.cat([(centered(a, 1).square().sum(1) / 2).sqrt(), a.mean(1)], 1),
    ),
    "layer norm by var_mean": (layer_norm_by_var_mean, lambda a: F.layer_norm(a, (6,))),
    "divided by std": (
        lambda a: a / a.std(1, keepdim=True),
        lambda a: a / (centered(a, 1) / 2**0.5).norm(2, 1, True),
    ),
    "addmm": (
        lambda a: torch.addmm(a[:, 0], a[:, 1, :5], W[0].to(a).T, beta=-0.5, alpha=2),
        lambda a: a[:, 0] / -2 + 2 * (a[:, 1, :5] @ W[0].to(a).T),
    ),
    "addbmm": (
        lambda a: torch.addbmm(a[:, 0], a.transpose(0, 1), W[1:4, :, 1].to(a)[..., None].expand(3, 6, 6)),
        lambda a: a[:, 0] + torch.einsum("bti,ti->b", a, W[1:4, :, 1].to(a))[:, None],
    ),
    "logsumexp": (lambda a: a.logsumexp(1), lambda a: a.exp().sum(1).log()),
    "bilinear of a gate": (
        lambda a: F.bilinear(a, a[..., :5].softmax(-1), W.to(a)),
        lambda a: (torch.einsum("oij,btj->btoi", W.to(a), a[..., :5].softmax(-1)) @ a[..., None])[..., 0],
    ),
    "cosine_similarity": (
        lambda a: F.cosine_similarity(a[:, :, None], TEXTS.to(a), dim=-1),
        lambda a: F.normalize(a, dim=-1) @ F.normalize(TEXTS.to(a), dim=-1).T,
    ),
    "cosine_similarity along an axis": (
        lambda a: F.cosine_similarity(TEXTS[:3].to(a), a),
        lambda a: torch.einsum("bti,ti->bi", F.normalize(a), F.normalize(TEXTS[:3].to(a), dim=0)),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PAIRS)
def test_equal_functions_have_equal_maps(name):
    x = images((2, 3, 6))
    net, twin = equal_networks(
        *[lambda function=function: Between(function, 6) for function in PAIRS[name]], x
    )
    assert_equal_maps(net, twin, x, ["stem", None])


def test_similarities_are_classes():
    """Cosines of an image and texts, as a network's output: the texts are the classifier's weights."""
    net = nn.Sequential(nn.Linear(6, 6), nn.GELU()).double()
    found, expected = (nn.Sequential(net, head) for head in (Cosines(), CosinesByHand()))
    assert_equal_maps(found, expected, images((2, 6)), ["0.0", None])


class Cosines(nn.Module):
    def forward(self, a):
        return F.cosine_similarity(a[:, None], TEXTS.to(a), dim=2)


class CosinesByHand(nn.Module):
    def forward(self, a):
        return F.normalize(a) @ F.normalize(TEXTS.to(a)).T


def test_logsumexp_does_not_overflow():
    """exp(200) is infinite in float32; two units of 200 and 199 win e and 1 of e + 1."""
    a = torch.tensor([[200.0, 199.0]], requires_grad=True)
    with ebcli.excitation_mode():
        value = a.logsumexp(1)
    (P,) = torch.autograd.grad(value, a, torch.ones(1))
    torch.testing.assert_close(P, torch.tensor([[1.0, 0.0]]) + torch.tensor([[-1.0, 1.0]]) / (1 + torch.e))


GRID = torch.rand(1, 3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) * 2.4 - 1.2
OTHER = torch.randn(1, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
LINEAR = {
    "lerp": lambda a: torch.lerp(a, 2 * a.flip(1), 0.3),
    "lerp by a gate": lambda a: torch.lerp(a, a.flip(2), OTHER.to(a).sigmoid()),
    "lerp to a constant": lambda a: OTHER.to(a).lerp(a, -0.5),
    "addmm": lambda a: torch.addmm(a[0], a[0, :, :5], W[0].to(a).T, beta=-0.5, alpha=2)[None],
    "baddbmm": lambda a: torch.baddbmm(a, a[..., :5], W[:1].to(a).mT, alpha=-1),
    "addbmm": lambda a: torch.addbmm(a[0], a[0].reshape(2, 3, 3), W[:2, :, :3].to(a).mT)[None],
    "addmv": lambda a: torch.addmv(a[0, 0], W[0].to(a), a[0, 1, :5])[None],
    "bilinear": lambda a: F.bilinear(a, OTHER[..., :5].expand(len(a), 3, 5).to(a), W.to(a), W[:, 0, 0].to(a)),
    "bilinear, the other side": lambda a: F.bilinear(OTHER.expand(len(a), 3, 6).to(a), a[..., :5], W.to(a)),
    "grid_sample": lambda a: F.grid_sample(
        a[:, None], GRID.to(a).expand(len(a), 3, 4, 2), align_corners=False
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operations_are_their_jacobian(name):
    """Jointly, the weights of what a linear operation reads are its Jacobian's; step by step, check_rule compares."""
    torch.manual_seed(1)
    net, x = Between(LINEAR[name], 6).double().eval(), images((1, 3, 6))
    net(x)
    found = ebcli.excitation_backprop(net, x, 1, contrastive=True, joint=True)
    below, above = lambda a: net.function(net.stem(a[None])).flatten(), lambda h: net.fc(h)[1:2]
    maps = [by_definition(below, F.gelu, above, x[0], sign) for sign in (1, -1)]
    torch.testing.assert_close(found.relevance[0].flatten(), maps[0] - maps[1])
    assert torch.equal(found.logits, net(x))


class Deformable(nn.Module):
    """Attention that samples a few places of the values, whose places and weights are made of the queries."""

    def __init__(self):
        super().__init__()
        self.stem, self.values, self.places = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2 * 3, 1)
        self.weights, self.norm, self.fc = nn.Conv2d(4, 3, 1), nn.GELU(), nn.Linear(4, NUM_CLASSES)

    def where(self, a):
        grid = self.places(a).unflatten(1, (3, 2)).permute(0, 1, 3, 4, 2).tanh()
        return grid.flatten(0, 1), self.weights(a).softmax(1)[:, None]

    def forward(self, x):
        a = self.stem(x)
        grid, weights = self.where(a)
        values = self.values(a).repeat_interleave(3, 0)
        sampled = F.grid_sample(values, grid, align_corners=False).unflatten(0, (-1, 3)).transpose(1, 2)
        return self.fc(self.norm((sampled * weights).sum(2)).mean((2, 3)))


class Given(Deformable):
    """The same with places and weights given."""

    def where(self, a):
        return self.given


def test_deformable_attention_hands_probability_to_its_values():
    x = images((2, 3, 5, 5))
    net, twin = equal_networks(Deformable, Deformable, x)
    with torch.no_grad():
        twin.given, twin.__class__ = twin.where(twin.stem(x)), Given
    assert_equal_maps(net, twin, x, ["stem", None])
    assert not ebcli.excitation_backprop(
        net.double(), x, 0, "stem"
    ).joint  # an average of what attention mixed
    with pytest.raises(ebcli.LayerError, match="does not depend on layer 'places'"):
        ebcli.excitation_backprop(net, x, 0, "places")


class Selected(nn.Module):
    """A decoder as RT-DETR's: queries are the best tokens of the encoder, detached, and sample around their places."""

    keeps = staticmethod(torch.detach)

    def __init__(self):
        super().__init__()
        self.stem, self.encoder, self.score = nn.Conv2d(3, 4, 1), nn.Linear(4, 4), nn.Linear(4, NUM_CLASSES)
        self.values, self.places, self.fc = nn.Conv2d(4, 4, 1), nn.Linear(4, 2), nn.Linear(12, NUM_CLASSES)

    def choice(self, x):
        """Which tokens are chosen, and where they sample."""
        tokens = self.encoder(self.stem(x).flatten(2).mT)
        best = self.score(tokens).amax(-1).topk(3).indices[..., None].expand(-1, -1, 4)
        return best, self.places(tokens.gather(1, best)).tanh().detach()[:, :, None]

    def units(self, x, best, grid):
        a = self.stem(x)
        queries = self.keeps(self.encoder(a.flatten(2).mT).gather(1, best))
        return queries + F.grid_sample(self.values(a), grid, align_corners=False)[..., 0].mT

    def forward(self, x):
        return self.fc(F.gelu(self.units(x, *self.choice(x)).flatten(1)))


class Tied(Selected):
    keeps = staticmethod(torch.clone)


def test_queries_hand_probability_to_the_tokens_that_they_are():
    """detach() stops the gradient of a loss. What it returns is added up as everything else."""
    x = images((2, 3, 5, 5))
    net, twin = equal_networks(Selected, Tied, x)
    with torch.no_grad():
        choice = [chosen[:1] for chosen in net.choice(x)]
    for k in range(NUM_CLASSES):
        found = ebcli.excitation_backprop(net, x[:1], k, joint=True)
        expected = by_definition(
            lambda a: twin.units(a[None], *choice), F.gelu, lambda h, k=k: twin.fc(h)[k : k + 1], x[0], 1
        )
        torch.testing.assert_close(found.relevance[0].flatten(), expected)
    assert_equal_maps(net, twin, x, [None])


def test_detached_values_can_leave_pytorch():
    def scaled(a):
        return a * float(a.detach().numpy().max()) + a * len(np.asarray(a.detach()))

    x = images((2, 3, 6))
    net, twin = equal_networks(
        lambda: Between(scaled, 6), lambda: Between(lambda a: a * a.max().item() + a * len(a), 6), x
    )
    assert_equal_maps(net, twin, x, ["stem", None])


def test_what_was_saved_before_outlives_them():
    class Overwriting(nn.Module):
        def __init__(self, overwrites):
            super().__init__()
            self.stem, self.fc, self.overwrites = nn.Linear(6, 5), nn.Linear(5, NUM_CLASSES), overwrites

        def forward(self, x):
            u = self.stem(x)
            h = F.gelu(u)
            y = h.lerp(h.flip(1), 0.3)
            if self.overwrites:
                u.zero_()
            return self.fc(y)

    x = images((2, 6))
    assert_equal_maps(*equal_networks(lambda: Overwriting(True), lambda: Overwriting(False), x), x, [None])
