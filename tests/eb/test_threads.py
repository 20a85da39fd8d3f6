"""Each thread has a mode of its own, or none."""

import itertools
import threading
import warnings

import pytest
import torch
from nets import bare, relevance_of
from torch import nn

import ebcli
from ebcli.eb import pass_through, rule, unregister


def in_thread(work, found, key):
    def run():
        try:
            found[key] = work()
        except BaseException as error:
            found[key] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_thread_beside():
    """One thread computes gradients, plain, while another is in the middle of a forward pass inside the mode."""
    net, x, prior = bare()
    expected, plain = relevance_of(net, x, prior), torch.autograd.grad(net(x), x, prior)[0]
    meet, found = threading.Barrier(2, timeout=120), {}

    def inside():
        with ebcli.excitation_mode():
            half = net[:2](x)
            meet.wait()
            meet.wait()
            return torch.autograd.grad(net[2:](half), x, prior)[0]

    def outside():
        meet.wait()
        gradient = torch.autograd.grad(net(x), x, prior)[0]
        assert torch.autograd.gradcheck(torch.tanh, (x.detach()[:1, :1].requires_grad_(),))
        meet.wait()
        return gradient

    for thread in [in_thread(inside, found, "inside"), in_thread(outside, found, "outside")]:
        thread.join()
    assert torch.equal(found["inside"], expected)
    assert torch.equal(found["outside"], plain)


def test_a_thread_on_the_same_network():
    """A plain forward pass of another thread through the network whose layer is being looked at."""
    net, x, prior = bare()
    expected, plain = (
        ebcli.excitation_backprop(net, x, prior, "1").relevance,
        torch.autograd.grad(net(x), x, prior)[0],
    )
    meet, found, looking = threading.Barrier(2, timeout=120), {}, threading.local()

    def pause(_module, _args):
        if getattr(looking, "here", False):
            meet.wait()
            meet.wait()

    net[3].register_forward_pre_hook(pause)  # after the layer, so that it is captured already

    def inside():
        looking.here = True
        return ebcli.excitation_backprop(net, x, prior, "1").relevance

    def outside():
        meet.wait()
        try:
            return torch.autograd.grad(net(x), x, prior)[0]
        finally:
            meet.wait()

    for thread in [in_thread(inside, found, "inside"), in_thread(outside, found, "outside")]:
        thread.join()
    for side, value in (("inside", expected), ("outside", plain)):
        assert not isinstance(found[side], BaseException), f"{side}: {found[side]!r}"
        assert torch.equal(found[side], value)


@torch.overrides.wrap_torch_function(lambda x, wait: (x,))
def slow_identity(x, wait):
    wait()
    return x.clone()


def test_a_thread_in_the_middle_of_a_rule():
    """What keeps the mode out of its own rules in one thread must not keep it out of another's network."""
    net, x, prior = bare()
    expected = relevance_of(net, x, prior)
    meet, found = threading.Barrier(2, timeout=120), {}

    def pause():
        meet.wait()
        meet.wait()

    def slow():
        with ebcli.excitation_mode():
            logits = net(slow_identity(x, pause))
        return torch.autograd.grad(logits, x, prior)[0]

    def beside():
        meet.wait()
        try:
            return relevance_of(net, x, prior)
        finally:
            meet.wait()

    rule(slow_identity)(lambda call, x, wait: pass_through(call, x, keeps_zero=True))
    try:
        for thread in [in_thread(slow, found, "slow"), in_thread(beside, found, "beside")]:
            thread.join()
    finally:
        unregister(slow_identity)
    for value in found.values():
        assert not isinstance(value, BaseException), repr(value)
        assert torch.equal(value, expected)


class Meeting(nn.Module):
    """Calls a function half-way through the forward pass."""

    def __init__(self, pause):
        super().__init__()
        self.first, self.second, self.pause = nn.Linear(3, 4), nn.Linear(4, 5), pause

    def forward(self, x):
        y = torch.cumprod(self.first(x), 1)  # which has no rule, so there is a warning
        self.pause()
        return self.second(y)


def overlapping(order, look):
    """Calls of several threads that all are in the middle at once, and end one after another.

    Args:
        order: which thread ends first, second and so on.
        look: called as all are in the middle, and after each end but the last one.

    Returns:
        What `look` returned.
    """
    meet, found = threading.Barrier(len(order) + 1, timeout=120), {}
    may_end = [threading.Event() for _ in order]

    def explain(i):
        def pause():
            meet.wait()
            assert may_end[i].wait(timeout=120)

        options = {"unsupported": "gradient", "contrastive": True}
        return ebcli.excitation_backprop(
            Meeting(pause), torch.ones(1, 3), [[0, 1]], [None, "first"], **options
        )

    threads = [in_thread(lambda i=i: explain(i), found, i) for i in range(len(order))]
    meet.wait()
    seen = []
    for i in order:
        seen.append(look())
        may_end[i].set()
        threads[i].join()
        assert not isinstance(found[i], BaseException), repr(found[i])
    return seen


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("stance", ["default", "eager_on_recompile"])
def test_what_is_compiled_runs_as_it_is_written_until_the_last_thread_is_done(stance):
    with torch.compiler.set_stance(stance), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for order in ORDERS:
            assert overlapping(order, compiler_stance) == ["force_eager"] * 3
            assert compiler_stance() == stance


def compiler_stance():
    return torch._dynamo.eval_frame._stance.stance


def test_filters_of_warnings_stay_as_they_are():
    """Python has one list of them for all threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [*warnings.filters]
        show = warnings.showwarning
        for order in ORDERS:
            assert overlapping(order, lambda: [*warnings.filters]) == [before] * 3
            assert warnings.filters == before
            assert warnings.showwarning is show
