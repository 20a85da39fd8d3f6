"""Equal functions have equal maps: which axes an operation reduces, keeps and mixes decides, not its name."""

import math

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F
from twins import Block, images, seeded

import ebcli

GAMMA = torch.tensor([1.5, -0.7, 0.4, 1.1], dtype=torch.float64)
TOLERANCE = 1e-8  # of the maximum


def assert_equal_maps(net, twin, inputs=None, layers=(None, "conv"), tolerance=TOLERANCE):
    """The same choice of rule, and the same maps by either rule, marginal, contrastive and against a class."""
    inputs = images() if inputs is None else inputs
    chosen = None
    for contrast in ({}, {"contrastive": True}, {"against": 2}):
        for joint in (None, chosen is not True):  # as the network chooses, and the other way
            results = (
                ebcli.excitation_backprop(one, inputs, 1, list(layers), joint=joint, **contrast)
                for one in (net, twin)
            )
            for found, expected in zip(*results, strict=True):
                torch.testing.assert_close(found.logits, expected.logits, rtol=1e-7, atol=1e-10)
                assert found.joint == expected.joint, "the rule"
                scale = expected.relevance.abs().max()
                assert scale > 1e-4, "the map is empty, so nothing is compared"
                difference = (found.relevance - expected.relevance).abs().max() / scale
                where = f"{found.layer}, {contrast}, joint={found.joint}"
                assert difference < tolerance, f"{where}: {difference:.2g} of the maximum"
            chosen = expected.joint if joint is None else chosen


class Tokens(nn.Module):
    """A class token and tokens of an image, attention, a residual sum, GELU units between norms, a gate and a head.

    Args:
        spelled: functions that replace those of `SPELT`, by name.
    """

    def __init__(self, **spelled):
        super().__init__()
        self.conv, self.token = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(1, 1, 4))
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.units, self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, NUM_CLASSES)
        self.spelled = {**SPELT, **spelled}

    def forward(self, x):
        do = self.spelled
        y = F.avg_pool2d(self.conv(x), 2).flatten(2).mT
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1)
        n = do["norm"](y)
        y = do["add"](y, do["attend"](self.q(n), self.k(n), self.v(n)))
        h = do["scale"](do["norm"](F.gelu(self.units(do["norm"](y)))))
        h = do["add"](h, y)
        h = do["excite"](h, self.gate(h.mean(1)).sigmoid())
        return self.head(do["read"](do["norm"](h)))


def normed(mean):
    """Layer norm by hand, with means over the channels as `mean` spells them."""

    def norm(y):
        centered = y - mean(y)
        return centered / (mean(centered * centered) + 1e-5).sqrt()

    return norm


def attention(weigh):
    return lambda q, k, v: weigh((q @ k.mT / 2).softmax(-1), v)


SPELT = {
    "norm": lambda y: F.layer_norm(y, (4,)),
    "add": lambda a, b: a + b,
    "attend": F.scaled_dot_product_attention,
    "scale": lambda y: y * GAMMA,
    "excite": lambda y, gate: y * gate[:, None],
    "read": lambda y: y[:, 0],
}
SPELLINGS = {
    "norm": {
        "keepdim": normed(lambda y: y.mean(-1, keepdim=True)),
        "new axis": normed(lambda y: y.mean(-1)[..., None]),
        "sum over n": normed(lambda y: y.sum(-1, keepdim=True) / 4),
        "einsum": normed(lambda y: torch.einsum("btc->bt", y)[..., None] / 4),
        "a matrix of 1/n": normed(lambda y: y @ torch.full((4, 1), 0.25).to(y)),
        "pooling of the last axis": normed(lambda y: F.adaptive_avg_pool1d(y, 1)),
        "var over a new axis": lambda y: (
            (y - y.mean(-1)[..., None]) * (y.var(-1, unbiased=False) + 1e-5).rsqrt().unsqueeze(2)
        ),
    },
    "add": {
        "stack and sum": lambda a, b: torch.stack([a, b]).sum(0),
        "twice the mean of a stack": lambda a, b: 2 * torch.stack([a, b]).mean(0),
        "cat of new axes": lambda a, b: torch.cat([a[None], b[None]]).sum(0),
        "einsum over a stack": lambda a, b: torch.einsum("sbtc->btc", torch.stack([a, b])),
        "a stack times ones": lambda a, b: torch.stack([a, b], -1) @ torch.ones(2).to(a),
        "twice the middle": lambda a, b: torch.lerp(a, b, 0.5) * 2,
    },
    "attend": {
        "matmul": attention(lambda w, v: w @ v),
        "einsum": attention(lambda w, v: torch.einsum("bqk,bkd->bqd", w, v)),
        "turned": attention(lambda w, v: (v.mT @ w.mT).mT),
        "a product and a sum": attention(lambda w, v: (w[..., None] * v[:, None]).sum(2)),
        "scores by a product and a sum": lambda q, k, v: (
            ((q[:, :, None] * k[:, None]).sum(-1) / 2).softmax(-1) @ v
        ),
        "image by image": attention(
            lambda w, v: torch.stack([one @ values for one, values in zip(w, v, strict=True)])
        ),
        "with a head of its own": attention(lambda w, v: (w[:, None] @ v[:, None]).squeeze(1)),
    },
    "scale": {
        "einsum": lambda y: torch.einsum("btc,c->btc", y, GAMMA),
        "einsum, the scale first": lambda y: torch.einsum("c,btc->btc", GAMMA, y),
        "over its inverse": lambda y: y / (1 / GAMMA),
        "of an expanded scale": lambda y: y * GAMMA.expand_as(y),
    },
    "excite": {
        "einsum, the gate first": lambda y, gate: torch.einsum("bc,btc->btc", gate, y),
        "channels first": lambda y, gate: (y.mT * gate[..., None]).mT,
        "repeated": lambda y, gate: y * gate[:, None].repeat(1, y.shape[1], 1),
    },
}
READS = {"class token": lambda y: y[:, 0], "average": lambda y: y.mean(1)}
# one spelling of each operation, until all have been in one
MIXED = [
    {slot: [*names][i % len(names)] for slot, names in SPELLINGS.items()}
    for i in range(len(SPELLINGS["norm"]))
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("names", MIXED, ids=lambda names: ", ".join(names.values()))
def test_a_transformer_in_two_spellings(names, read):
    spellings = {slot: SPELLINGS[slot][name] for slot, name in names.items()}
    net, twin = (
        seeded(lambda spelled=spelled: Tokens(read=READS[read], **spelled)) for spelled in (spellings, {})
    )
    assert_equal_maps(net, twin)


AVERAGES = {
    "sum over n": lambda y: y.sum(1) / y.shape[1],
    "einsum": lambda y: torch.einsum("btc->bc", y) / y.shape[1],
    "pooling": lambda y: F.adaptive_avg_pool1d(y.mT, 1)[..., 0],
    "a matrix": lambda y: y.mT @ torch.full((y.shape[1],), 1 / y.shape[1]).to(y),
    "token by token": lambda y: torch.stack(y.unbind(1)).mean(0),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_over_tokens_is_one_however_it_is_spelt(name):
    net, twin = (seeded(lambda read=read: Tokens(read=read)) for read in (AVERAGES[name], READS["average"]))
    assert_equal_maps(net, twin)


def gate_of(y):
    return y.mean((2, 3)).sigmoid()


GATED = {
    "einsum, the gate first": lambda y: torch.einsum("bc,bchw->bchw", gate_of(y), y),
    "channels last": lambda y: (y.movedim(1, -1) * gate_of(y)[:, None, None]).movedim(-1, 1),
    "multiplied in place": lambda y: y.clone().mul_(gate_of(y)[..., None, None]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("activation", [F.gelu, F.relu])
@pytest.mark.parametrize("name", GATED)
def test_squeeze_and_excitation(name, activation, averages):
    """A gate mixes no cells, whether or not the classifier averages them."""

    def between(gated):
        def excited(_, y):
            y = gated(activation(y))
            return y.mean((2, 3), keepdim=True).expand_as(y) if averages else y

        return excited

    net, twin = (
        seeded(lambda gated=gated: Block(between(gated)))
        for gated in (GATED[name], lambda y: y * gate_of(y)[..., None, None])
    )
    assert_equal_maps(net, twin)


# the second operand gives a type or a shape, and no values
CASTS = {
    "type_as": lambda w, q, v: w.float().type_as(q),
    "to": lambda w, q, v: w.float().to(q),
    "expand_as": lambda w, q, v: (
        w[:, None].expand_as(w[:, None] + 0 * q.sum((1, 2))[:, None, None, None])[:, 0].float().double()
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("name", CASTS)
def test_attention_weights_cast_or_shaped_like_a_signal(name, read):
    def attend(cast):
        return lambda q, k, v: cast((q @ k.mT / 2).softmax(-1), q, v) @ v

    net, twin = (
        seeded(lambda cast=cast: Tokens(read=READS[read], attend=attend(cast)))
        for cast in (CASTS[name], lambda w, q, v: w.float().double())
    )
    assert_equal_maps(net, twin, tolerance=1e-6)


LIKE = {
    "type_as": lambda y, other: y.float().type_as(other),
    "view_as": lambda y, other: y.float().double().flatten(1).view_as(other),
    "expand_as": lambda y, other: y.float().double().expand_as(other),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("activation", [F.gelu, F.relu])
@pytest.mark.parametrize("name", LIKE)
def test_a_signal_cast_or_shaped_like_another(name, activation):
    """Of the two convolutions' values, the second gives its type or shape, and is added afterwards."""

    def between(like):
        def both(net, y):
            other = net.other(y)
            return activation(like(y, other)) + other

        return Block(both, other=nn.Conv2d(4, 4, 1))

    net, twin = (
        seeded(lambda like=like: between(like)) for like in (LIKE[name], lambda y, other: y.float().double())
    )
    assert_equal_maps(net, twin, tolerance=1e-6)


def rows(y):
    return y.reshape(len(y), -1)


# each factor passes a view of its own
VIEWED = {
    "silu, each factor a view": (lambda y: (rows(y) * rows(y).sigmoid()).view_as(y), F.silu),
    "silu, turned": (lambda y: (y.mT * y.sigmoid().mT).mT, F.silu),
    "silu, a new axis": (lambda y: (y[:, None] * torch.sigmoid(y.unsqueeze(1))).squeeze(1), F.silu),
    "silu in halves": (
        lambda y: torch.cat(
            [half * gate for half, gate in zip(y.chunk(2, 1), y.sigmoid().chunk(2, 1), strict=True)], 1
        ),
        F.silu,
    ),
    "gelu, each factor a view": (
        lambda y: (0.5 * rows(y) * (1 + torch.erf(rows(y) / math.sqrt(2)))).view_as(y),
        F.gelu,
    ),
    "quick gelu of rows": (
        lambda y: (rows(y) * rows(torch.sigmoid(1.702 * y))).view_as(y),
        lambda y: y * torch.sigmoid(1.702 * y),
    ),
    "tanh by a sigmoid": (lambda y: 2 * torch.sigmoid(2 * y) - 1, torch.tanh),
    "tanh by a sigmoid of the negative": (lambda y: 1 - 2 * torch.sigmoid(-2 * y), torch.tanh),
    "softplus in place, of the layer": (lambda y: y.exp_().add_(1).log_(), F.softplus),
    "sigmoid in place": (lambda y: y.neg_().exp_().add_(1).reciprocal_(), torch.sigmoid),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("behind", [F.gelu, lambda y: y], ids=["before gelu", "alone"])
@pytest.mark.parametrize("name", VIEWED)
def test_an_activation_of_views_and_in_place(name, behind):
    net, twin = (seeded(lambda f=f: Block(lambda _, y: behind(f(y)))) for f in VIEWED[name])
    assert_equal_maps(net, twin)


def centered(y, axes):
    return y - y.mean(axes, keepdim=True)


BY_STATISTICS = {
    "batch norm": lambda y: F.batch_norm(y, None, None, GAMMA, GAMMA, training=True),
    "by hand": lambda y: (
        centered(y, (0, 2, 3))
        / (y.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        * GAMMA[:, None, None]
        + GAMMA[:, None, None]
    ),
    "instance norm": lambda y: F.instance_norm(y, weight=GAMMA, bias=GAMMA),
}


@pytest.mark.parametrize("activation", [F.gelu, F.relu])
@pytest.mark.parametrize("name", BY_STATISTICS)
def test_batch_norm_by_the_statistics_of_one_image_is_a_group_norm(name, activation):
    net, twin = (
        seeded(lambda norm=norm: Block(lambda _, y: activation(norm(y))))
        for norm in (BY_STATISTICS[name], lambda y: F.group_norm(y, 4, GAMMA, GAMMA))
    )
    assert_equal_maps(net, twin, images()[:1])


def test_batch_norm_by_the_statistics_of_the_batch():
    net, twin = (
        seeded(lambda norm=norm: Block(lambda _, y: norm(y).relu()))
        for norm in (BY_STATISTICS["batch norm"], BY_STATISTICS["by hand"])
    )
    found, expected = (
        ebcli.excitation_backprop(one, images(), 1, joint=False).relevance for one in (net, twin)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * float(expected.max()))
