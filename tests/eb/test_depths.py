"""Products whose factors are told apart by what they came through; norms, which are made to be factors."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Block, assert_twins, images, seeded, shares

import ebcli
from ebcli.errors import EbcliError, UnsupportedOpError

TOKENS = (2, 4, 6)


class Tokens(nn.Module):
    """Queries, keys and values of tokens, a function of them, and a head. With `given`, the function's weights."""

    def __init__(self, attended):
        super().__init__()
        self.q, self.k, self.v, self.fc = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)
        self.conv = nn.Conv1d(5, 5, 3, padding=1, groups=5)
        self.attended = attended

    def forward(self, x):
        return self.fc(self.attended(self, self.q(x), self.k(x), self.v(x)).tanh().mean(1))


def fixed(net, attended):
    """The same network with another function."""
    twin = Tokens(attended)
    twin.load_state_dict(net.state_dict())
    return twin.double().eval()


CONTEXTS = {
    "directly": lambda net, q, k, v: q @ (k.softmax(1).mT @ v),
    "context_first": lambda net, q, k, v: ((k.softmax(1).mT @ v).mT @ q.mT).mT,
    "behind_a_layer": lambda net, q, k, v: q @ F.linear(k.softmax(1).mT @ v, net.v.weight[:, :5]),
}


@pytest.mark.parametrize("layer", [None, "v"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_queries_are_the_weights_of_a_context(name, layer):
    """CoaT: q (softmax(k)^T v). The context is the values, and the queries are weights of both signs."""
    net, x = seeded(lambda: Tokens(CONTEXTS[name])), images(TOKENS)
    q, k = net.q(x).detach(), net.k(x).detach()
    assert (q < 0).any() and (q > 0).any()
    assert_twins(net, fixed(net, lambda twin, _q, _k, v: CONTEXTS[name](twin, q, k, v)), x, layer)


def test_weights_from_a_network_of_their_own():
    """EfficientViM: x times (softmax(a) b)^T; what passed an activation more holds the weights."""

    def attended(net, q, k, v):
        return (k.softmax(-1) * q).mT @ v

    net, x = seeded(lambda: Tokens(attended)), images(TOKENS)
    q, k = net.q(x).detach(), net.k(x).detach()
    assert_twins(net, fixed(net, lambda twin, _q, _k, v: attended(twin, q, k, v)), x)


def test_queries_times_keys_are_refused():
    net = seeded(lambda: Tokens(lambda net, q, k, v: (q @ k.mT) @ v))
    with pytest.raises(UnsupportedOpError, match=r"matmul|\bb?mm\b"):
        ebcli.excitation_backprop(net, images(TOKENS), 1)


@pytest.mark.parametrize("query_first", [True, False])
def test_a_query_scales_the_layer_that_its_factor_passed(query_first):
    """CoaT's position encoding, q * conv(v): the convolution's units are neurons, and q scales their responses."""

    def encoded(net, q, k, v):
        convolved = net.conv(v.mT).mT
        return q * convolved if query_first else convolved * q

    net, x = seeded(lambda: Tokens(encoded)), images(TOKENS)
    q = net.q(x).detach()
    assert_twins(net, fixed(net, lambda twin, _q, k, v: encoded(twin, q, k, v)), x)


@pytest.mark.parametrize(
    "guard", [lambda a: a.clamp(-9, 9), lambda a: a.clamp(max=torch.tensor(9.0).double())]
)
def test_a_clamp_of_both_signs_is_no_activation(guard):
    """Gemma's guarded layers: gelu(clamp(gate)) * clamp(signal)."""
    net, x = seeded(lambda: Tokens(lambda net, q, k, v: F.gelu(guard(q)) * guard(v))), images(TOKENS)
    gate = F.gelu(net.q(x)).detach()
    assert_twins(net, fixed(net, lambda twin, q, k, v: gate * v), x)


NORMS = {
    "norm": lambda y, dims: y.norm(p=2, dim=dims, keepdim=True),
    "torch": lambda y, dims: torch.norm(y, dim=dims, keepdim=True),
    "vector_norm": lambda y, dims: torch.linalg.vector_norm(y, dim=dims, keepdim=True),
    "first_order": lambda y, dims: y.norm(1, dims, True),
}


@pytest.mark.parametrize("activation", [nn.Identity, nn.GELU, nn.ReLU])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_a_factor_even_of_a_single_element(name, activation):
    """Global response normalization of a map of 1 x 1, where the norm is as large as the signal."""
    act = activation()

    def scaled(net, y):
        y = act(F.avg_pool2d(y, 4))
        g = NORMS[name](y, (2, 3))
        assert g.shape == y.shape
        return y * (g / (g.mean(1, keepdim=True) + 1e-6))

    torch.manual_seed(0)
    net = seeded(lambda: Block(scaled, fc=None))
    net.fc = seeded(lambda: nn.Linear(4, 5))
    x = images()
    y = act(F.avg_pool2d(net.conv(x), 4)).detach()
    factor = NORMS[name](y, (2, 3))
    factor = factor / (factor.mean(1, keepdim=True) + 1e-6)
    twin = seeded(lambda: Block(lambda _, y: act(F.avg_pool2d(y, 4)) * factor))
    twin.conv, twin.fc = net.conv, net.fc
    assert_twins(net, twin, x)


@pytest.mark.parametrize("activation", [F.gelu, F.relu])
def test_a_norm_is_a_factor_of_what_came_through_an_activation(activation):
    """Repeated to the signal's size, nothing but being a norm tells it."""

    def factor(y):
        return activation(y).norm(dim=(2, 3), keepdim=True).repeat(1, 1, 4, 4)

    net = seeded(lambda: Block(lambda _, y: activation(y) * factor(y)))
    given = factor(net.conv(images())).detach()
    assert_twins(net, seeded(lambda: Block(lambda _, y: activation(y) * given)))


@pytest.mark.parametrize(
    ("order", "spell"), [(2, lambda y: y.norm(dim=-1)), (3, lambda y: torch.norm(y, 3, -1))]
)
def test_a_norm_on_the_path_shares_by_the_powers(order, spell):
    """The length of a capsule is a sum of |a|^p under a root: every a gets its part of that sum."""

    class Capsules(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 8)

        def forward(self, x):
            return spell(self.linear(x).unflatten(1, (4, 2)))

    net, x = seeded(Capsules), images((2, 6))
    y = net.linear(x).detach()
    P = torch.zeros_like(y)
    for b in range(2):
        powers = y[b, 2:4].abs() ** order  # capsule 1
        P[b, 2:4] = powers / powers.sum()
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1, "linear").relevance, P)
    # the last layer with weights is the classifier, whose units all have s = +1
    expected = torch.stack(
        [p @ shares(net.linear.weight, a, torch.ones(8)) for p, a in zip(P, x, strict=True)]
    )
    torch.testing.assert_close(ebcli.excitation_backprop(net, x, 1).relevance, expected.detach())


def test_a_norm_that_counts_is_refused():
    net = seeded(lambda: Block(lambda net, y: y.flatten(1).unflatten(1, (64, 1)).norm(0, -1)))
    with pytest.raises(EbcliError):
        ebcli.excitation_backprop(net, images(), 1)
