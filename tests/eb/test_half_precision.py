"""In low precision a map is what it is in float64, up to rounding, however small the joint neuron's weights become."""

import copy

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F

import ebcli

DTYPES = [torch.float16, torch.bfloat16]
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def plain(depth, activation, weight=None, bias=None):
    """`depth` layers and activations; the small weights of PyTorch's initialization shrink the joint weights."""

    def make():
        layers = [nn.Conv2d(3, 16, 3, padding=1)]
        for _ in range(depth):
            layer = nn.Conv2d(16, 16, 1)
            if weight is not None:
                nn.init.normal_(layer.weight, std=weight)
            if bias is not None:
                nn.init.uniform_(layer.bias, -bias, bias)
            layers += [activation(), layer]
        return nn.Sequential(
            *layers, activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, NUM_CLASSES)
        )

    return make


class Residual(nn.Module):
    """Residual blocks of a group norm, a convolution and an activation."""

    def __init__(self, activation=F.silu, depth=24):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, NUM_CLASSES)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.GroupNorm(1, 16) for _ in range(depth))
        self.activation = activation

    def forward(self, x):
        y = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = y + self.activation(conv(norm(y)))
        return self.head(y.mean((2, 3)))


class Separable(nn.Module):
    """MobileViTV2's attention: values times a context, which is an average of keys over the tokens."""

    def __init__(self, depth=4, seed=1, weight=None):
        super().__init__()
        torch.manual_seed(seed)  # of those that are not blank in float64
        self.stem, self.head = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, NUM_CLASSES)
        self.qkv = nn.ModuleList(nn.Conv1d(8, 17, 1) for _ in range(depth))
        self.out = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(depth))
        for layer in [*self.out, *self.qkv] if weight is not None else []:
            nn.init.normal_(layer.weight, std=weight)
            nn.init.uniform_(layer.bias)

    def forward(self, x):
        y = self.stem(x).flatten(2)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(y).split([1, 8, 8], 1)
            y = F.silu(out(F.relu(v) * (q.softmax(-1) * k).sum(-1, keepdim=True)))
        return self.head(y.mean(-1))


def correlation(found, expected):
    """Of the maps of each image."""
    a, b = (
        one.double().flatten(1) - one.double().flatten(1).mean(1, keepdim=True) for one in (found, expected)
    )
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def assert_as_in_float64(make, dtype, least=0.99, **options):
    torch.manual_seed(0)
    net = make().eval().to(dtype)
    found, expected = (
        ebcli.excitation_backprop(one, IMAGES.to(dtype).to(next(one.parameters()).dtype), 1, **options)
        for one in (net, copy.deepcopy(net).double())
    )
    assert (expected.maps.flatten(1).abs().amax(1) > 0).all()
    assert (found.maps.flatten(1).abs().amax(1) > 0).all(), "a blank map, without a word"
    assert (correlation(found.maps, expected.maps) > least).all()
    if not options.get("contrastive"):
        torch.testing.assert_close(found.mass.double(), expected.mass, rtol=0, atol=0.03)


DEEP = {
    "SiLU": plain(24, nn.SiLU),
    "small weights": plain(24, nn.SiLU, 0.06, 1.0),
    "ReLU": plain(24, nn.ReLU, 0.35),
    "residual SiLU": Residual,
    "separable attention": Separable,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("name", DEEP)
def test_marginal_maps(name, joint, dtype):
    assert_as_in_float64(DEEP[name], dtype, joint=joint)


# where target and dual do not nearly cancel, so that rounding the activations leaves their difference
CONTRASTIVE = {
    "small weights": (plain(24, nn.SiLU, 0.06, 1.0), True),
    "large weights": (plain(12, nn.SiLU, 0.45), True),
    "residual SiLU": (Residual, True),
    "residual SiLU, step by step": (Residual, False),
    "separable attention": (Separable, False),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_contrastive_maps(name, dtype):
    make, joint = CONTRASTIVE[name]
    # bfloat16 has eight bits, so the difference depends on the order in which a processor adds
    least = 0.98 if dtype == torch.bfloat16 else 0.99
    assert_as_in_float64(make, dtype, least, joint=joint, contrastive=True)


SINGLE = {"separable attention": lambda: Separable(24, 0, 0.1), "forty layers": plain(40, nn.SiLU, 0.03, 1.0)}


@pytest.mark.parametrize("name", SINGLE)
def test_single_precision(name):
    assert_as_in_float64(SINGLE[name], torch.float32, 0.9999, joint=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lost_mass_and_mass_are_one(dtype):
    torch.manual_seed(0)
    net = DEEP["SiLU"]().to(dtype).eval()
    for joint in (True, False):
        found = ebcli.excitation_backprop(net, IMAGES.to(dtype), 1, "0", joint=joint, track_lost_mass=True)
        total = found.mass.double() + sum(lost.double() for lost in found.lost_mass.values())
        torch.testing.assert_close(total, torch.ones(2).double(), rtol=0, atol=0.03)
