"""Each thread has a mode of its own, or none."""

import threading

import torch
from nets import bare, relevance_of

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
    expected, plain = ebcli.excitation_backprop(net, x, prior, "1").relevance, torch.autograd.grad(net(x), x, prior)[0]
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
