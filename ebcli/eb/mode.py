"""The switch: while an ExcitationMode is on, autograd carries excitation probabilities instead of gradients."""

import re
import sys
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from ebcli.eb.custom_rules import Call, custom_rule, name_of
from ebcli.eb.operations import ACTIVE_TAPE, AnyFunction, Tensors, ThreadState, Value, quiet, reachable
from ebcli.eb.paths import Messages, descend, walk, without_rule
from ebcli.eb.rules.decompositions import FUNCTIONS
from ebcli.eb.stepwise import Stepwise, total
from ebcli.eb.tape import Tape, caller
from ebcli.eb.torch_private import (
    DisableTorchFunction,
    _set_grad_enabled,
    is_parameter,
    is_view,
    tree_leaves,
    tree_map_only,
)
from ebcli.errors import ArgumentError, ConfigurationError, ModeError, UnsupportedOpError

UnsupportedPolicy = Literal["error", "gradient"]


class RecordingMode(TorchFunctionMode):
    """Records the operations of a network, without autograd, and answers calls of functions with rules of their own.

    Args:
        tape: of the forward pass.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape
        self._states: list[ThreadState] = []

    def __enter__(self) -> Any:
        state = ThreadState()
        try:
            self._states.append(state)
            ACTIVE_TAPE.set(self.tape)
            self.tape.__enter__()
            super().__enter__()
        except BaseException:  # interrupted
            state.restore()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        state = self._states[-1]
        try:
            state.restore()  # which leaves both modes
        finally:
            state.restore()  # again, because the first may be interrupted
        self._states.pop()
        self.clear()

    def clear(self) -> None:
        """Forget what is of use inside the mode alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tape = self.tape
        if func in _READS_NO_VALUES or ACTIVE_TAPE.get() is not tape:
            return func(*args, **kwargs)
        was_enabled = torch.is_grad_enabled()
        if func is _set_grad_enabled:
            # what the network computes without gradients is a constant; in an autograd.Function, they are off anyway
            tape.is_cut = not args[0] and (was_enabled or tape.is_cut)
            return func(*args, **kwargs)
        if func in _ESCAPES and not (was_enabled or tape.is_cut):
            tape.escapes[_name_of_function()] = len(tape.ops)
        tape.is_cut &= not was_enabled
        try:
            _set_grad_enabled(False)  # torch.no_grad() takes ten times as long
            return self.compute(func, args, kwargs)
        finally:
            _set_grad_enabled(was_enabled)

    def compute(self, func: AnyFunction, args: Any, kwargs: Any) -> Any:
        """The value of a call, recorded."""
        tape = self.tape
        custom = custom_rule(func)
        if custom is None and func not in FUNCTIONS:
            return func(*args, **kwargs)
        name = name_of(func)
        operands = tensors_in((args, kwargs))
        if not any(isinstance(tape.value_of(operand), Value) for operand in operands):
            return func(*args, **kwargs)
        call = Call(func, args, kwargs, tape)
        if custom is not None:
            value = custom(call, *args, **kwargs)
            if value is None:
                raise ArgumentError(f"the rule for {name} returned None: return the value or NotImplemented")
            if value is NotImplemented:
                return func(*args, **kwargs)
            return value
        result = call.compute()
        parts = FUNCTIONS[func](*args, **kwargs)
        if parts is NotImplemented:
            tape.refuse(name, operands, result)
        else:
            tape.equate(parts, result)
        return result


# What modules ask tensors most often, answered without more ado
_READS_NO_VALUES = frozenset([Tensor.dim, Tensor.size, Tensor.numel, Tensor.is_floating_point]) | {
    getattr(Tensor, name).__get__
    for name in "shape ndim dtype device is_cuda requires_grad grad_fn is_leaf".split()
}

_ESCAPES = frozenset([Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__])


def _name_of_function() -> str:
    """The name of the autograd.Function that called a mode's __torch_function__, which called this."""
    ctx = caller(sys._getframe(2), FunctionCtx)
    if ctx is None:
        return "an autograd.Function"
    return f"{type(ctx).__name__.removesuffix('Backward')}.apply"


class Boundary(Function):
    """The node of a tensor that holds a value. Nothing that it refers to leads to a node, which would keep it alive."""

    @staticmethod
    def forward(ctx: Any, box: list[Tensor], value: Value, descent: "Descent", *_: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.value = value
        ctx.descent = descent
        return box[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> Any:
        """What arrives at the ends, if P is the probability of the value."""
        descent: Descent = ctx.descent
        messages = {} if P is None else descent.walk(ctx.value, P)
        of_ends = (total(messages[end], end) if end in messages else None for end in descent.ends)
        return None, None, None, *of_ends


class Descent(NamedTuple):
    """The way down from a value.

    Attributes:
        tape: of the forward pass.
        ends: the values where it ends, each of which has a node of its own.
        unsupported: as in `ExcitationMode`.
    """

    tape: Tape
    ends: list[Value]
    unsupported: UnsupportedPolicy

    def walk(self, value: Value, P: Tensor) -> Messages:
        """What arrives at the ends, if P is the probability of the value."""
        ends = set(self.ends)
        ops = descend([value], lambda op: not ends.isdisjoint(op.outs))
        if without_rule(ops):
            refuse(without_rule(descend([value])), self.unsupported)  # all that there are
        with quiet(), torch.no_grad():
            propagate = Stepwise(self.tape.ops)
            above = [op for op in ops if ends.isdisjoint(op.outs)]
            messages = walk({value: [(P, propagate.start(value))]}, above, propagate, ends)
        refuse([end.facts.unknown for end in self.ends if end in messages], self.unsupported)
        return messages


class ExcitationMode(RecordingMode):
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

    def __init__(self, net: Module | None = None, *, unsupported: UnsupportedPolicy = "error") -> None:
        refuse([], unsupported)
        super().__init__(Tape(net))
        self._policy = unsupported
        self._starts: dict[Value, Tensor] = {}
        # of values of layers, to which norms may still be added
        self._ends: dict[Value, dict[Value, Tensor]] = {}

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def compute(self, func: AnyFunction, args: Any, kwargs: Any) -> Any:
        tensors = tensors_in((args, kwargs))
        for tensor in tensors:
            if tensor.requires_grad:
                self._admit(tensor)
        result = super().compute(func, args, kwargs)
        if self.tape.is_cut or func is Tensor.requires_grad_:
            return result
        operands = [tensor for tensor in tensors if self._node(tensor) is not None]
        result = tree_map_only(Tensor, self._with_node, result)
        for tensor in (*tensors_in(result), *tensors[:1], *self.tape.memory.overwritten()):
            self._enter(tensor, operands)
        return result

    def _admit(self, tensor: Tensor) -> None:
        """Make a tensor that requires grad a signal, unless it is a parameter or was computed from parameters only."""
        tape = self.tape
        node = tensor.grad_fn
        if isinstance(tape.value_of(tensor), Value) or is_parameter(tensor):
            return
        leaves = [below.variable for below in reachable([node]) if hasattr(below, "variable")]
        if node is not None and all(isinstance(leaf, Parameter) for leaf in leaves):
            return
        value = tape.start(tensor)
        if node is not None:  # made where no mode sees it
            value.facts.unknown = name_of_node(node)
        self._starts[value] = tensor

    def _node(self, tensor: Tensor) -> Any:
        """The node of a tensor, if it stands for the tensor's value."""
        value = self.tape.value_of(tensor)
        is_of_value = isinstance(value, Value) and getattr(tensor.grad_fn, "value", None) is value
        return tensor.grad_fn if is_of_value else None

    def _with_node(self, tensor: Tensor) -> Tensor:
        """A tensor of its own for a view, which autograd would not give a node, and for an operand."""
        value = self.tape.value_of(tensor)
        if not isinstance(value, Value) or not (is_view(tensor) or value in self._starts):
            return tensor
        return self.tape.rename(tensor.data, value)

    def _enter(self, tensor: Tensor, operands: Tensors) -> None:
        """Give a tensor a node, unless the one that it has stands for its value."""
        value = self.tape.value_of(tensor)
        if not isinstance(value, Value) or not value.is_floating:
            return
        if value in self._starts or self._node(tensor):
            return
        ends = dict(self._starts)
        for operand in operands:
            end = self.tape.value_of(operand)
            if end is not value:  # a norm or a ReLU may follow an open response: they are one neuron
                ends |= self._ends[end] if end.facts.is_open else {end: operand}
        with torch.enable_grad(), DisableTorchFunction():
            Boundary.apply([tensor], value, Descent(self.tape, [*ends], self._policy), *ends.values())
        if value.facts.is_open:
            self._ends[value] = ends


def tensors_in(arguments: Any) -> list[Tensor]:
    return [a for a in tree_leaves(arguments) if isinstance(a, Tensor)]


def refuse(operations: Sequence[str], unsupported: UnsupportedPolicy) -> None:
    """Raise or warn about operations without a rule."""
    if unsupported not in ("error", "gradient"):
        raise ConfigurationError(f"unsupported must be 'error' or 'gradient', not {unsupported!r}")
    names = ", ".join(filter(None, dict.fromkeys(operations)))
    if not names:
        return
    if unsupported == "error":
        raise UnsupportedOpError(
            f"no excitation rule for {names}: register one with ebcli.rule, or allow ordinary gradients "
            "(unsupported='gradient', --allow-unsupported)"
        )
    warnings.warn(f"used ordinary gradients instead of excitation for {names}", stacklevel=3)


excitation_mode = ExcitationMode

_enabled_mode: ContextVar[ExcitationMode | None] = ContextVar("enabled", default=None)  # in this thread


def enable(net: Module | None = None, *, unsupported: UnsupportedPolicy = "error") -> None:
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
    if _enabled_mode.get() is not None:
        raise ModeError("excitation backprop is already enabled in this thread")
    _enabled_mode.set(ExcitationMode(net, unsupported=unsupported).__enter__())


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
    mode = _enabled_mode.get()
    if mode is None:
        raise ModeError("excitation backprop is not enabled in this thread")
    _enabled_mode.set(None)
    mode.__exit__(None, None, None)


def name_of_node(node: Any) -> str:
    """What to call a node that was made where no mode sees it."""
    stem = re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])
    if isinstance(node, BackwardCFunction):  # of an autograd.Function
        return f"{stem}.apply"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower() + " (called outside the mode)"
