"""Products: which factor is the signal, and which the gate, the weight or the attention."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Block, assert_twins, images, seeded, shares

import ebcli
from ebcli.errors import UnsupportedOpError

TOKENS = (2, 4, 6)


class Attention(nn.Module):
    """Hand-written attention over tokens; `weights` makes the attention weights from the scores."""

    def __init__(self, weights):
        super().__init__()
        self.q, self.k, self.v, self.fc = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)
        self.mix = nn.Parameter(torch.randn(2, 2))
        self.weights = weights

    def attention(self, x):
        return self.weights(self, self.q(x) @ self.k(x).mT / math.sqrt(5))

    def forward(self, x):
        return self.fc((self.attention(x) @ self.v(x)).tanh().mean(1))


class Fixed(Attention):
    """The same attention with its weights given, as a constant matrix."""

    def __init__(self, net, x):
        super().__init__(None)
        self.load_state_dict(net.state_dict())
        self.double().eval()
        with torch.no_grad():
            self.given = net.attention(x)

    def attention(self, x):
        return self.given


def divided(a):
    return a / a.sum(-1, keepdim=True)


MASK = torch.ones(4, 4).tril().bool()
ATTENTION = {
    "softmax": lambda net, s: s.softmax(-1),
    "functional": lambda net, s: F.softmax(s, dim=-1),
    "dropout": lambda net, s: F.dropout(s.softmax(-1), training=False),
    "masked_fill": lambda net, s: s.softmax(-1).masked_fill(~MASK, 0.0),
    "masked_fill_": lambda net, s: s.softmax(-1).masked_fill_(~MASK, 0.0),
    "masked_before": lambda net, s: s.masked_fill(~MASK, -math.inf).softmax(-1),
    "where": lambda net, s: torch.where(MASK, s.softmax(-1), 0.0),
    "where_zeros": lambda net, s: torch.where(MASK, s.softmax(-1), torch.zeros_like(s)),
    "times_a_mask": lambda net, s: s.softmax(-1) * MASK,
    "times_a_float_mask": lambda net, s: MASK.to(s.dtype) * s.softmax(-1),
    "tril": lambda net, s: s.softmax(-1).tril(),
    "divided_by_its_sum": lambda net, s: divided(s.sigmoid()),
    "masked_and_divided": lambda net, s: divided(s.softmax(-1) * MASK),
    "normalized": lambda net, s: F.normalize(s.softmax(-1), p=1, dim=-1),
    "cast": lambda net, s: s.float().softmax(-1).to(s.dtype),
    "type_as": lambda net, s: F.softmax(s, -1, torch.float64).type_as(s),
    "cloned": lambda net, s: s.softmax(-1).clone(),
    "transposed_twice": lambda net, s: s.mT.softmax(-2).mT,
    "concatenated": lambda net, s: torch.cat([s.softmax(-1)[:, :2], s.softmax(-1)[:, 2:]], 1),
    "exponential": lambda net, s: divided(s.exp()),
    "sigmoid": lambda net, s: s.sigmoid(),
    "in_place": lambda net, s: s.softmax(-1).mul_(0.5),
    "scaled": lambda net, s: s.softmax(-1) * net.mix.abs().repeat(2, 2),
    "scaled_by_both_signs": lambda net, s: s.softmax(-1) * net.mix.repeat(2, 2),
    "negated": lambda net, s: -s.softmax(-1),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_hands_probability_to_its_values_alone(name, layer):
    net, x = seeded(lambda: Attention(ATTENTION[name])), images(TOKENS)
    assert_twins(net, Fixed(net, x), x, layer)


@pytest.mark.parametrize("layer", ["q", "k"])
def test_queries_and_keys_get_nothing(layer):
    net, x = seeded(lambda: Attention(ATTENTION["masked_fill"])), images(TOKENS)
    try:
        result = ebcli.excitation_backprop(net, x, 1, layer)
    except ebcli.LayerError:
        return
    assert not result.relevance.any()


@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("where", ["before", "after", "both"])
def test_talking_heads_mix_by_the_signs_of_their_matrix(where, layer):
    """Attention weights mixed over heads are weights of both signs, and the values their inputs."""

    class TalkingHeads(Attention):
        def attention(self, x):
            q, k = (part(x)[..., :4].unflatten(-1, (2, 2)).transpose(1, 2) for part in (self.q, self.k))
            scores = q @ k.mT  # (B, heads, N, N)
            if where != "after":
                scores = torch.einsum("gh,bhnm->bgnm", self.mix, scores)
            attention = scores.softmax(-1)
            if where != "before":
                attention = F.linear(attention.permute(0, 2, 3, 1), self.mix).permute(0, 3, 1, 2)
            return attention

        def forward(self, x):
            v = self.v(x)[..., :4].unflatten(-1, (2, 2)).transpose(1, 2)
            mixed = (self.attention(x) @ v).transpose(1, 2).flatten(2)
            return self.fc(F.pad(mixed, (0, 1)).tanh().mean(1))

    class FixedHeads(TalkingHeads):
        def attention(self, x):
            return self.given

    net, x = seeded(lambda: TalkingHeads(None)), images(TOKENS)
    twin = FixedHeads(None)
    twin.load_state_dict(net.state_dict())
    twin.double().eval()
    twin.given = net.attention(x).detach()
    assert (twin.given < 0).any() == (where != "before")
    assert_twins(net, twin, x, layer)


@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("order", ["keys_first", "queries_first"])
def test_linear_attention_is_a_product_of_fixed_weights_and_values(order, layer):
    """Where nothing is negative, both orders of phi(q) phi(k)^T v have the same shares."""

    class Linear(Attention):
        def forward(self, x):
            q, k, v = self.q(x).relu() + 0.1, self.k(x).relu(), self.v(x).relu()
            attended = q @ (k.mT @ v) if order == "keys_first" else (q @ k.mT) @ v
            return self.fc((attended / (q @ k.sum(1, keepdim=True).mT)).mean(1))

    class FixedLinear(Attention):
        def forward(self, x):
            return self.fc((self.given @ self.v(x).relu()).mean(1))

    net, x = seeded(lambda: Linear(None)), images(TOKENS)
    q, k = net.q(x).relu() + 0.1, net.k(x).relu()
    twin = FixedLinear(None)
    twin.load_state_dict(net.state_dict())
    twin.double().eval()
    twin.given = (q @ k.mT / (q @ k.sum(1, keepdim=True).mT)).detach()
    assert_twins(net, twin, x, layer)


class Gated(nn.Module):
    """Two linear layers, whose outputs are multiplied."""

    def __init__(self, product, width=5):
        super().__init__()
        self.signal, self.gate, self.fc = nn.Linear(6, 5), nn.Linear(6, width), nn.Linear(5, 3)
        self.product = product

    def forward(self, x):
        return self.fc(self.product(self.signal(x), self.gate(x)))


GATES = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,  # SwiGLU
    "gelu": F.gelu,  # GEGLU
    "relu": F.relu,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "elu": F.elu,
}


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_a_factor_that_comes_through_an_activation_is_the_gate(name, gate_first):
    def product(a, b):
        return GATES[name](b) * a if gate_first else a * GATES[name](b)

    net, x = seeded(lambda: Gated(product)), images((3, 6))
    values = net.signal(x) * GATES[name](net.gate(x))
    # the head's shares go straight on to the signal, and from there by the signs of its own responses
    z = net.fc.weight[1] * values
    P = z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)
    expected = torch.stack(
        [p @ shares(net.signal.weight, a, r.sign()) for p, a, r in zip(P, x, net.signal(x), strict=True)]
    )
    found = ebcli.excitation_backprop(net, x, 1)
    torch.testing.assert_close(found.relevance, expected.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1, "signal").relevance, P.detach())


SIGNED = torch.tensor([1.0, -2.0, 0.5, -1.0, 3.0], dtype=torch.float64)
TURNED = {
    "tensor": lambda a: a * SIGNED,
    "divided": lambda a: a / SIGNED,
    "number": lambda a: a * -1.5,
    "negated": lambda a: -a,
}


@pytest.mark.parametrize("name", TURNED)
def test_a_softmax_times_a_negative_constant_is_a_signal_like_any_other(name):
    """It has lost the range of a gate, so beside a sigmoid it is the signal."""

    def values(a, b):
        return TURNED[name](a.softmax(-1)) * b.sigmoid()

    net, x = seeded(lambda: Gated(values)), images((3, 6))
    z = net.fc.weight[1] * values(net.signal(x), net.gate(x))
    P = z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1, "signal").relevance, P.detach())


@pytest.mark.parametrize("name", ["expand", "new_axis", "size_one"])
def test_a_broadcast_factor_is_the_gate(name):
    """A gate made without an activation, as a scale for all channels, is told by being broadcast."""
    widths = {"expand": lambda b: b.expand(-1, 5), "new_axis": lambda b: b[:, 0, None], "size_one": lambda b: b}
    net, x = seeded(lambda: Gated(lambda a, b: a * widths[name](b), width=1)), images((3, 6))
    z = net.fc.weight[1] * net.signal(x) * net.gate(x)
    P = z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1, "signal").relevance, P.detach())


UNDECIDED = {
    "equals": (lambda a, b: a * b, (4, 4), (4, 4)),
    "outer": (lambda a, b: a * b, (4, 1), (1, 4)),
    "outer_of_unequal_size": (lambda a, b: (a * b).repeat(1, 1, 2)[..., :4], (4, 1), (1, 3)),
    "a_sum_with_one_of_its_terms": (lambda a, b: (a + b) * a, (4, 4), (4, 4)),
    "both_activated": (lambda a, b: a.tanh() * b.tanh(), (4, 4), (4, 4)),
    "both_switches": (lambda a, b: (a.softmax(-1) * SIGNED[:4].abs()) * b.sigmoid(), (4, 4), (4, 4)),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_product_of_equals_is_refused(name):
    product, left, right = UNDECIDED[name]

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, math.prod(left)), nn.Linear(6, math.prod(right))
            self.fc = nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(product(self.a(x).unflatten(1, left), self.b(x).unflatten(1, right)).flatten(1))

    with pytest.raises(UnsupportedOpError, match="mul"):
        ebcli.excitation_backprop(seeded(Product), images((3, 6)), 1)


ONE_INPUT = {
    "square": (lambda y: y * y, torch.square),
    "cube": (lambda y: y * y * y, lambda y: y**3),
    "silu": (lambda y: y * torch.sigmoid(y), F.silu),
    "gelu": (lambda y: 0.5 * y * (1 + torch.erf(y / math.sqrt(2))), F.gelu),
    "gelu_tanh": (
        lambda y: 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
        lambda y: F.gelu(y, approximate="tanh"),
    ),
    "gelu_of_powers": (
        lambda y: 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0)))),
        lambda y: F.gelu(y, approximate="tanh"),
    ),
    "quick_gelu": (lambda y: y * torch.sigmoid(1.702 * y), lambda y: F.silu(1.702 * y) / 1.702),
    "mish": (lambda y: y * torch.tanh(F.softplus(y)), F.mish),
    "hardswish": (lambda y: y * F.relu6(y + 3) / 6, F.hardswish),
    "swish_in_place": (lambda y: y.mul_(y.sigmoid()), F.silu),
    "half_and_half": (lambda y: y * 0.5 + y * 0.5 * torch.erf(y / math.sqrt(2)), F.gelu),
}


@pytest.mark.parametrize("layer", [None, "conv"])
@pytest.mark.parametrize("name", ONE_INPUT)
def test_an_activation_written_by_hand(name, layer):
    by_hand, known = ONE_INPUT[name]
    net, twin = (seeded(lambda f=f: Block(lambda _, y: f(y))) for f in (by_hand, known))
    assert_twins(net, twin, layer=layer, tolerance=1e-8)


def test_global_response_normalization_scales_its_signal():
    """ConvNeXt-V2's GRN: x + bias + gamma * (x * n), n the norm of each channel over that of all."""

    class GRN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(64, 5)
            self.gamma, self.bias = nn.Parameter(torch.rand(1, 4, 1, 1)), nn.Parameter(torch.zeros(1, 4, 1, 1))

        def forward(self, x):
            x = self.conv(x)
            g = x.norm(p=2, dim=(2, 3), keepdim=True)
            n = g / (g.mean(dim=1, keepdim=True) + 1e-6)
            return self.fc((x + torch.addcmul(self.bias, self.gamma, x * n)).flatten(1))

    net = seeded(GRN)
    twin = seeded(lambda: Block(lambda _, y: y))
    twin.load_state_dict({k: v for k, v in net.state_dict().items() if k in twin.state_dict()})
    # gamma, n >= 0: both terms have their sum's sign, so the sum of the shares is the signal's own
    with torch.no_grad():
        y = net.conv(images())
        g = y.norm(p=2, dim=(2, 3), keepdim=True)
        scale = 1 + net.gamma * g / (g.mean(1, keepdim=True) + 1e-6)
        z = net.fc.weight[1] * (y * scale).flatten(1)
    P = (z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)).view_as(y)
    torch.testing.assert_close(ebcli.excitation_backprop(net, images(), 1, "conv").relevance, P)


@pytest.mark.parametrize("operation", ["bicubic", "bicubic_antialiased", "roi_align"])
def test_a_fixed_linear_map_is_a_weighted_sum(operation):
    def resample(y):
        if operation == "roi_align":
            from torchvision.ops import roi_align

            boxes = [y.new_tensor([[0.3, 0.2, 3.4, 3.1]])] * len(y)
            return roi_align(y, boxes, (3, 3), sampling_ratio=2)
        return F.interpolate(y, size=(3, 3), mode="bicubic", antialias=operation.endswith("antialiased"))

    class Resampled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(36, 5)

        def forward(self, x):
            return self.fc(resample(self.conv(x).tanh()).flatten(1))

    net, x = seeded(Resampled), images((1, 3, 6, 6))
    y = net.conv(x).tanh().detach()
    value = resample(y)
    J = torch.autograd.functional.jacobian(resample, y).view(36, 64)
    assert operation == "roi_align" or (J < -1e-4).any(), "the case needs negative weights"
    z = (net.fc.weight[1] * value.flatten()).detach()
    P = z.clamp(min=0) / z.clamp(min=0).sum()
    expected = P @ shares(J, y.flatten(), value.flatten().sign())
    found = ebcli.excitation_backprop(net, x, 1, "conv").relevance
    torch.testing.assert_close(found.flatten(), expected, rtol=0, atol=1e-9)
