"""Equal functions have equal maps, however they are spelt, and both rules."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Block, assert_twins, images, seeded

import ebcli

GAMMA = torch.tensor([1.5, -0.7, 0.4, 1.1], dtype=torch.float64)
BETA = torch.tensor([0.3, 0.2, -0.6, 0.1], dtype=torch.float64)


def assert_same_maps(net, twin, layers=(None, "conv")):
    """Two networks of one function: equal choice of rule, and equal maps by either rule."""
    for joint in (None, True, False):
        for layer in layers:
            found, expected = (
                ebcli.excitation_backprop(one, images(), 1, layer, True, joint=joint) for one in (net, twin)
            )
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-12)
            assert found.joint == expected.joint
            assert expected.relevance.abs().max() > 1e-3, "the map is empty, so nothing is compared"
            torch.testing.assert_close(found.relevance, expected.relevance, rtol=0, atol=1e-9)


def block(between, **modules):
    return seeded(lambda: Block(between, **{name: make() for name, make in modules.items()}))


def over_channels(function):
    """The function of (B, 4, H, W) that a function of (..., 4) is."""
    return lambda y: function(y.movedim(1, -1)).movedim(-1, 1)


def over_tokens(function):
    return lambda y: function(y.flatten(2).mT).mT.reshape(y.shape)


def halves(y):
    first, second = y.chunk(2, 1)
    return first * second.sigmoid()


def halves_in_the_other_order(y):
    first, second = y.split(2, 1)
    return torch.sigmoid(second) * first


def wide(function):
    """A function of four channels to two, twice beside itself."""
    return lambda y: torch.cat([function(y)] * 2, 1)


def silu_on_a_view(y):
    y = y.clone()
    F.silu(y[:, :2], inplace=True)
    return y


def tanh_gelu(y):
    return 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))


def layer_norm(deviation):
    def normed(y):
        centered = y - y.mean(-1, keepdim=True)
        return centered / deviation(y, centered) * GAMMA + BETA

    return over_channels(normed)


def rms_norm(y):
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * GAMMA


def silu(y):
    return F.silu(y)


def hard_swish(y):
    return F.hardswish(y)


def relu_on_a_view(y):
    y = y.clone()
    torch.relu_(input=y[:, :2])
    return y


LAYER_NORM = over_channels(lambda y: F.layer_norm(y, (4,), GAMMA, BETA))
SPELLINGS = {
    "glu_by_chunks": (wide(halves), wide(lambda y: F.glu(y, 1))),
    "silu_as_quotient": (lambda y: y / (1 + torch.exp(-y)), silu),
    "silu_of_a_copy": (lambda y: y * y.clone().sigmoid(), silu),
    "silu_on_a_view": (silu_on_a_view, lambda y: torch.cat([F.silu(y[:, :2]), y[:, 2:]], 1)),
    "relu_by_keyword_on_a_view": (relu_on_a_view, lambda y: torch.cat([F.relu(y[:, :2]), y[:, 2:]], 1)),
    "relu_by_maximum": (lambda y: torch.maximum(y, torch.zeros_like(y)), F.relu),
    "relu_by_where": (lambda y: torch.where(y > 0, y, 0.0), F.relu),
    "relu_by_a_mask": (lambda y: y * (y > 0), F.relu),
    "relu_and_pooling_of_order_one": (lambda y: F.lp_pool2d(F.relu(y), 1, 1), F.relu),
    "relu_from_a_threshold": (lambda y: F.threshold(y, 0.3, 0), lambda y: F.relu(y) * (y > 0.3)),
    "leaky_relu_by_maximum": (lambda y: torch.maximum(y, 0.2 * y), lambda y: F.leaky_relu(y, 0.2)),
    "hard_swish": (lambda y: y * F.relu6(y + 3) / 6, hard_swish),
    "hard_swish_divided_first": (lambda y: y * (F.relu6(y + 3) / 6), hard_swish),
    "square": (lambda y: y * y, torch.square),
    "cube": (lambda y: y * y * y, lambda y: y**3),
    "silu_in_place": (lambda y: y.clone().mul_(y.sigmoid()), silu),
    "gelu_of_halves": (lambda y: y * 0.5 + y * 0.5 * torch.erf(y / math.sqrt(2)), F.gelu),
    "hard_swish_by_hard_sigmoid": (lambda y: F.hardsigmoid(y) * y, hard_swish),
    "quick_gelu": (lambda y: y * torch.sigmoid(1.702 * y), lambda y: F.silu(1.702 * y) / 1.702),
    "tanh_gelu": (tanh_gelu, lambda y: F.gelu(y, approximate="tanh")),
    "gelu_by_erf": (lambda y: y * 0.5 * (1 + torch.erf(y / math.sqrt(2))), F.gelu),
    "mish": (lambda y: y * torch.tanh(F.softplus(y)), F.mish),
    "softplus": (lambda y: torch.log(1 + torch.exp(y)), F.softplus),
    "softplus_overflow_safe": (lambda y: F.relu(y) + torch.log1p(torch.exp(-y.abs())), F.softplus),
    "log_sigmoid": (lambda y: -torch.log(1 + torch.exp(-y)), F.logsigmoid),
    "layer_norm_by_variance": (
        layer_norm(lambda y, d: torch.sqrt(y.var(-1, correction=0, keepdim=True) + 1e-5)),
        LAYER_NORM,
    ),
    "rms_norm": (over_channels(rms_norm), over_channels(lambda y: F.rms_norm(y, (4,), GAMMA, 1e-6))),
    "norm_of_rows": (
        lambda y: y.norm(dim=-1)[..., None].expand_as(y),
        lambda y: y.square().sum(-1).sqrt()[..., None].expand_as(y),
    ),
    "attention_of_one_tensor": (
        over_tokens(lambda t: F.scaled_dot_product_attention(t, t, t)),
        over_tokens(lambda t: (t @ t.mT / 2).softmax(-1) @ t),
    ),
    "broadcast_bias": (lambda y: sum(torch.broadcast_tensors(y, GAMMA)), lambda y: y + GAMMA),
    "einsum_permutes": (lambda y: torch.einsum("bchw->bhwc", y), lambda y: y.permute(0, 2, 3, 1)),
    "instance_norm": (
        lambda y: F.instance_norm(y, weight=GAMMA, bias=BETA),
        lambda y: F.group_norm(y, 4, GAMMA, BETA),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["before_gelu", "after_gelu", "alone"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_two_spellings(name, where):
    around = {
        "before_gelu": lambda f: lambda _, y: F.gelu(f(y)),
        "after_gelu": lambda f: lambda _, y: f(F.gelu(y)),
        "alone": lambda f: lambda _, y: f(y),
    }[where]
    one, other = (around(spelling) for spelling in SPELLINGS[name])
    assert_same_maps(block(one), block(other))


def into(make, overwrite):
    def between(_, y):
        found = make(y.shape, dtype=y.dtype)
        getattr(found, overwrite)(F.gelu(y))  # not assigned
        return found

    return between


def into_parts(_, y):
    found, y = torch.zeros_like(y), F.gelu(y)
    found[:, :2].add_(y[:, :2])
    found[:, 2:] += y[:, 2:]
    return found


@pytest.mark.parametrize(
    ("between", "sign"),
    [
        (into(torch.zeros, "add_"), 1),
        (into(torch.zeros, "sub_"), -1),
        (into(torch.ones, "mul_"), 1),
        (into(torch.zeros, "copy_"), 1),
        (into_parts, 1),
    ],
)
def test_a_constant_that_the_signal_overwrites(between, sign):
    assert_same_maps(block(between), block(lambda _, y: sign * F.gelu(y)))


def test_indices_carry_no_signal():
    def at_indices(_, y):
        b, c, h, w = torch.where(torch.ones_like(y) > y - y.max() - 1)  # all, in order
        return F.gelu(y[b, c, h, w].reshape(y.shape))

    assert_same_maps(block(at_indices), block(lambda _, y: F.gelu(y)))


def test_attention_image_by_image():
    def between(batched):
        def attended(net, y):
            tokens = y.flatten(2).mT
            if batched:
                return net.heads(tokens, tokens, tokens)[0]
            return torch.stack([net.heads(t, t, t)[0] for t in tokens])

        return attended

    one, other = (
        block(between(batched), heads=lambda: nn.MultiheadAttention(4, 2, batch_first=True))
        for batched in (False, True)
    )
    assert_same_maps(one, other)


def normed(norm):
    return lambda: block(lambda net, y: F.gelu(net.norm(y)), norm=norm)


EXPORTED = {
    "layer_norm": normed(lambda: nn.LayerNorm((4, 4))),
    "group_norm": normed(lambda: nn.GroupNorm(2, 4)),
    "rms_norm": normed(lambda: nn.RMSNorm((4, 4))),
    "batch_norm_in_a_branch": lambda: block(
        lambda net, y: F.gelu(y + net.norm(net.branch(F.silu(y)))),
        norm=lambda: nn.BatchNorm2d(4),
        branch=lambda: nn.Conv2d(4, 4, 1),
    ),
    "batch_norm_without_a_layer": lambda: block(
        lambda net, y: F.gelu(y + net.norm(F.silu(y))), norm=lambda: nn.BatchNorm2d(4)
    ),
    "attention": lambda: block(
        lambda net, y: F.gelu(y + net.heads(*[y.flatten(2).mT] * 3)[0].mT.reshape(y.shape)),
        heads=lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXPORTED)
def test_a_decomposed_program(name):
    net = EXPORTED[name]()
    program = torch.export.export(net, (images(),)).run_decompositions().module()
    assert_same_maps(program, net, layers=[None])


def test_a_quotient_is_a_product_with_the_reciprocal():
    """The denominator rescales: it is the gate, even if the numerator is a softmax."""

    class Normed(nn.Module):
        def __init__(self, divided):
            super().__init__()
            self.linear, self.head, self.divided = nn.Linear(5, 6), nn.Linear(6, 3), divided

        def forward(self, x):
            a = self.linear(x).softmax(-1)
            return self.head(self.divided(a, (a * a).mean(-1, keepdim=True) + 0.1))

    forms = [
        lambda a, b: a / b.sqrt(),
        lambda a, b: a * b.rsqrt(),
        lambda a, b: a * b.sqrt().reciprocal(),
        lambda a, b: a * (1 / b.sqrt()),
        lambda a, b: a * torch.div(torch.ones(1, dtype=b.dtype), b.sqrt()),
        lambda a, b: a * b**-0.5,
    ]
    first, *others = (seeded(lambda form=form: Normed(form)) for form in forms)
    for other in others:
        assert_twins(first, other, images((2, 5)))
