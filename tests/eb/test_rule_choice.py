"""Which rule explains a layer depends on what the network computes between it and the classifier, and nothing else."""

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F
from twins import Block, images, seeded

import ebcli


def explained(net, layer=None, inputs=None):
    return ebcli.excitation_backprop(net, images() if inputs is None else inputs, 1, layer, True)


def block(between, **modules):
    return seeded(lambda: Block(between, **{name: make() for name, make in modules.items()}))


def hard_swish_of_gelu(_, y):
    y = F.gelu(y)
    return y * F.relu6(y + 3) / 6


NETS = {
    "products": lambda: block(hard_swish_of_gelu),
    "signed": lambda: block(lambda _, y: F.silu(y)),
    "rectified": lambda: block(lambda _, y: y.relu()),
    "positive": lambda: block(lambda _, y: F.softplus(y)),
    "with_an_unused_module": lambda: block(lambda _, y: y.relu(), unused=nn.SiLU),
}
IS_JOINT = {
    "products": True,
    "signed": True,
    "rectified": False,
    "positive": False,
    "with_an_unused_module": False,
}


@pytest.mark.parametrize("name", NETS)
def test_what_was_called_before_changes_nothing(name):
    net, first, logits = NETS[name](), explained(NETS[name]()), NETS[name]()(images())
    assert first.joint == IS_JOINT[name]
    for other in (net, *(make() for make in NETS.values())):
        explained(other, [None, "conv"])
        ebcli.excitation_backprop(other, images(), 1, joint=not IS_JOINT[name])
        again = explained(net)
        assert again.joint == first.joint
        assert torch.equal(again.relevance, first.relevance)
        assert torch.equal(again.logits, first.logits)
        assert torch.equal(again.logits, logits)


GUARDS = {
    "clamp_max": lambda y: torch.clamp_max(y, 1e4),
    "clamp": lambda y: y.clamp(-1e4, 1e4),
    "nan_to_num": torch.nan_to_num,
}


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize(("activation", "is_joint"), [(F.relu, False), (F.silu, True)])
def test_a_guard_is_no_activation(name, activation, is_joint):
    guard = GUARDS[name]
    guarded = block(lambda _, y: guard(activation(guard(y))))
    plain = block(lambda _, y: activation(y))
    for layer in (None, "conv"):
        found, expected = explained(guarded, layer), explained(plain, layer)
        assert found.joint == expected.joint == is_joint
        torch.testing.assert_close(found.relevance, expected.relevance, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "activation", [F.gelu, F.silu, F.hardswish, F.elu, torch.tanh, F.softsign, F.leaky_relu]
)
def test_an_activation_is_signed_where_values_of_both_signs_come_out(activation):
    net = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Identity(), nn.Flatten(), nn.Linear(64, NUM_CLASSES))
    )
    net[1].forward = activation
    assert explained(net).joint


@pytest.mark.parametrize(("below", "is_joint"), [(F.relu, False), (F.silu, True)])
def test_activations_above_the_classifier_do_not_count(below, is_joint):
    net = seeded(lambda: nn.Sequential(Block(lambda _, y: below(y)), nn.Tanh()))
    assert explained(net).joint == is_joint


class Attentive(nn.Module):
    """Tokens of an average, attention, GELU units, `before_head` on (B, tokens, 4), and a head for the first token."""

    def __init__(self, before_head=lambda y: y):
        super().__init__()
        self.conv, self.units, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, NUM_CLASSES)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.token, self.before_head = nn.Parameter(torch.randn(1, 1, 4)), before_head

    def forward(self, x):
        y = F.avg_pool2d(self.conv(x), 2).flatten(2).mT
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.head(self.before_head(F.gelu(self.units(y)))[:, 0])


def layer_norm_by_hand(y):
    centered = y - y.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def attended(y):
    return F.scaled_dot_product_attention(y, y, y)


BEFORE_HEAD = {
    "nothing": (lambda y: y, True),
    "squeeze_excitation": (lambda y: y * y.mean(1, keepdim=True).sigmoid(), True),
    "sum_over_one": (lambda y: y[:, :, None].sum(2), True),
    "mean": (lambda y: y.mean(1, keepdim=True), False),
    "mean_and_norm": (lambda y: F.layer_norm(y.mean(1, keepdim=True), (4,)), False),
    "pooling_and_more_attention": (lambda y: attended(F.avg_pool1d(y.mT, 2).mT), True),
}


@pytest.mark.parametrize("name", BEFORE_HEAD)
def test_the_classifiers_average_reads_what_attention_mixed(name):
    before_head, is_joint = BEFORE_HEAD[name]
    net = seeded(lambda: Attentive(before_head))
    assert explained(net).joint == is_joint
    assert explained(net, "units").joint  # no attention above


def test_attention_that_feeds_a_gate_mixes_nothing_that_is_averaged():
    def between(net, y):
        tokens = y.flatten(2).mT
        gate = net.attention(tokens, tokens, tokens, need_weights=False)[0].mT.reshape(y.shape)
        return (F.gelu(y) * gate.sigmoid()).mean((2, 3), keepdim=True).expand_as(y)

    assert explained(block(between, attention=lambda: nn.MultiheadAttention(4, 2, batch_first=True))).joint


@pytest.mark.parametrize("layers", [["conv", None], [None, "units"], ["units", "conv", None]])
def test_each_layer_is_explained_as_if_it_were_alone(layers):
    for before_head in (BEFORE_HEAD["nothing"][0], BEFORE_HEAD["mean"][0]):
        net = seeded(lambda before_head=before_head: Attentive(before_head))
        for layer, found in zip(layers, explained(net, layers), strict=True):
            alone = explained(net, layer)
            assert found.joint == alone.joint
            torch.testing.assert_close(found.relevance, alone.relevance, rtol=0, atol=1e-12)


class ChannelAttention(nn.Module):
    """Attention whose weights (channels, channels) mix the channels of each cell.

    Args:
        reads: what the classifier reads of the cells (B, N, C).
    """

    def __init__(self, reads):
        super().__init__()
        self.patches, self.layer = nn.Conv2d(3, 6, 2, 2), nn.Identity()
        self.qkv, self.hidden, self.head = nn.Linear(6, 18), nn.Linear(6, 8), nn.Linear(8, NUM_CLASSES)
        self.reads = reads

    def forward(self, x):
        y = self.layer(self.patches(x).flatten(2).mT)
        q, k, v = (part.mT for part in self.qkv(y).chunk(3, -1))  # (B, C, N)
        y = y + ((q @ k.mT).softmax(-1) @ v).mT
        return self.head(self.reads(F.gelu(self.hidden(y))))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("reads", "is_joint"),
    [(lambda y: y.mean(1), False), (lambda y: y[:, 0], True), (lambda y: y.amax(1), True)],
)
def test_attention_over_channels_below_an_average_of_cells(reads, is_joint, batch):
    net = seeded(lambda: ChannelAttention(reads))
    assert explained(net, "layer", images()[:batch]).joint == is_joint
