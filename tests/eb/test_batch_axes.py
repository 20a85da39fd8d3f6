"""Which image an element belongs to: layers whose first axis is not the batch, and images that are not alone in it."""

import copy
import math

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F
from twins import images, seeded

import ebcli

CONTRASTS = [{}, {"contrastive": True}, {"against": 2}]
TARGETS = {"one class": 1, "one each": None, "two each": "two"}


def targets_for(name, batch):
    if name == "two each":
        return [[i % 2, 3 + i % 2] for i in range(batch)]
    return [i % 2 for i in range(batch)] if name == "one each" else 1


def assert_close(found, expected, what):
    scale = expected.abs().max()
    assert scale > 1e-4, f"{what} is empty, so nothing is compared"
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)} instead of {tuple(expected.shape)}"
    difference = (found - expected).abs().max() / scale
    assert difference < 1e-8, f"{what}: {difference:.2g} of the maximum"


class Sequences(nn.Module):
    """Tokens of an image in layers that read (L, B, C), or (B, L, C), and a head.

    Args:
        batch_first: which of the two.
        mix: a module or function of tokens of either kind.
        read: "class token" or "average".
    """

    def __init__(self, batch_first, make, read="average"):
        super().__init__()
        self.stem, self.token = nn.Conv2d(3, 4, 3, 3), nn.Parameter(torch.randn(1, 1, 4))
        self.tokens, self.mix, self.units = nn.Identity(), make(batch_first), nn.Linear(4, 6)
        self.head = nn.Linear(6, NUM_CLASSES)
        self.batch_first, self.read = batch_first, read

    def forward(self, x):
        y = self.stem(x).flatten(2)
        y = y.transpose(1, 2) if self.batch_first else y.permute(2, 0, 1)
        places = 1 if self.batch_first else 0
        if self.read == "class token":
            token = (
                self.token.expand(len(x), -1, -1) if self.batch_first else self.token.expand(-1, len(x), -1)
            )
            y = torch.cat([token, y], places)
        y = self.units(self.mix(self.tokens(y)))
        y = F.gelu(y)
        return self.head(y.select(places, 0) if self.read == "class token" else y.mean(places))


class Attended(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, y):
        return y + self.attention(y, y, y, need_weights=False)[0]


class ByHand(nn.Module):
    """Attention over the axis of tokens, as CLIP writes it: heads and images share an axis."""

    def __init__(self, batch_first):
        super().__init__()
        self.qkv, self.out, self.batch_first = nn.Linear(4, 12), nn.Linear(4, 4), batch_first

    def forward(self, y):
        tokens = y.transpose(0, 1) if self.batch_first else y  # (L, B, C)
        length, batch, _ = tokens.shape
        q, k, v = (
            part.reshape(length, batch * 2, 2).transpose(0, 1) for part in self.qkv(tokens).chunk(3, -1)
        )
        mixed = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(2), -1), v)
        mixed = self.out(mixed.transpose(0, 1).reshape(length, batch, 4))
        return y + (mixed.transpose(0, 1) if self.batch_first else mixed)


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.layer = nn.GRU(4, 4, batch_first=batch_first)

    def forward(self, y):
        return y + self.layer(y)[0]


class Decoder(nn.Module):
    """Learned queries that attend to the tokens, as in DETR, as many as tokens."""

    def __init__(self, batch_first):
        super().__init__()
        self.queries, self.batch_first = nn.Parameter(torch.randn(4, 4)), batch_first
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, y):
        batch = y.shape[0 if self.batch_first else 1]
        queries = (
            self.queries.repeat(batch, 1, 1)
            if self.batch_first
            else self.queries[:, None].repeat(1, batch, 1)
        )
        return queries + self.attention(queries, y, y, need_weights=False)[0]


def encoder_layer(batch_first):
    return nn.TransformerEncoderLayer(4, 2, 8, 0.0, F.gelu, batch_first=batch_first, norm_first=True)


MIXES = {
    "nn.TransformerEncoderLayer": encoder_layer,
    "nn.MultiheadAttention": Attended,
    "CLIP": ByHand,
    "GRU": Recurrent,
    "DETR": Decoder,
    "linear": lambda _: nn.Linear(4, 4),
}


SIZES = [
    ("average", 1),
    ("average", 3),
    ("average", 4),
    ("class token", 3),
    ("class token", 5),
]  # of 4 tokens, or 5
CASES = [
    (mix, *size) for mix in MIXES for size in SIZES if size[0] == "average" or mix not in ("GRU", "linear")
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("contrast", CONTRASTS, ids=str)
@pytest.mark.parametrize(("mix", "read", "batch"), CASES)
def test_a_network_of_sequences_first_equals_its_twin(mix, read, batch, contrast):
    """Logits, maps and masses. The tokens are a layer that differs itself: (L, B, C) or (B, L, C)."""
    first, twin = (seeded(lambda b=b: Sequences(b, MIXES[mix], read)) for b in (False, True))
    twin.load_state_dict(first.state_dict())
    x, targets = images((batch, 3, 6, 6)), targets_for("two each", batch)
    for joint in (None, True, False):
        results = (
            ebcli.excitation_backprop(net, x, targets, [None, "stem", "tokens"], joint=joint, **contrast)
            for net in (first, twin)
        )
        for found, expected in zip(*results, strict=True):
            at = f"at {found.layer} with joint={joint}"
            assert_close(found.logits, expected.logits, "logits")
            assert found.joint == expected.joint, f"the rule {at}"
            assert_close(found.maps, expected.maps, f"maps {at}")
            if not contrast:
                assert_close(found.mass, expected.mass, f"mass {at}")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("joint", [None, True, False])
@pytest.mark.parametrize("contrast", CONTRASTS, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_sequences_first_image_by_image(mix, contrast, joint):
    net, x = seeded(lambda: Sequences(False, MIXES[mix])), images((4, 3, 6, 6))
    assert_each_alone(net, x, [None, "stem", "tokens"], contrast, joint, "one each")


def assert_each_alone(net, x, layers, contrast, joint, targets):
    """The maps of a batch are those of its images alone."""
    wanted = targets_for(targets, len(x))
    together = ebcli.excitation_backprop(net, x, wanted, layers, joint=joint, **contrast)
    for i in range(len(x)):
        own = wanted if wanted == 1 else wanted[i : i + 1]
        alone = ebcli.excitation_backprop(net, x[i : i + 1], own, layers, joint=joint, **contrast)
        for found, expected in zip(together, alone, strict=True):
            what = f"image {i} at {found.layer}"
            scale = max(1e-3, float(expected.maps.abs().max()))
            torch.testing.assert_close(found.maps[i], expected.maps[0], rtol=0, atol=1e-8 * scale, msg=what)
            if not contrast:
                torch.testing.assert_close(
                    found.mass[i], expected.mass[0], rtol=0, atol=1e-8, msg=f"mass of {what}"
                )


def mixed_images():
    """Noise, an image without negative values, one without positive ones, a faint, a strong and a blank one."""
    x = images((6, 3, 6, 6))
    x[1], x[2] = x[1].abs(), -x[2].abs()
    x[3], x[4], x[5] = x[3] * 1e-4, x[4] * 1e4, 0
    return x


def convolutions(activation):
    def make():
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            activation,
            nn.Conv2d(4, 4, 2),
            activation,
            nn.Flatten(),
            nn.Linear(36, NUM_CLASSES),
        )
        net[0].weight.data.abs_()  # so that values have the sign of the image
        return net

    return make


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(4, NUM_CLASSES),
        )
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.stem(x)
        y = F.silu(self.norm(y)) + F.relu(self.inner(y))
        return self.head((y * y.mean((2, 3), keepdim=True).sigmoid()).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = (
            nn.Conv2d(3, 4, 3, 3),
            encoder_layer(True),
            nn.Linear(4, NUM_CLASSES),
        )

    def forward(self, x):
        return self.head(F.gelu(self.block(self.stem(x).flatten(2).mT))[:, 0])


NETS = {
    **{
        type(f).__name__: convolutions(f)
        for f in (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.LeakyReLU(0.1), nn.Tanh(), nn.ELU())
    },
    "Residual": Residual,
    "Transformer": Transformer,
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("joint", [None, True, False])
@pytest.mark.parametrize("contrast", CONTRASTS, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_an_image_has_the_map_that_it_has_alone(name, contrast, joint):
    net = seeded(NETS[name])
    layers = [None, "0" if isinstance(net, nn.Sequential) else "stem"]
    for targets in TARGETS:
        if "against" not in contrast or targets != "two each":
            assert_each_alone(net, mixed_images(), layers, contrast, joint, targets)


class Stacked(nn.Module):
    """Branches in front of the images: (2, B, C, H, W)."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.both = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Identity()
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x):
        y = self.both(torch.stack([self.one(x), self.other(x)]))
        return self.head(F.gelu(y).mean((0, 3, 4)))


@pytest.mark.parametrize("joint", [True, False])
def test_branches_in_front_are_no_images_though_there_are_as_many(joint):
    net, x = seeded(Stacked), images((2, 3, 6, 6))
    together = ebcli.excitation_backprop(net, x, 1, "both", joint=joint)
    for i in range(2):
        alone = ebcli.excitation_backprop(net, x[i : i + 1], 1, "both", joint=joint)
        torch.testing.assert_close(together.relevance[:, i], alone.relevance[:, 0], rtol=0, atol=1e-10)
        assert together.mass[i].item() == pytest.approx(alone.mass[0].item())


def test_in_single_precision_an_image_does_not_depend_on_its_neighbors():
    net, x = copy.deepcopy(seeded(convolutions(nn.GELU()))).float(), mixed_images().float()
    together = ebcli.excitation_backprop(net, x, 1).relevance
    for i, image in enumerate(x):
        alone = ebcli.excitation_backprop(net, image[None], 1).relevance[0]
        torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-5 * max(1e-3, float(alone.max())))
