"""A call that is interrupted, as by Ctrl-C, leaves nothing behind, and the next one is right."""

import contextlib
import inspect
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import images, seeded

import ebcli
from ebcli.eb import layers_on_path
from ebcli.eb.operations import ACTIVE_TAPE

ENGINE = str(Path(ebcli.__file__).parent / "eb")
SPREAD = 4  # points of a call
START = 80  # points of a call in which it enters what it leaves again at the end


class Interrupter:
    """Raises KeyboardInterrupt where a signal can: as a function starts, or after a call of one that is not Python's.

    It does so in the engine, and where this uses contextlib to enter and leave what it changes.

    Args:
        point: how many of these points are passed before; None to count them all.
    """

    def __init__(self, point=None):
        self.point, self.count = point, 0
        self.place = "nowhere"

    def __call__(self, frame, event, _arg):
        if not self._can_raise(frame, event):
            return
        self.count += 1
        if self.count == self.point:
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, {frame.f_code.co_name}"
            raise KeyboardInterrupt

    def _can_raise(self, frame, event):
        code, caller = frame.f_code, frame.f_back
        if event not in ("call", "c_return") or "__del__" in (code.co_name, caller.f_code.co_name):
            return False  # as objects are deleted, Python only prints what is raised
        if event == "call" and (code.co_flags & inspect.CO_GENERATOR or not is_engine(caller)):
            return (
                False  # a generator may be deleted, too; and a caller has not yet called what has not started
            )
        return is_engine(frame)


def is_engine(frame):
    while frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(ENGINE)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop, self.fc = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Dropout(),
            nn.Linear(4, 5),
        )

    def forward(self, x):
        y = F.gelu(self.bn(self.conv(x)))
        y[:, :, :1] += 1
        return self.fc(self.drop(y).mean((2, 3)))


def explain(net, x):
    results = ebcli.excitation_backprop(net, x, [[1, 2]] * 2, [None, "conv"], contrastive=True, joint=True)
    return [result.relevance for result in results]


def in_the_mode(net, x):
    x = x.clone().requires_grad_()
    with ebcli.excitation_mode(net):
        logits = net.conv(x).relu().mean((2, 3))
    return [torch.autograd.grad(logits.sum(), x)[0]]


def on_path(net, x):
    return [torch.tensor([name in layers_on_path(net, x, ["conv", "bn"]) for name in ("conv", "bn", "fc")])]


CALLS = {"excitation_backprop": explain, "excitation_mode": in_the_mode, "layers_on_path": on_path}


def state_of(net):
    """What a call changes while it runs: of this thread, and of the network."""
    return {
        "training": [module.training for module in net.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()],
        "tape": ACTIVE_TAPE.get(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
    }


def run(call, net, interrupter, results):
    """Run a call in this thread, perhaps to some point, and once more; note the state before and after each of both."""
    results["states"] = [state_of(net)]
    sys.setprofile(interrupter)
    try:
        results["first"] = call(net, images())
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    results["states"].append(state_of(net))
    results["second"] = call(net, images())
    results["states"].append(state_of(net))


def run_in_thread(call, interrupter):
    """The same in a thread of its own, so that what it leaves behind is not there for the next."""
    net = seeded(Net)
    net.train()
    net.bn.eval()  # training flags that differ
    results = {}
    thread = Thread(target=run, args=(call, net, interrupter, results))
    thread.start()
    thread.join()
    return results


def count_points(call):
    run_in_thread(call, Interrupter())  # which fills caches
    counter = Interrupter()
    run_in_thread(call, counter)
    return counter.count


def assert_nothing_is_left(call, points):
    expected = run_in_thread(call, Interrupter())["second"]
    failures = {}
    for point in points:
        interrupter = Interrupter(point)
        results = run_in_thread(call, interrupter)
        assert "first" not in results, f"point {point} was not reached"
        before, *after = results["states"]
        changes = [{key: state[key] for key in state if state[key] != before[key]} for state in after]
        second = results.get("second", [])
        if changes != [{}, {}] or not all(map(torch.equal, second, expected)):
            failures[interrupter.place] = changes
    assert not failures


@pytest.mark.parametrize("name", CALLS)
def test_interrupted_anywhere(name):
    count = count_points(CALLS[name])
    assert count > 300
    assert_nothing_is_left(CALLS[name], range(START, count, count // SPREAD))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["excitation_mode", "excitation_backprop", "layers_on_path"])
def test_interrupted_as_it_starts(name):
    count_points(CALLS[name])
    assert_nothing_is_left(CALLS[name], range(1, START))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_interrupted_at_many_points(name):
    assert_nothing_is_left(CALLS[name], range(START, count_points(CALLS[name]), 5))
