"""Products: which factor is the signal, and which the gate, the weight or the attention."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import assert_twins, images, seeded, shares

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
    "dropout": lambda net, s: F.dropout(s.softmax(-1), training=False),
    "masked_fill_": lambda net, s: s.softmax(-1).masked_fill_(~MASK, 0.0),
    "where": lambda net, s: torch.where(MASK, s.softmax(-1), 0.0),
    "times_a_mask": lambda net, s: s.softmax(-1) * MASK,
    "tril": lambda net, s: s.softmax(-1).tril(),
    "masked_and_divided": lambda net, s: divided(s.softmax(-1) * MASK),
    "normalized": lambda net, s: F.normalize(s.softmax(-1), p=1, dim=-1),
    "transposed_twice": lambda net, s: s.mT.softmax(-2).mT,
    "concatenated": lambda net, s: torch.cat([s.softmax(-1)[:, :2], s.softmax(-1)[:, 2:]], 1),
    "sigmoid": lambda net, s: s.sigmoid(),
    "in_place": lambda net, s: s.softmax(-1).mul_(0.5),
    "scaled_by_both_signs": lambda net, s: s.softmax(-1) * net.mix.repeat(2, 2),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_hands_probability_to_its_values_alone(name, layer):
    net, x = seeded(lambda: Attention(ATTENTION[name])), images(TOKENS)
    assert_twins(net, Fixed(net, x), x, layer)


@pytest.mark.parametrize("layer", ["q", "k"])
def test_queries_and_keys_get_nothing(layer):
    net = seeded(lambda: Attention(ATTENTION["masked_fill_"]))
    with pytest.raises(ebcli.LayerError, match=f"does not depend on layer '{layer}'"):
        ebcli.excitation_backprop(net, images(TOKENS), 1, layer)


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
    "relu": F.relu,
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
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
TURNED = {"tensor": lambda a: a * SIGNED, "number": lambda a: a * -1.5}


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
    widths = {
        "expand": lambda b: b.expand(-1, 5),
        "new_axis": lambda b: b[:, 0, None],
        "size_one": lambda b: b,
    }
    net, x = seeded(lambda: Gated(lambda a, b: a * widths[name](b), width=1)), images((3, 6))
    z = net.fc.weight[1] * net.signal(x) * net.gate(x)
    P = z.clamp(min=0) / z.clamp(min=0).sum(1, keepdim=True)
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1, "signal").relevance, P.detach())


UNDECIDED = {
    "equals": (lambda a, b: a * b, (4, 4), (4, 4)),
    "outer": (lambda a, b: a * b, (4, 1), (1, 4)),
    "a_sum_with_one_of_its_terms": (lambda a, b: (a + b) * a, (4, 4), (4, 4)),
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


@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_gated_delta_net_is_a_product_of_fixed_weights_and_values(chunks, layer):
    """The state S of Yang et al. (arXiv:2412.06464), S = g S (1 - b k k^T) + b v k^T, read token by token, is linear
    in the values; in chunks, networks solve a triangular system.
    """

    class DeltaNet(Attention):
        def __init__(self, weights):
            super().__init__(weights)
            self.b, self.g = nn.Linear(6, 1), nn.Linear(6, 1)

        def weights_of(self, x):
            q, k = F.normalize(self.q(x), dim=-1), F.normalize(self.k(x), dim=-1)
            return q, k, self.b(x).sigmoid(), F.logsigmoid(self.g(x))

        def forward(self, x):
            state = x.new_zeros(len(x), 5, 5)
            outputs = []
            parts = (*self.weights_of(x), self.v(x))
            for q, k, b, log_decay, v in zip(*(part.chunk(chunks, 1) for part in parts), strict=True):
                g = log_decay.cumsum(1)
                decay = (g - g.mT).masked_fill(~MASK[: g.shape[1], : g.shape[1]], -torch.inf).exp()
                options = {"upper": False, "unitriangular": True}
                system = (b * k @ k.mT) * decay
                new = torch.linalg.solve_triangular(system, b * v, **options)
                old = torch.linalg.solve_triangular(system, b * k * g.exp(), **options)
                update = new - old @ state
                outputs.append((q * g.exp()) @ state + ((q @ k.mT) * decay) @ update)
                state = state * g[:, -1:].exp() + (k * (g[:, -1:] - g).exp()).mT @ update
            return self.fc(torch.cat(outputs, 1).tanh().mean(1))

    class TokenByToken(DeltaNet):
        """With the weights of a given input."""

        def forward(self, x):
            state = x.new_zeros(len(x), 5, 5)
            outputs = []
            v = self.v(x)
            q, k, b, g = self.given
            for t in range(x.shape[1]):
                state = state * g[:, t, :, None].exp()
                error = v[:, t] - (k[:, t, None] @ state)[:, 0]
                state = state + (b[:, t] * k[:, t])[..., None] * error[:, None]
                outputs.append(q[:, t, None] @ state)
            return self.fc(torch.cat(outputs, 1).tanh().mean(1))

    net, x = seeded(lambda: DeltaNet(None)), images(TOKENS)
    twin = TokenByToken(None)
    twin.load_state_dict(net.state_dict())
    twin.double().eval()
    twin.given = [weights.detach() for weights in net.weights_of(x)]
    torch.testing.assert_close(net(x), twin(x))
    prior = torch.eye(3).double()[None].expand(len(x), -1, -1)
    for a, b in zip(
        *(ebcli.excitation_backprop(n, x, prior, layer, joint=True).relevance for n in (net, twin)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("layer", [None, "v"])
def test_queries_and_keys_that_are_turned_as_complex_numbers_get_nothing(layer):
    turn = torch.polar(torch.ones(4, 2), torch.arange(8.0).reshape(4, 2)).to(torch.complex128)

    class Turned(Attention):
        def attention(self, x):
            q, k = (
                torch.view_as_complex(a[..., :4].unflatten(-1, (2, 2)).contiguous()) * turn
                for a in (self.q(x), self.k(x))
            )
            q, k = (torch.view_as_real(a).flatten(2) for a in (q, k))
            return (q @ k.mT).softmax(-1)

    net, x = seeded(lambda: Turned(None)), images(TOKENS)
    assert_twins(net, Fixed(net, x), x, layer)
