"""An image has the map that it has alone, whatever moves its elements; and maps of rows add up where images mix."""

from functools import partial

import pytest
import torch
import zoo
from nets import NUM_CLASSES
from token_nets import TokenNet, inputs, random_net
from token_steps import ACTIVATIONS, LAYERS, MIXES, MOVES
from torch import nn
from torch.nn import functional as F
from twins import seeded

import ebcli

TOLERANCE = 1e-7  # of the maximum
TARGETS = torch.tensor([1, 3, 0])
CONTRASTS = [{}, {"contrastive": True}, {"against": 2}]
SEEDS, SLOW_SEEDS, CHUNK = 8, 1200, 100


def options_of(net, contrasts):
    """The rule that the network gets, and each rule by itself, with different contrasts."""
    rules = [None, True, False]
    return [{"joint": rule, **contrasts[(net.seed + i) % len(contrasts)]} for i, rule in enumerate(rules)]


def explained(net, x, targets, options):
    """The result at the middle, or the message of an operation that has no rule."""
    try:
        return ebcli.excitation_backprop(net, x, targets, "middle", **options)
    except ebcli.UnsupportedOpError as error:
        return str(error)


def assert_close(found, expected, what):
    scale = max(1e-3, float(expected.abs().max()))
    error = float((found - expected).abs().max()) / scale
    assert error < TOLERANCE, f"{what} is off by {error:.2g} of the maximum"


def assert_each_alone(net):
    x = inputs(net.seed)
    for options in options_of(net, CONTRASTS):
        together = explained(net, x, TARGETS, options)
        for i in range(len(x)):
            alone = explained(net, x[i : i + 1], TARGETS[i : i + 1], options)
            what = f"image {i} of {net} with {options}"
            if isinstance(alone, str):
                assert together == alone, what
                continue
            assert together.joint == alone.joint, f"the rule of {what}"
            assert_close(
                net.by_image(together.relevance)[i], net.by_image(alone.relevance)[0], f"the map of {what}"
            )
            if alone.mass is not None:
                assert_close(together.mass[i], alone.mass[0], f"the mass of {what}")


def assert_rows_add_up(net):
    x = inputs(net.seed)
    one_row = F.one_hot(TARGETS, NUM_CLASSES).double() * torch.eye(len(x), dtype=torch.float64)[:, :, None]
    for options in options_of(net, CONTRASTS[:2]):
        together = explained(net, x, TARGETS, options)
        rows = [explained(net, x, prior, options) for prior in one_row]
        what = f"{net} with {options}"
        if isinstance(together, str):
            assert rows == [together] * len(x), what
            continue
        assert {row.joint for row in rows} == {together.joint}, f"the rules of {what}"
        assert_close(together.relevance, sum(row.relevance for row in rows), f"the map of {what}")
        if together.mass is not None:
            masses = torch.stack([row.relevance.sum() for row in rows])
            assert_close(together.mass, masses, f"the masses of {what}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_image_alone(seed):
    assert_each_alone(random_net(seed, mixes_images=False))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_maps_of_rows_add_up_where_images_mix(seed):
    assert_rows_add_up(random_net(seed, mixes_images=True))


def net_with(step):
    return TokenNet(["linear", step, "GELU", "attention"], seed=len(step))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("step", [*MOVES, *LAYERS, *ACTIVATIONS])
def test_each_step(step):
    assert_each_alone(net_with(step))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", MIXES)
def test_each_step_that_mixes_images(step):
    assert_rows_add_up(net_with(step))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SLOW_SEEDS, CHUNK))
def test_many_networks(first):
    for seed in range(first, first + CHUNK):
        assert_each_alone(random_net(seed, mixes_images=False))
        assert_rows_add_up(random_net(seed, mixes_images=True))


class Attended(nn.Module):
    """Patches, a class token in front, a module that mixes them, and a head.

    Args:
        mixer: the module.
        batch_first: whether it reads (B, T, C) or (T, B, C).
    """

    def __init__(self, mixer, *, batch_first):
        super().__init__()
        self.stem, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.tokens, self.mixer, self.head = nn.Identity(), mixer, nn.Linear(8, NUM_CLASSES)
        self.batch_first = batch_first

    def forward(self, x):
        y = self.stem(x).flatten(2).mT
        y = self.tokens(torch.cat([self.token.expand(len(y), -1, -1), y], 1))
        y = y if self.batch_first else y.transpose(0, 1)
        y = F.gelu(self.mixer(y))
        return self.head(y[:, 0] if self.batch_first else y[0])


class SelfAttention(nn.MultiheadAttention):
    def forward(self, y):
        return super().forward(y, y, y, need_weights=False)[0]


def encoder(*, batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=batch_first)
    return Attended(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), batch_first=batch_first)


def self_attention(*, batch_first):
    return Attended(SelfAttention(8, 2, batch_first=batch_first), batch_first=batch_first)


ENCODER_LAYERS = ["tokens", "mixer.layers.0.norm1", "mixer.layers.0"]
INNER_LAYERS = {
    "vit_b_32": [f"encoder.layers.encoder_layer_{i}" for i in ("0.ln_1", "3", "8.mlp")],
    "nn.TransformerEncoder, batch first": ENCODER_LAYERS,
    "nn.TransformerEncoder": ENCODER_LAYERS,
    "nn.MultiheadAttention, batch first": ["tokens"],
    "nn.MultiheadAttention": ["tokens"],
}


def network(name):
    """A network and two photos."""
    if name == "vit_b_32":
        specimen = zoo.small(name, batch=2, layer=INNER_LAYERS[name][0]).double()
        return specimen.net, specimen.inputs
    make = encoder if "Encoder" in name else self_attention
    photos = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    return seeded(partial(make, batch_first="batch first" in name)), photos
