"""The switch: while an ExcitationMode is on, autograd carries excitation probabilities instead of gradients."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

import ebcli.eb.rules  # noqa: F401  importing the rules registers them
from ebcli.eb import graph
from ebcli.eb.autograd import is_quiet, quiet
from ebcli.eb.primitives import bypasses, carries_signal, mark_bypass, overwritten, tensors_in
from ebcli.eb.registry import RULES, Call, name_of
from ebcli.eb.rules.routing import IGNORED
from ebcli.errors import UnsupportedOpError

Unsupported = Literal["error", "gradient"]

_enabled = threading.local()


class ExcitationMode(TorchFunctionMode):
    """A context in which the backward pass is Excitation Backprop (Zhang et al. 2016, Eq. 4 and 10).

    The signal is every tensor that requires grad and is no parameter. Values computed inside are bit-identical
    to those outside; only what ``torch.autograd.grad`` returns for them is another thing: given a prior over the
    outputs, the probability of each input. Parameters get nothing. The mode holds in its own thread only, and uses
    the network as it is: put it in evaluation mode first.

    Args:
        net: the network whose module names messages are to use; without it they say the modules' types.
        unsupported: what to do where the signal meets an operation that has no rule: ``"error"`` raises
            UnsupportedOpError on the way down, ``"gradient"`` uses its ordinary gradient and warns.

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Linear(2, 2, bias=False)
        >>> net.weight.data = torch.tensor([[1.0, 3.0], [-2.0, 5.0]])
        >>> x = torch.ones(1, 2, requires_grad=True)
        >>> with ebcli.ExcitationMode():
        ...     logits = net(x)
        >>> torch.autograd.grad(logits, x, torch.tensor([[1.0, 0.0]]))[0]  # all probability on the first output
        tensor([[0.2500, 0.7500]])
    """

    def __init__(self, net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> None:
        super().__init__()
        if unsupported not in ("error", "gradient"):
            raise ValueError(f"unsupported is {unsupported!r}, but it must be 'error' or 'gradient'")
        self.unsupported = unsupported
        self._names = {} if net is None else {id(module): name for name, module in net.named_modules() if name}
        self.settled = False  # whether operations without a rule have been reported
        self._sites: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_quiet():
            return func(*args, **kwargs)
        with quiet():
            return self._answer(func, args, kwargs, sys._getframe(1))

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        operands = (*args, *kwargs.values())
        if not any(map(carries_signal, operands)):
            if not any(True for _ in tensors_in(operands)):  # a factory, or the switch of no_grad itself
                return func(*args, **kwargs)
            with torch.no_grad():  # or what is computed from parameters would look like a signal
                value = func(*args, **kwargs)
            return mark_bypass(value) if any(map(bypasses, operands)) else value
        if not torch.is_grad_enabled():  # where autograd records nothing, nothing comes down
            return mark_bypass(func(*args, **kwargs))
        call = Call(func, args, kwargs, self._site(func, frame))
        own = RULES.get(func)
        value = NotImplemented if own is None else own(call, *args, **kwargs)
        if value is None:
            raise TypeError(f"the rule for {name_of(func)} returned None: return the value, or NotImplemented")
        return mark_bypass(self._without_rule(call) if value is NotImplemented else value)

    def _without_rule(self, call: Call) -> Any:
        """Let an ordinary gradient be where it is right, mark the value where it is not."""
        overwritten(call)
        before = {a.grad_fn for a in tensors_in((call.args, call.kwargs)) if a.grad_fn is not None}
        value = call.func(*map(_constant, call.args), **{k: _constant(v) for k, v in call.kwargs.items()})
        if call.func not in IGNORED:
            # a value that an earlier operation made is an operand handed back
            new = [v for v in tensors_in(value) if carries_signal(v) and v.grad_fn not in before]
            graph.mark_unexplained(new, call.site, self._refuse_on_the_way_down)
            self._sites.update(dict.fromkeys([call.site] if new else []))
        return value

    def _refuse_on_the_way_down(self) -> None:
        if not self.settled:
            self.refuse(list(self._sites))

    def refuse(self, sites: Sequence[str]) -> None:
        """Raise or warn, as the mode was told to, about operations without a rule."""
        named = ", ".join(dict.fromkeys(sites))
        if self.unsupported == "error":
            raise UnsupportedOpError(
                f"no excitation rule for {named}: register one with ebcli.rule, or allow ordinary gradients there "
                "(unsupported='gradient', --allow-unsupported)"
            )
        warnings.warn(f"ordinary gradients, not excitation, were used for {named}", stacklevel=2)

    def _site(self, func: Callable[..., Any], frame: FrameType) -> str:
        module = _calling_module(frame)
        if module is None:
            return name_of(func)
        return f"{name_of(func)} in {self._names.get(id(module)) or type(module).__name__}"


def _calling_module(frame: FrameType | None) -> nn.Module | None:
    """The innermost module whose method is on the stack; asking the stack leaves modules and hooks untouched."""
    while frame is not None:
        caller = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(caller, nn.Module):
            return caller
        frame = frame.f_back
    return None


def _constant(value: Any) -> Any:
    """`value` with every parameter in it detached, so that only the signal is tracked."""
    if isinstance(value, Parameter):
        return value.detach()
    if type(value) in (list, tuple) and any(isinstance(item, Parameter) for item in value):
        return type(value)(map(_constant, value))
    return value


@contextmanager
def excitation_mode(net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> Iterator[ExcitationMode]:
    """`ExcitationMode` as a context manager; the arguments are its own.

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).eval()
        >>> x = torch.rand(1, 3, 4, 4, requires_grad=True)
        >>> with ebcli.excitation_mode(net):
        ...     logits = net(x)
        >>> (relevance,) = torch.autograd.grad(logits, x, torch.eye(5)[[2]])  # of class 2
        >>> relevance.shape, bool((relevance >= 0).all())
        (torch.Size([1, 3, 4, 4]), True)
    """
    with ExcitationMode(net, unsupported=unsupported) as mode:
        yield mode


def enable(net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> None:
    """Turn Excitation Backprop on in this thread until `disable`; the arguments are ExcitationMode's.

    Raises:
        RuntimeError: it is on already.

    Examples:
        >>> import ebcli, torch
        >>> x = torch.tensor([2.0, -3.0], requires_grad=True)
        >>> ebcli.enable()
        >>> y = x.tanh()
        >>> ebcli.disable()
        >>> torch.autograd.grad(y, x, torch.ones(2))[0]  # one input, one output: it gets all
        tensor([1., 1.])
    """
    if getattr(_enabled, "mode", None) is not None:
        raise RuntimeError("excitation backprop is enabled already in this thread")
    _enabled.mode = ExcitationMode(net, unsupported=unsupported)
    _enabled.mode.__enter__()


def disable() -> None:
    """Turn off what `enable` turned on in this thread.

    Raises:
        RuntimeError: it is not on.

    Examples:
        >>> import ebcli
        >>> ebcli.enable()
        >>> ebcli.disable()
        >>> ebcli.disable()
        Traceback (most recent call last):
        RuntimeError: excitation backprop is not enabled in this thread
    """
    mode = getattr(_enabled, "mode", None)
    if mode is None:
        raise RuntimeError("excitation backprop is not enabled in this thread")
    _enabled.mode = None
    mode.__exit__(None, None, None)
