"""A map computed in the middle of another network's forward pass is the same, and so is the result around it."""

from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch
from nets import bare, relevance_of
from torch import nn
from torch.nn import functional as F
from twins import images, seeded

import ebcli


class Attended(nn.Module):
    """Patches, a class token, attention with a norm, and a head."""

    def __init__(self):
        super().__init__()
        self.stem, self.token = nn.Conv2d(3, 4, 3, 3), nn.Parameter(torch.randn(1, 1, 4))
        self.block = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        y = self.stem(x).flatten(2).mT
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1)
        y[:, 1:] *= 2  # a write that the tape follows
        return self.head(F.gelu(self.block(y))[:, 0])


class Product(nn.Module):
    def forward(self, x):
        return torch.cumprod(x, 1)


INNER = {
    "marginal": {},
    "contrastive": {"contrastive": True},
    "jointly": {"joint": True, "contrastive": True},
    "two targets": {"targets": [[0, 1], [2, 3]]},
    "lost mass": {"track_lost_mass": True},
}


def inner_result(name):
    """The relevance of another network at its input and a layer."""
    options = {"targets": 1, **INNER[name]}
    results = ebcli.excitation_backprop(seeded(Attended, 1), images(), layer=[None, "stem"], **options)
    return [result.relevance for result in results]


class Asking(nn.Module):
    """Calls a function and keeps what it returns; its own value is that of its input."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.answers = ask, []

    def forward(self, x):
        self.answers.append(self.ask())
        return x


def halves():
    """The two parts of a network, an input that requires grad, and a prior."""
    net, x, prior = bare()
    return net[:2], net[2:], x, prior


def in_the_mode(ask):
    first, second, x, prior = halves()
    with ebcli.excitation_mode():
        middle = first(x)
        answer = ask()
        logits = second(middle)
        inside = torch.autograd.grad(logits, x, prior, retain_graph=True)[0]
    return answer, [inside, torch.autograd.grad(logits, x, prior)[0]]


def while_enabled(ask):
    first, second, x, prior = halves()
    ebcli.enable()
    try:
        middle = first(x)
        answer = ask()
        logits = second(middle)
        return answer, [torch.autograd.grad(logits, x, prior)[0]]
    finally:
        ebcli.disable()


@contextmanager
def asked_in_a_hook(net, ask):
    """Ask in the forward hook of a module; yields the answers."""
    answers = []
    handle = net[1].register_forward_hook(lambda *_: answers.append(ask()))
    yield answers
    handle.remove()


def in_a_hook_of_a_call(ask):
    net, x, prior = bare()
    with asked_in_a_hook(net, ask) as answers:
        results = ebcli.excitation_backprop(net, x, prior, [None, "1", "2"], contrastive=True)
    return answers[0], [result.relevance for result in results]


def in_a_hook_in_the_mode(ask):
    net, x, prior = bare()
    with asked_in_a_hook(net, ask) as answers:
        relevance = relevance_of(net, x, prior)
    return answers[0], [relevance]


def in_a_forward_pass(ask):
    net, x, prior = bare()
    asking = nn.Sequential(net[:2], Asking(ask), net[2:])
    results = ebcli.excitation_backprop(asking, x, prior, [None, "0.1", "2.2"])
    return asking[1].answers[0], [result.relevance for result in results]


def in_the_targets(ask):
    net, x, prior = bare()
    answers = []

    def targets(_logits):
        answers.append(ask())
        return prior

    results = ebcli.excitation_backprop(net, x, targets, [None, "1"], contrastive=True)
    return answers[0], [result.relevance for result in results]


PLACES = [
    in_the_mode, while_enabled, in_a_hook_of_a_call, in_a_hook_in_the_mode, in_a_forward_pass, in_the_targets,
]  # fmt: skip


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 1e-6
        assert torch.equal(one, other)


def the_mode():
    return [relevance_of(*bare())]


def two_calls():
    inner, around = in_a_forward_pass(partial(inner_result, "contrastive"))
    return [*inner, *around]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ask", [*(partial(inner_result, inner) for inner in INNER), the_mode, two_calls])
@pytest.mark.parametrize("place", PLACES)
def test_a_call_inside(place, ask):
    answer, around = place(ask)
    assert_equal(answer, ask())
    assert_equal(around, place(lambda: None)[1])


@pytest.mark.parametrize("place", PLACES)
def test_a_call_inside_that_fails(place):
    def ask():
        with suppress(ebcli.UnsupportedOpError):
            ebcli.excitation_backprop(nn.Sequential(nn.Linear(3, 3), Product()), torch.randn(1, 3), 0)

    assert_equal(place(ask)[1], place(lambda: None)[1])


@pytest.mark.parametrize("joint", [True, False])
def test_the_same_network_inside_itself(joint):
    """Its own map for another image, in a hook of the module that both look at."""
    net, x, other = seeded(Attended), images()[:1], images()[1:]

    def explain(image):
        return ebcli.excitation_backprop(net, image, 1, "stem", contrastive=True, joint=joint).relevance

    expected = [explain(image) for image in (x, other)]
    answers = []

    def ask(*_):
        if not answers:
            answers.append(None)  # not again, in the call that follows
            answers[0] = explain(other)

    handle = net.stem.register_forward_hook(ask)
    around = explain(x)
    handle.remove()
    assert_equal([around, answers[0]], expected)


@pytest.mark.parametrize("joint", [True, False])
def test_a_map_that_the_network_looks_at(joint):
    """A network that multiplies its features by a map of them: for the map around it, that is a constant."""

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.scores, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 4), nn.Linear(4, 5)
            self.constant = None

        def forward(self, x):
            y = F.gelu(self.stem(x))
            looks = self.constant
            if looks is None:
                scores = nn.Sequential(self.scores, nn.Flatten())
                looks = ebcli.excitation_backprop(scores, y, 2).maps
            return self.head((y * (1 + looks[:, None])).mean((2, 3)))

    net, x = seeded(Looking), images()
    found = ebcli.excitation_backprop(net, x, 1, joint=joint)
    features = F.gelu(net.stem(x)).detach()
    net.constant = ebcli.excitation_backprop(nn.Sequential(net.scores, nn.Flatten()), features, 2).maps
    expected = ebcli.excitation_backprop(net, x, 1, joint=joint)
    assert_equal([found.logits, found.relevance], [expected.logits, expected.relevance])
