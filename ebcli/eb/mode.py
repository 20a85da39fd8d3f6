"""The switch: while an ExcitationMode is on, autograd carries excitation probabilities instead of gradients."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

import ebcli.eb.rules  # noqa: F401  importing the rules registers them
from ebcli.eb import graph
from ebcli.eb.facts import (
    Depth,
    bypasses,
    carries_signal,
    count_read,
    facts_of,
    has_share,
    is_known,
    mark_bypass,
    mark_plain,
    note,
    note_depth,
    tensors_in,
)
from ebcli.eb.folding import overwritten
from ebcli.eb.gates import gate_of
from ebcli.eb.nodes import is_quiet, loud, quiet
from ebcli.eb.primitives import copied
from ebcli.eb.recording import Recording
from ebcli.eb.registry import MAKES_GATES, Call, name_of, rule_for, spelled
from ebcli.eb.rules.attention import PRODUCTS
from ebcli.eb.rules.linear import LAYERS
from ebcli.eb.rules.routing import is_first_only, is_routing, is_shape_only, mark_in_place, routed
from ebcli.eb.saved_values import forget
from ebcli.eb.stepwise import StepwiseWalk
from ebcli.errors import ArgumentError, ConfigurationError, ModeError, UnsupportedOpError

Unsupported = Literal["error", "gradient"]

_enabled = threading.local()

# What modules ask tensors most often, answered without more ado
_READS_NO_VALUES = frozenset(
    [Tensor.dim, Tensor.size, Tensor.numel, Tensor.is_floating_point]
    + [getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda", "requires_grad")]
)


class ExcitationMode(TorchFunctionMode):
    """A context in which the backward pass is Excitation Backprop (Zhang et al. 2016, Eq. 4 and 10).

    The signal is every tensor that requires grad and is not a parameter. Values are bit-identical to those computed
    outside the mode, but ``torch.autograd.grad``, given a prior over the outputs, returns the probability of each
    input. Parameters get nothing. The mode applies to the current thread only and does not put the network in
    evaluation mode.

    Args:
        net: the network, for the module names in messages; without it, messages name the modules' types.
        unsupported: ``"error"`` raises UnsupportedOpError in the backward pass if the signal passed an operation
            without a rule; ``"gradient"`` uses its ordinary gradient and warns.

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
            raise ConfigurationError(f"unsupported must be 'error' or 'gradient', not {unsupported!r}")
        self.unsupported, self.recording = unsupported, Recording(StepwiseWalk(), self._answering)
        self._names = {} if net is None else {id(module): name for name, module in net.named_modules() if name}
        self._without: dict[str, None] = {}  # operations without a rule
        self.is_settled = False  # whether these were reported, so that the backward pass does not

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        forget()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Answer the operations of a rule, too."""
        with loud():
            super().__enter__()
            try:
                yield
            finally:
                super().__exit__(None, None, None)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READS_NO_VALUES or is_quiet():
            return func(*args, **kwargs)
        with quiet():
            return self._answer(func, args, kwargs, sys._getframe(1))

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        tensors = tensors_in((args, kwargs))
        if not tensors or is_shape_only(func):  # a factory function, or no_grad itself
            with torch.no_grad() if tensors else nullcontext():
                return func(*args, **kwargs)
        if is_first_only(func):
            tensors = tensors_in(args[:1])
        for tensor in tensors:
            if tensor.requires_grad and type(tensor) is not Parameter:
                self._admit(tensor)
        if not any(map(carries_signal, tensors)):
            # otherwise values computed from parameters would look like the signal
            with torch.no_grad() if any(tensor.requires_grad for tensor in tensors) else nullcontext():
                value = self._without_signal(func, args, kwargs, tensors)
        elif not torch.is_grad_enabled():  # autograd records nothing, so no probability passes here
            value = self._without_signal(func, args, kwargs, tensors)
        else:
            value = self._with_signal(func, args, kwargs, tensors, frame)
        return note_depth(value, tensors, _step(func, tensors))

    def _with_signal(
        self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor], frame: FrameType
    ) -> Any:
        call = Call(func, args, kwargs, self._operation(func, frame), self.recording)
        if call.is_in_place and not args:  # torch.relu_(input=y)
            args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
            call = replace(call, args=args, kwargs=kwargs)
        own = rule_for(func)
        if own is not None and call.is_in_place and isinstance(args[0], Tensor) and args[0]._is_view():
            return self._through_view(call, args[0], own)
        value = NotImplemented if own is None else own(call, *args, **kwargs)
        if value is None:
            raise ArgumentError(f"the rule for {name_of(func)} returned None: return the value or NotImplemented")
        if value is NotImplemented:
            value = self._without_rule(call, tensors)
            # of broadcast_tensors(signal, constant), the second value is a constant still
            has_constants = is_routing(func) and not any(map(bypasses, tensors))
            mark_bypass([v for v in tensors_in(value) if not (has_constants and v.is_floating_point())])
            return value
        if call.is_in_place:
            mark_in_place(call, value)
        for tensor in tensors_in(value):
            graph.mark_routing(tensor)
        return mark_bypass(value)

    def _through_view(self, call: Call, view: Tensor, own: Callable[..., Any]) -> Any:
        """An operation that overwrites a view: on a copy, because only a tensor of its own can have a step."""
        part = copied(call, view) if carries_signal(view) else view.detach().clone()
        note(part, facts_of(view))
        value = own(replace(call, args=(part, *call.args[1:])), part, *call.args[1:], **call.kwargs)
        if value is NotImplemented:
            return mark_bypass(self._without_rule(call, tensors_in((call.args, call.kwargs))))
        facts = facts_of(value)
        routed(replace(call, func=Tensor.copy_, args=(view, value), kwargs={}))
        note(view, facts)
        return view

    def _without_signal(
        self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """The value of a call that no probability passes, with what is needed to tell gates from signals."""
        if not any(map(has_share, tensors)):
            return func(*args, **kwargs)
        value, call = NotImplemented, Call(func, args, kwargs, name_of(func), self.recording)
        if not MAKES_GATES.isdisjoint(spelled(func)) or any(map(gate_of, tensors)):
            own = rule_for(func)
            value = NotImplemented if own is None else own(call, *args, **kwargs)
        if value is NotImplemented:
            value = routed(call) if any(map(gate_of, tensors)) and is_routing(func) else func(*args, **kwargs)
        if call.is_in_place:  # which may have been through a view
            mark_bypass([tensors[0], tensors[0]._base])
        return mark_bypass(value)

    def _without_rule(self, call: Call, tensors: list[Tensor]) -> Any:
        """Use the ordinary gradient where it is right, and mark the value where it is not."""
        constant = {name: _constant(value) for name, value in call.kwargs.items()}
        call = replace(call, args=tuple(map(_constant, call.args)), kwargs=constant)
        if is_routing(call.func):
            return routed(call)
        overwritten(call)
        before = {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}
        value = call.compute()
        # a value with an earlier operation's node is an operand, returned unchanged
        new = [v for v in tensors_in(value) if carries_signal(v) and v.grad_fn not in before]
        for tensor in new:
            note(tensor)
            graph.mark_without_rule(tensor, call.operation, self._refuse_in_backward, before)
        self._without.update(dict.fromkeys([call.operation] if new else []))
        return value

    def _admit(self, tensor: Tensor) -> None:
        """Account for the node of an operand, which may come from where the mode sees nothing."""
        count_read(tensor)
        node = tensor.grad_fn
        if node is None or not carries_signal(tensor):
            return
        if is_known(tensor) and tensor._is_view():
            graph.admit(tensor)
        elif not graph.is_accounted_for(node):
            if all(isinstance(leaf, Parameter) for leaf in graph.leaves(node)):
                mark_plain(tensor)
                return
            operation = graph.name_of_node(node)
            graph.mark_without_rule(tensor, operation, self._refuse_in_backward, graph.parents(node))
            self._without[operation] = None

    def _refuse_in_backward(self) -> None:
        if not self.is_settled:
            self.refuse(list(self._without))

    def refuse(self, operations: Sequence[str]) -> None:
        """Raise or warn about operations without a rule, depending on `unsupported`."""
        named = ", ".join(dict.fromkeys(operations))
        if not named:
            return
        if self.unsupported == "error":
            raise UnsupportedOpError(
                f"no excitation rule for {named}: register one with ebcli.rule, or allow ordinary gradients "
                "(unsupported='gradient', --allow-unsupported)"
            )
        warnings.warn(f"used ordinary gradients instead of excitation for {named}", stacklevel=2)

    def _operation(self, func: Callable[..., Any], frame: FrameType) -> str:
        module = _calling_module(frame)
        if module is None:
            return name_of(func)
        return f"{name_of(func)} in {self._names.get(id(module)) or type(module).__name__}"


def _step(func: Callable[..., Any], operands: Sequence[Tensor]) -> Depth:
    """What an operation adds to the depth of its value."""
    names = spelled(func)
    if not PRODUCTS.isdisjoint(names):
        mixes = sum(map(has_share, operands)) > 1
        return Depth(layers=not mixes, mixtures=mixes)
    return Depth(activations=not MAKES_GATES.isdisjoint(names), layers=not LAYERS.isdisjoint(names))


def _calling_module(frame: FrameType | None) -> nn.Module | None:
    """The innermost module with a method on the stack. Inspecting the stack needs no hooks."""
    while frame is not None:
        caller = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(caller, nn.Module):
            return caller
        frame = frame.f_back
    return None


def _constant(value: Any) -> Any:
    """`value` with its parameters detached, so that autograd tracks the signal only."""
    if isinstance(value, Parameter):
        return value.detach()
    if type(value) in (list, tuple) and any(isinstance(item, Parameter) for item in value):
        return type(value)(map(_constant, value))
    return value


@contextmanager
def excitation_mode(net: nn.Module | None = None, *, unsupported: Unsupported = "error") -> Iterator[ExcitationMode]:
    """`ExcitationMode` as a context manager, with the same arguments.

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
    """Enable Excitation Backprop in this thread until `disable`, with the arguments of `ExcitationMode`.

    Raises:
        ModeError: it is already enabled.

    Examples:
        >>> import ebcli, torch
        >>> x = torch.tensor([2.0, -3.0], requires_grad=True)
        >>> ebcli.enable()
        >>> y = x.tanh()
        >>> ebcli.disable()
        >>> torch.autograd.grad(y, x, torch.ones(2))[0]  # one input, one output
        tensor([1., 1.])
    """
    if getattr(_enabled, "mode", None) is not None:
        raise ModeError("excitation backprop is already enabled in this thread")
    _enabled.mode = ExcitationMode(net, unsupported=unsupported)
    _enabled.mode.__enter__()


def disable() -> None:
    """Disable Excitation Backprop in this thread.

    Raises:
        ModeError: it is not enabled.

    Examples:
        >>> import ebcli
        >>> ebcli.enable()
        >>> ebcli.disable()
        >>> ebcli.disable()
        Traceback (most recent call last):
        ebcli.errors.ModeError: excitation backprop is not enabled in this thread
    """
    mode = getattr(_enabled, "mode", None)
    if mode is None:
        raise ModeError("excitation backprop is not enabled in this thread")
    _enabled.mode = None
    mode.__exit__(None, None, None)
