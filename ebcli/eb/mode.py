"""The switch: while an ExcitationMode is on, autograd carries excitation probabilities instead of gradients."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

import ebcli.eb.rules  # noqa: F401  importing the rules registers them
from ebcli.eb.building import carries_signal, overwritten
from ebcli.eb.functions import Unexplained, is_quiet, quiet
from ebcli.eb.ignored import IGNORED
from ebcli.eb.registry import RULES, Call, name_of
from ebcli.errors import UnsupportedOpError

Unsupported = Literal["error", "gradient"]

_enabled = threading.local()


class ExcitationMode(TorchFunctionMode):
    """A context in which the backward pass is Excitation Backprop (Zhang et al. 2016, Eq. 4 and 10).

    The signal is every tensor that requires grad and is no parameter. Values computed inside are bit-identical
    to those outside; only what ``torch.autograd.grad`` returns for them is another thing: given a prior over the
    outputs, the probability of each input. Parameters get nothing. The mode holds in its own thread only.

        with ExcitationMode():
            logits = net(x)                                   # x (B, C, H, W) requires grad
        relevance, = torch.autograd.grad(logits, x, prior)    # (B, C, H, W)

    Args:
        net: the network whose module names messages are to use; without it they say the modules' types.
        unsupported: what to do where the signal meets an operation that has no rule: ``"error"`` raises
            UnsupportedOpError on the way down, ``"gradient"`` uses its ordinary gradient and warns.
    """

    def __init__(self, net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> None:
        super().__init__()
        if unsupported not in ("error", "gradient"):
            raise ValueError(f"unsupported is {unsupported!r}, but it must be 'error' or 'gradient'")
        self.unsupported = unsupported
        self._names = {} if net is None else {id(module): name for name, module in net.named_modules() if name}
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
        if not (any(map(carries_signal, args)) or any(map(carries_signal, kwargs.values()))):
            with torch.no_grad():  # or what is computed from parameters would look like a signal
                return func(*args, **kwargs)
        call = Call(func, args, kwargs, self._site(func))
        with torch.enable_grad(), quiet():
            own = RULES.get(func)
            value = NotImplemented if own is None else own(call, *args, **kwargs)
            return self._without_rule(call) if value is NotImplemented else value

    def _without_rule(self, call: Call) -> Any:
        """Let an ordinary gradient be where it is right, mark the value where it is not."""
        operand = overwritten(call)
        value = call.func(*map(_constant, call.args), **{k: _constant(v) for k, v in call.kwargs.items()})
        if call.func in IGNORED or not carries_signal(value):
            return value

        def mark(item: Any) -> Any:
            if not carries_signal(item):
                return item
            if isinstance(item, Tensor):
                return Unexplained.apply(item, item is operand, call.site, self.refuse)
            return type(item)(map(mark, item)) if type(item) in (list, tuple) else type(item)([*map(mark, item)])

        self._sites[call.site] = None
        return mark(value)

    def refuse(self, sites: list[str] | None = None) -> None:
        """Raise or warn, as the mode was told to, about operations without a rule: `sites`, or all met so far."""
        named = ", ".join(self._sites if sites is None else sites)
        if self.unsupported == "error":
            raise UnsupportedOpError(
                f"no excitation rule for {named}: register one with ebcli.rule, or allow ordinary gradients there "
                "(unsupported='gradient')"
            )
        warnings.warn(f"ordinary gradients, not excitation, were used for {named}", stacklevel=2)

    def _site(self, func: Callable[..., Any]) -> str:
        module = _calling_module(sys._getframe(2))
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
    """:class:`ExcitationMode` as a context manager; the arguments are its own."""
    with ExcitationMode(net, unsupported=unsupported) as mode:
        yield mode


def enable(net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> None:
    """Turn Excitation Backprop on in this thread until :func:`disable`; the arguments are ExcitationMode's.

    Raises:
        RuntimeError: it is on already.
    """
    if getattr(_enabled, "mode", None) is not None:
        raise RuntimeError("excitation backprop is enabled already in this thread")
    _enabled.mode = ExcitationMode(net, unsupported=unsupported)
    _enabled.mode.__enter__()


def disable() -> None:
    """Turn off what :func:`enable` turned on in this thread.

    Raises:
        RuntimeError: it is not on.
    """
    mode = getattr(_enabled, "mode", None)
    if mode is None:
        raise RuntimeError("excitation backprop is not enabled in this thread")
    _enabled.mode = None
    mode.__exit__(None, None, None)
