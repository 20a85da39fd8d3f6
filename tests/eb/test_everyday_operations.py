"""What ordinary networks do: other names of operations, data classes, tables kept, hooks left, checkpoints."""

import math

import pytest
import torch
from nets import NUM_CLASSES
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from twins import Between, Block, images, seeded

import ebcli
from ebcli.errors import UnsupportedOpError

TOLERANCE = 1e-8  # of the maximum


def assert_equal_maps(net, twin, inputs=None, layers=(None,)):
    inputs = images() if inputs is None else inputs
    for contrast in ({}, {"contrastive": True}):
        for joint in (None, True, False):
            results = (
                ebcli.excitation_backprop(
                    one, inputs, [[0, 1]] * len(inputs), list(layers), joint=joint, **contrast
                )
                for one in (net, twin)
            )
            for found, expected in zip(*results, strict=True):
                torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-9)
                assert found.joint == expected.joint, "the rule"
                scale = expected.relevance.abs().max()
                assert scale > 1e-4, "the map is empty, so nothing is compared"
                difference = (found.relevance - expected.relevance).abs().max() / scale
                assert difference < TOLERANCE, f"{found.layer}, {contrast}, {found.joint}: {difference:.2g}"


G = torch.Generator().manual_seed(4)
W = torch.randn(4, 5, generator=G, dtype=torch.float64)
V = torch.randn(4, generator=G, dtype=torch.float64)
BIAS = torch.randn(4, generator=G, dtype=torch.float64)
SCALE = torch.rand(4, generator=G, dtype=torch.float64) + 0.5


def every_token(function):
    """A function of single tokens (4,), one after another."""
    return lambda a: torch.stack([torch.stack([function(t) for t in tokens]) for tokens in a])


# functions of tokens (B, N, 4), and the same in terms of operations that everybody knows
SPELLINGS = {
    "var(axis=, keepdims=)": (lambda a: torch.var(a, axis=1, keepdims=True)[:, 0], lambda a: a.var(1)),
    "special.log_softmax": (lambda a: torch.special.log_softmax(a, 2), lambda a: a.log_softmax(2)),
    "pow(2, y)": (lambda a: torch.pow(2, a), lambda a: (math.log(2) * a).exp()),
    "gate of special.expit": (lambda a: a * torch.special.expit(a), F.silu),
    "gelu of special.ndtr": (lambda a: a * torch.special.ndtr(a), F.gelu),
    "linalg.norm": (lambda a: torch.linalg.norm(a, dim=1), lambda a: a.square().sum(1).sqrt()),
    "linalg.norm(inf)": (lambda a: torch.linalg.norm(a, math.inf, 1), lambda a: a.abs().amax(1)),
    "divided by linalg.norm": (
        lambda a: a / torch.linalg.norm(a, dim=2, keepdim=True),
        lambda a: F.normalize(a, dim=2),
    ),
    "addcdiv to the signal": (
        lambda a: torch.addcdiv(a, a.flip(1), SCALE, value=0.5),
        lambda a: a + 0.5 * a.flip(1) / SCALE,
    ),
    "addcdiv_": (lambda a: a.clone().addcdiv_(a.flip(1), SCALE), lambda a: a + a.flip(1) / SCALE),
    "lerp_": (lambda a: a.clone().lerp_(a.flip(1), 0.3), lambda a: torch.lerp(a, a.flip(1), 0.3)),
    "tensordot": (lambda a: torch.tensordot(a, W, 1), lambda a: a @ W),
    "tensordot over two axes": (
        lambda a: torch.tensordot(a, torch.ones(4, 4, 3).to(a) * V[:, None], dims=([1, 2], [0, 1])),
        lambda a: a.flatten(1) @ (torch.ones(4, 4, 3).to(a) * V[:, None]).flatten(0, 1),
    ),
    "inner": (lambda a: torch.inner(a, W.T), lambda a: a @ W),
    "dot": (every_token(lambda t: torch.dot(t, V)), lambda a: a @ V),
    "vdot": (every_token(lambda t: torch.vdot(V, t)), lambda a: a @ V),
    "linalg.vecdot": (lambda a: torch.linalg.vecdot(a, V.expand_as(a)), lambda a: a @ V),
    "mv": (every_token(W.T.mv), lambda a: a @ W),
    "divide and subtract": (
        lambda a: torch.subtract(torch.divide(a, SCALE), BIAS),
        lambda a: a / SCALE - BIAS,
    ),
    "float_power of a constant": (lambda a: torch.float_power(2, a), lambda a: (math.log(2) * a).exp()),
    "unflatten, movedim and take_along_dim": (
        lambda a: torch.take_along_dim(a.movedim(1, 2), torch.tensor([[[2, 0, 1]]]), 2),
        lambda a: a.mT[:, :, [2, 0, 1]],
    ),
    "tensor_split": (lambda a: torch.tensor_split(a, 2, 2)[0], lambda a: a[..., :2]),
    "tile and repeat_interleave": (
        lambda a: a.tile(1, 1, 2) + a.repeat_interleave(2, 2),
        lambda a: a.repeat(1, 1, 2) + a[..., [0, 0, 1, 1, 2, 2, 3, 3]],
    ),
}


def tokens_net(function):
    def make():
        net = Between(function, 4).double()
        net(images((2, 4, 4)))
        return net

    return seeded(make)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SPELLINGS)
def test_other_names_of_operations(name):
    net, twin = (tokens_net(function) for function in SPELLINGS[name])
    assert_equal_maps(net, twin, images((2, 4, 4)), ["stem", None])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True) + x


@pytest.mark.parametrize("layer", [None, "conv"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, layer):
    net = seeded(
        lambda: Block(lambda net, y: checkpoint(net.mid, y, use_reentrant=reentrant), mid=Residual())
    )
    assert_equal_maps(net, seeded(lambda: Block(lambda net, y: net.mid(y), mid=Residual())), layers=[layer])


@pytest.mark.filterwarnings("ignore")
def test_layers_quantized_dynamically_are_refused_by_name():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 5)
    ).eval()
    quantized = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UnsupportedOpError, match=r"linear.* in 3"):
        ebcli.excitation_backprop(quantized, images().float(), 1)


class Rotary(nn.Module):
    """Attention whose queries and keys are turned by tables, which are made once and kept."""

    def __init__(self):
        super().__init__()
        self.stem, self.qkv, self.head = nn.Conv2d(3, 4, 3, 3), nn.Linear(4, 12), nn.Linear(4, NUM_CLASSES)
        self.tables = None

    def turned(self, y):
        if self.tables is None:
            angles = torch.arange(4.0)[:, None] / 10 ** torch.arange(2.0)
            self.tables = angles.repeat(1, 2).cos().to(y), angles.repeat(1, 2).sin().to(y)
        cos, sin = self.tables
        return y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin

    def forward(self, x):
        y = self.stem(x).flatten(2).mT
        q, k, v = self.qkv(y).chunk(3, -1)
        y = y + F.scaled_dot_product_attention(self.turned(q), self.turned(k), v) + self.turned(v)
        return self.head(F.gelu(y).mean(1))


@pytest.mark.parametrize("layer", [None, "stem"])
@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_tables_kept_from_a_forward_pass_without_gradients(context, layer):
    net = seeded(Rotary)
    with context():
        net(images())
    assert net.tables[0].is_inference() == (context is torch.inference_mode)
    assert_equal_maps(net, seeded(Rotary), layers=[layer])


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        net = seeded(lambda: Block(lambda _, y: F.gelu(y)))
    assert_equal_maps(net, seeded(lambda: Block(lambda _, y: F.gelu(y))))


HOOKS = {
    "full backward hook": lambda module: module.register_full_backward_hook(
        lambda _m, grads, _out: tuple(None if grad is None else grad * 0.1 for grad in grads)
    ),
    "full backward pre-hook": lambda module: module.register_full_backward_pre_hook(
        lambda _m, grads: tuple(None if grad is None else grad * 0.1 for grad in grads)
    ),
    "hook that only looks": lambda module: module.register_full_backward_hook(lambda _m, _grads, _out: None),
    "hook of the output": lambda module: module.register_forward_hook(
        lambda _m, _args, output: (
            output.register_hook(lambda grad: grad * 0.1) and None if output.requires_grad else None
        )
    ),
}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("at", ["conv", "act", "fc"])
@pytest.mark.parametrize("name", HOOKS)
def test_backward_hooks_left_on_modules_change_no_probability(name, at, joint):
    """Such as a gradient clip, or Grad-CAM's. Maps are the network's without the hook."""

    def make():
        return Block(lambda net, y: net.act(y), act=nn.ReLU())

    net, twin = seeded(make), seeded(make)
    HOOKS[name](net.get_submodule(at))
    for layer in (None, "conv"):
        found, expected = (
            ebcli.excitation_backprop(one, images(), 1, layer, joint=joint) for one in (net, twin)
        )
        torch.testing.assert_close(found.relevance, expected.relevance, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.mass, expected.mass, rtol=0, atol=1e-12)
    x = images().requires_grad_()
    F.cross_entropy(net(x), torch.tensor([1, 2]))  # the hook is still there
    assert any(kind for kind in vars(net.get_submodule(at)).items() if kind[0].endswith("hooks") and kind[1])


@pytest.mark.parametrize("name", ["full backward hook", "full backward pre-hook", "hook that only looks"])
def test_backward_hooks_of_modules_in_the_bare_mode(name):
    net, twin = (seeded(lambda: Block(lambda net, y: net.act(y), act=nn.ReLU())) for _ in range(2))
    HOOKS[name](net.act)

    relevance = []
    for one in (net, twin):
        x = images().requires_grad_()
        with ebcli.excitation_mode(one):
            logits = one(x)
        relevance += torch.autograd.grad(logits, x, torch.ones_like(logits))
    torch.testing.assert_close(*relevance, rtol=0, atol=1e-12)
