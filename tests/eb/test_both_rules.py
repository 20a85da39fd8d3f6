"""What holds whichever rule explains a layer: logits, mass, precision, empty tensors, checkpointing."""

import copy
import math

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F
from twins import Block, images, seeded

import ebcli

BOTH = pytest.mark.parametrize("joint", [True, False])


class Experts(nn.Module):
    """Each token goes to one of three experts, the last of which gets none."""

    def __init__(self, runs_all=False):
        super().__init__()
        self.before, self.head = nn.Linear(6, 6), nn.Linear(6, 5)
        self.experts = nn.ModuleList([nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) for _ in range(3)])
        self.runs_all = runs_all

    def forward(self, x):
        x = self.before(x)
        number = torch.arange(len(x)) % 2
        if self.runs_all:
            found = torch.stack([expert(x) for expert in self.experts])[number, torch.arange(len(x))]
        else:
            found = torch.zeros_like(x)
            for k, expert in enumerate(self.experts):
                found = found.index_put(((number == k).nonzero()[:, 0],), expert(x[number == k]))
        return self.head(F.gelu(found))


@BOTH
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("contrastive", [True, False])
def test_an_expert_without_tokens(dtype, joint, contrastive):
    found, expected = (
        ebcli.excitation_backprop(
            seeded(make).to(dtype), images((4, 6)).to(dtype), 1, None, contrastive, joint=joint
        )
        for make in (Experts, lambda: Experts(runs_all=True))
    )
    torch.testing.assert_close(found.relevance, expected.relevance)


def by_hand(y):
    centered = y - y.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@BOTH
@pytest.mark.parametrize(
    "norm", [lambda y: F.layer_norm(y, (4,)), lambda y: F.group_norm(y.mT, 2).mT, F.instance_norm, by_hand]
)
def test_norms_around_a_large_mean_in_single_precision(norm, joint):
    def between(net, y):
        tokens = net.first(y.flatten(2).mT) + 100
        return F.gelu(net.second(norm(tokens)))

    single = seeded(lambda: Block(between, first=nn.Linear(4, 4), second=nn.Linear(4, 4))).float()
    inputs = images().float()
    found, expected = (
        ebcli.excitation_backprop(net, x, 1, None, True, joint=joint).relevance.double()
        for net, x in ((single, inputs), (copy.deepcopy(single).double(), inputs.double()))
    )
    assert (found - expected).abs().max() < 5e-5 * expected.abs().max()


FAMILIES = {
    "eca_botnext26ts_256": (64, "stages.1", {}),
    "samvit_base_patch16": (64, "blocks.0", {"depth": 2, "embed_dim": 48, "num_heads": 4}),
}


@pytest.mark.release
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_networks_own_whatever_was_called_before(name):
    size, layer, options = FAMILIES[name]
    torch.manual_seed(0)
    net, x = (
        timm.create_model(name, img_size=size, num_classes=5, **options).eval(),
        torch.randn(2, 3, size, size),
    )
    with torch.no_grad():  # with a mask that requires grad, PyTorch's attention runs other kernels
        plain = net(x)
    calls = [(layer, True), (layer, False), ([None, layer], None), (None, None), (layer, True), (None, False)]
    for at, joint in calls:
        found = ebcli.excitation_backprop(net, x, 1, at, True, joint=joint)
        for result in found if isinstance(found, tuple) else [found]:
            assert torch.equal(result.logits, plain), (at, joint)


class Prefixed(nn.Module):
    """Four tokens of an image behind three constant ones, a linear map over tokens, units, and a sum of all."""

    def __init__(self, layout, activation):
        super().__init__()
        self.patches, self.joined = nn.Conv2d(3, 4, 3, 3), nn.Identity()
        self.constants, self.units, self.head = (
            nn.Parameter(torch.randn(3, 4)),
            nn.Linear(4, 6),
            nn.Linear(6, 5),
        )
        self.mix, self.layout, self.activation = nn.Linear(7, 7), layout, activation

    def forward(self, x):
        tokens = self.joined(self.patches(x).flatten(2).mT)
        constants = self.constants.expand(len(x), -1, -1)
        if self.layout == "tokens first":
            joined = self.mix(torch.cat([constants.mT, tokens.mT], 2).permute(1, 0, 2)).permute(2, 1, 0)
            return self.head(self.activation(self.units(joined)).sum(0))
        if self.layout == "stacked":
            rows = torch.cat([constants.transpose(0, 1), tokens.transpose(0, 1)]).flatten(0, 1)
            return self.head(self.activation(self.units(rows)).unflatten(0, (7, -1)).sum(0))
        if self.layout == "where":
            rows = F.pad(tokens, (0, 0, 3, 0))
            kept = torch.arange(7)[:, None] > 2
            joined = torch.where(kept, rows, F.pad(self.constants, (0, 0, 0, 4)))
            return self.head(self.activation(self.units(self.mix(joined.mT).mT)).sum(1))
        joined = torch.cat([constants, tokens], 1)
        return self.head(self.activation(self.units(self.mix(joined.mT).mT)).sum(1))

    def joined_to_units(self):
        """W and b of u (..., 6) as a function of (7, 4) tokens."""
        mixes = self.layout != "stacked"
        mix, shift = (
            (self.mix.weight, self.mix.bias) if mixes else (torch.eye(7).double(), torch.zeros(7).double())
        )
        weight = torch.einsum("nm,uc->numc", mix, self.units.weight)
        return weight, shift[:, None] * self.units.weight.sum(1) + self.units.bias


@pytest.mark.parametrize("layout", ["batch first", "tokens first", "stacked", "where"])
@pytest.mark.parametrize("images_in_batch", [1, 2, 3])
def test_constants_take_their_share_jointly(layout, images_in_batch):
    net, x = seeded(lambda: Prefixed(layout, F.gelu)), images((images_in_batch, 3, 6, 6))
    classes = [k % 5 for k in range(images_in_batch)]
    found = ebcli.excitation_backprop(net, x, classes, "joined", joint=True, track_lost_mass=True)
    tokens = net.patches(x).flatten(2).mT
    weight, bias = net.joined_to_units()
    for image, k, relevance, mass, lost in zip(
        tokens, classes, found.relevance, found.mass, sum(found.lost_mass.values()), strict=True
    ):
        joined = torch.cat([net.constants, image])
        u = torch.einsum("numc,mc->nu", weight, joined) + bias
        P = (F.gelu(u) * net.head.weight[k]).clamp(min=0)
        G = torch.einsum("numc,nu->mc", weight, P / u)
        z = (joined * G).clamp(min=0)
        torch.testing.assert_close(relevance, z[3:] / z.sum())
        torch.testing.assert_close(mass, z[3:].sum() / z.sum())
        torch.testing.assert_close(lost, z[:3].sum() / z.sum())


@pytest.mark.one_in(2)
@BOTH
@pytest.mark.parametrize("activation", [F.gelu, F.relu])
@pytest.mark.parametrize("layout", ["batch first", "tokens first", "stacked", "where"])
def test_mass_and_lost_mass_are_one(layout, activation, joint):
    net, x = seeded(lambda: Prefixed(layout, activation)), images((3, 3, 6, 6))
    targets = torch.tensor([[0, 1], [2, 3], [4, 0]])
    for layer in (None, "joined"):
        found = ebcli.excitation_backprop(net, x, targets, layer, joint=joint, track_lost_mass=True)
        lost = sum(found.lost_mass.values())
        torch.testing.assert_close(found.mass + lost, torch.ones(3, 2).double())
        assert (lost > 0.01).all()
        for k, image in enumerate(x):
            alone = ebcli.excitation_backprop(
                net, image[None], targets[k : k + 1], layer, joint=joint, track_lost_mass=True
            )
            torch.testing.assert_close(found.mass[k], alone.mass[0])
            for site, share in alone.lost_mass.items():
                torch.testing.assert_close(found.lost_mass[site][k], share[0])


class BiasTokens(Block):
    """Attention whose keys and values have one more that is a parameter, and one that is zero."""

    def __init__(self):
        attention = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
        super().__init__(lambda net, y: F.gelu(net.attention(*[y.flatten(2).mT] * 3)[0]), attention=attention)


@BOTH
def test_key_and_value_that_are_parameters(joint):
    net = seeded(BiasTokens)
    nn.init.normal_(net.attention.bias_v, std=3)
    found = ebcli.excitation_backprop(net, images(), 1, joint=joint, track_lost_mass=True)
    assert (sum(found.lost_mass.values()) > 0.01).all()
    torch.testing.assert_close(found.mass + sum(found.lost_mass.values()), torch.ones(2).double())


@BOTH
@pytest.mark.parametrize("assigned", [True, False])
def test_what_bypasses_the_layer_through_a_constant(joint, assigned):
    """The input, written into parts of a constant, takes its share of a sum above the layer."""

    def between(copied):
        def both(net, y):
            bypass = torch.zeros_like(y) if copied else y * 1.0
            if copied and assigned:
                bypass[:, :2], bypass[:, 2:] = y[:, :2], y[:, 2:]
            elif copied:
                bypass[:, :2].add_(y[:, :2])
                bypass[:, 2:].add_(y[:, 2:])
            return F.gelu(net.layer(y) + bypass)

        return both

    found, expected = (
        ebcli.excitation_backprop(
            seeded(lambda copied=copied: Block(between(copied), layer=nn.Conv2d(4, 4, 1))),
            images(),
            1,
            "layer",
            joint=joint,
        )
        for copied in (True, False)
    )
    torch.testing.assert_close(found.relevance, expected.relevance)
    assert joint or (found.mass < 0.9).all()


@BOTH
def test_infinite_padding_is_never_the_maximum(joint):
    """Max pooling pads by itself, or `pad` did it with minus infinity before."""

    def padded(_, y):
        y = F.max_pool2d(F.pad(F.relu(y), (1, 1, 1, 1), value=-math.inf), 3, 1)
        return F.gelu(y)

    found, expected = (
        ebcli.excitation_backprop(seeded(lambda between=between: Block(between)), images(), 1, joint=joint)
        for between in (padded, lambda _, y: F.gelu(F.max_pool2d(F.relu(y), 3, 1, padding=1)))
    )
    torch.testing.assert_close(found.relevance, expected.relevance)


@BOTH
def test_a_layer_may_be_infinite_padding(joint):
    def padded(net, y):
        return F.gelu(F.max_pool2d(net.pad(net.rectifier(y)), 3, 1))

    net = seeded(lambda: Block(padded, rectifier=nn.ReLU(), pad=nn.ConstantPad2d(1, -math.inf)))
    at_pad, below = ebcli.excitation_backprop(net, images(), 1, ["pad", "rectifier"], joint=joint)
    torch.testing.assert_close(at_pad.relevance[..., 1:-1, 1:-1], below.relevance)
    assert at_pad.mass.tolist() == pytest.approx(below.mass.tolist())


@BOTH
def test_contrast_with_several_classes_is_the_mean_of_the_contrasts_with_each(joint):
    net, x = seeded(lambda: Prefixed("batch first", F.gelu)), images((2, 3, 6, 6))
    found, *each = (
        ebcli.excitation_backprop(net, x, 0, "joined", against=against, joint=joint).relevance
        for against in ([2, 3], 2, 3)
    )
    torch.testing.assert_close(found, sum(each) / 2)
