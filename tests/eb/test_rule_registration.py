"""Rules of users' own: what can be registered, what not and why, and that it can be taken back."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import Function

import ebcli
from ebcli.eb import LinearMap, pass_through, rule, unregister, weighted_sum


@torch.overrides.wrap_torch_function(lambda x, weight: (x, weight))
def swapped_linear(x, weight):
    """x (B, in), weight (in, out)."""
    return x @ weight


@torch.overrides.wrap_torch_function(lambda x: (x,))
def cube(x):
    return x**3


def plain(x):
    return 2 * x


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(cube(swapped_linear(x, self.first.weight.T)))


@pytest.fixture(autouse=True)
def nothing_is_left_registered():
    yield
    left = []
    for function in (swapped_linear, cube, plain, Own, Own.apply, nn.ReLU):
        with suppress(KeyError):
            unregister(function)
            left.append(function)
    assert not left


@pytest.mark.parametrize("joint", [False, True])
def test_a_layer_of_a_user_takes_no_pass_for_each_image(joint):
    net, calls = Net().double(), []

    def apply(a, w):
        calls.append(a)
        return a @ w

    @ebcli.rule(swapped_linear)
    def swapped(call, x, weight):
        return weighted_sum(call, x, LinearMap(apply, weight))

    def count(batch):
        calls.clear()
        ebcli.excitation_backprop(net, torch.randn(batch, 4, dtype=torch.float64), 1, joint=joint)
        return len(calls)

    assert count(5) == count(2) > 0
    unregister(swapped_linear)


def test_a_rule_works_and_can_be_taken_back():
    torch.manual_seed(0)
    net, x = Net().double(), torch.randn(2, 4, dtype=torch.float64)

    @ebcli.rule(swapped_linear)
    def swapped(call, x, weight):
        return weighted_sum(call, x, LinearMap(lambda a, w: a @ w, weight))

    @rule(cube)
    def odd_power(call, x):
        return pass_through(call, x, keeps_zero=True)

    found = ebcli.excitation_backprop(net, x, 1, contrastive=True)
    assert torch.equal(found.logits, net(x).detach())
    with torch.no_grad():
        h = net.first(x) ** 3
        z = h * net.second.weight[1]
        P = F.normalize(z.clamp(min=0), p=1, dim=1) - F.normalize((-z).clamp(min=0), p=1, dim=1)
        signed = h.sign()[:, :, None] * x[:, None, :] * net.first.weight  # (B, neuron, input)
        expected = (P[:, :, None] * F.normalize(signed.clamp(min=0), p=1, dim=2)).sum(1)
    torch.testing.assert_close(found.relevance, expected, rtol=1e-10, atol=1e-12)

    unregister(swapped_linear, cube)
    with pytest.raises(KeyError):
        unregister(cube)
    # by the rules of the operations that the functions are made of
    again = ebcli.excitation_backprop(net, x, 1, contrastive=True)
    torch.testing.assert_close(again.relevance, expected, rtol=1e-10, atol=1e-12)


def test_a_rule_taken_back_is_used_no_more():
    net, x = nn.Sequential(nn.Linear(4, 6), Function(cube), nn.Linear(6, 3)), torch.randn(2, 4)
    expected = ebcli.excitation_backprop(net, x, 1).relevance

    @rule(cube)
    def nothing(call, x):
        return call.compute().detach() + 0 * x

    assert not ebcli.excitation_backprop(net, x, 1).relevance.any()
    unregister(cube)
    assert torch.equal(ebcli.excitation_backprop(net, x, 1).relevance, expected)


def test_duplicates_are_refused():
    for function in (F.linear, torch.add, torch.Tensor.add_, F.relu):
        with pytest.raises(ValueError, match=f"{function.__name__} already has the rule"):
            rule(function)(lambda call, *args: None)


def test_own_duplicates_are_refused():
    rule(cube)(pass_through)
    with pytest.raises(ValueError, match="cube already has the rule pass_through"):
        rule(cube)
    unregister(cube)


def test_autograd_functions_are_refused():
    with pytest.raises(TypeError, match=r"Own is an autograd.Function.*wrap_torch_function"):
        rule(Own)
    with pytest.raises(TypeError, match=r"do not see.*wrap_torch_function"):
        rule(Own.apply)


def test_functions_that_no_mode_sees_are_refused():
    for function in (plain, lambda x: x, nn.ReLU, nn.ReLU()):
        with pytest.raises(TypeError, match=r"do not see.*wrap_torch_function"):
            rule(function)


def test_all_or_none():
    with pytest.raises(TypeError, match="plain"):
        rule(cube, plain)(pass_through)
    with pytest.raises(KeyError):
        unregister(cube)


def test_unregistering_nothing():
    with pytest.raises(KeyError):
        unregister(plain)
