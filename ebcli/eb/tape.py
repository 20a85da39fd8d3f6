"""The forward pass as a list of operations of ATen, recorded below autograd.

There, PyTorch has spelled out what a network is written in: methods and functions, modules, composite operations,
compiled and exported programs. Each value has one maker: overwriting a tensor, through a view too, makes a new value.
"""

import sys
import weakref
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.eb.facts import Facts, Gate
from ebcli.eb.memory import Memory, view_of
from ebcli.eb.operations import (
    ACTIVE_TAPE,
    Kwargs,
    Op,
    Tensors,
    Value,
    as_tuple,
    aten,
    flatten_arguments,
    map_arguments,
    same,
)
from ebcli.eb.rules import entry_for
from ebcli.eb.rules.moves import MISSING
from ebcli.eb.rules.rule import Decomposition, Entry, RecordingRule
from ebcli.eb.torch_private import OpOverload, TorchDispatchMode, is_composite, schema_of
from ebcli.errors import EbcliError

_ATTRIBUTE = "_ebcli"  # of tensors: the tape, the value, and the version of the memory that holds it
_NO_VALUE = None, None, None


class Operator(NamedTuple):
    """An operation of ATen.

    Attributes:
        name: without namespace and overload.
        entry: what the table of rules has for it.
        is_mutable: it changes arguments.
        is_in_place: its result is its first argument, changed.
        is_composite: it is made of others.
    """

    name: str
    entry: Entry
    is_mutable: bool
    is_in_place: bool
    is_composite: bool

    @classmethod
    @cache
    def of(cls, function: OpOverload) -> "Operator":
        schema = schema_of(function)
        name = schema.name.removeprefix("aten::").replace("::", ".")
        is_mutable = schema.is_mutable
        is_in_place = is_mutable and name.endswith("_")
        if is_in_place:
            name = name.removesuffix("_")
        return cls(name, entry_for(name), is_mutable, is_in_place, is_composite(function))


class Tape(TorchDispatchMode):
    """The operations that signals pass, while it is active in this thread.

    Args:
        net: the network, for the modules' names in messages.
        names_all: find the module of every operation, not only of those without a rule.

    Attributes:
        net: the network.
        ops: the operations, earliest first.
        memory: what the memory of their tensors holds.
        saves_numbers: whether numbers are saved for the backward pass.
        is_cut: the network computes without gradients now, so that what it computes is a constant.
        escapes: functions that took numbers out of PyTorch, and at which operation.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch would import its compiler, for half a second, to turn it off at each operation

    def __init__(self, net: Module | None = None, *, names_all: bool = False) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.memory = Memory()
        self.saves_numbers = True
        self.is_cut = False
        self.escapes: dict[str, int] = {}
        self._names_all = names_all
        self.net = net
        self._token = object()

    def __del__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Free what was saved."""
        ops: list[Op] = self.__dict__.get("ops", [])  # there are none if it was interrupted
        while ops:
            op = ops.pop()
            vars(op).get("outs", []).clear()  # values and operations refer to each other
            vars(op).clear()

    @cached_property
    def names(self) -> dict[Module, str]:
        """The names of the network's modules."""
        if self.net is None:
            return {}
        return {module: name for name, module in self.net.named_modules()}

    def escapes_after(self, index: int) -> list[str]:
        """The functions that took numbers out of PyTorch after an operation."""
        return [name for name, number in self.escapes.items() if number > index]

    def start(self, tensor: Tensor) -> Value:
        """Make a tensor a signal."""
        value = Value(tensor)
        value.facts = Facts()
        self.memory.save(value)
        return self._assign(tensor, value)

    def value_of(self, tensor: Any) -> Any:
        """The value of a tensor that depends on the input; anything else as it is."""
        if not isinstance(tensor, Tensor):
            return tensor
        token, value, version = getattr(tensor, _ATTRIBUTE, _NO_VALUE)
        if token is not self._token:
            value, version = tensor, None
        contents = self.memory.contents(tensor)
        filling = contents.filling
        if filling is None or version == contents.version:
            return value
        if (filling.shape, filling.stride) == (tensor.shape, tensor.stride()):
            return self._assign(tensor, filling)
        return self._add("as_strided", aten.as_strided.default, (filling, *view_of(tensor)), {}, tensor).out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = Operator.of(func)
        if ACTIVE_TAPE.get() is not self or operator.entry.reads_only_shape:
            return func(*args, **kwargs)
        values, by_name = map_arguments(self.value_of, args, kwargs)
        if not any(type(a) is Value for a in flatten_arguments(values, by_name)):
            if operator.is_mutable and self.saves_numbers:
                self.memory.copy_constants(args[0])
            return func(*args, **kwargs)
        if operator.is_composite:  # in inference mode, and in what operations are spelled out in
            with self:
                return func.decompose(*args, **kwargs)
        if operator.is_in_place:
            return self._overwrite(operator, func, args, kwargs, values, by_name)
        if "out" in kwargs:
            message = (
                f"{operator.name} writes its result into out=, in place of what is there: assign it instead"
            )
            raise EbcliError(message)
        result = func(*args, **kwargs)
        if not isinstance(result, (Tensor, list, tuple)):
            return result  # a number
        if operator.entry.expands_responses and isinstance(result, Tensor):
            expand = partial(self._expand, shape=result.shape)
            values, by_name = map_arguments(expand, values, by_name)
        op = make_op(operator.name, func, values, by_name, operator.entry)
        if isinstance(op.rule, RecordingRule) and op.rule.reads_memory:
            _count_from(args[0].storage_offset(), op)
        if isinstance(op.rule, Decomposition):
            self.equate(self._decompose(op.rule, args, kwargs), result, is_gate=op.rule.is_gate)
        else:
            self._append(op, result)
        return result

    def _decompose(self, rule: Decomposition, args: Any, kwargs: Any) -> Any:
        """The results of an operation by others that equal it up to rounding."""
        with self:
            return rule.function(*args, **kwargs)

    def _expand(self, value: Any, shape: torch.Size) -> Any:
        """The response of a layer as the neurons that a bias or a scale makes of it by broadcasting."""
        if not isinstance(value, Value) or not value.facts.is_open or value.shape == shape:
            return value
        tensor: Any = value.tensor_ref()
        return self._add("expand", aten.expand.default, (value, list(shape)), {}, tensor.expand(shape)).out

    def equate(self, parts: Any, result: Any, *, is_gate: bool = False) -> None:
        """Note that results have the values of others, which equal them up to rounding.

        Args:
            parts: the others.
            result: the results.
            is_gate: the first one is made to rescale, so in a product it is the gate.
        """
        for part, tensor in zip(as_tuple(parts), as_tuple(result), strict=False):
            value = self.value_of(part)
            if isinstance(tensor, Tensor) and isinstance(value, Value):
                out = self._add("same", same, (value,), {}, tensor).out
                if is_gate:
                    out.facts.gate = Gate.SWITCH
                    out.facts.nonnegative = True
            is_gate = False

    def copy_of(self, tensor: Tensor, value: Value) -> Value:
        """A value of its own for a tensor whose value is also elsewhere."""
        return self._add("alias", aten.alias.default, (value,), {}, tensor).out

    def call(self, name: str, compute: Any, function: Any, signals: Tensors, rule: RecordingRule) -> Any:
        """The value of a function, recorded as one operation with a rule of its own."""
        if name.endswith("_"):
            self.memory.before_write(signals[0])
        values = [self.value_of(signal) for signal in signals]
        result = compute()
        if all(isinstance(value, Value) for value in values):
            if any(result is signal for signal in signals):
                result = result.detach()
            self._add(name, function, values, {}, result, rule)
        return result

    def refuse(self, name: str, operands: Iterable[Tensor], result: Any) -> None:
        """Record a function that has no rule."""
        values = [value for value in map(self.value_of, operands) if isinstance(value, Value)]
        self._add(f"refused.{name}", None, values, {}, tuple(flatten_arguments([result])), MISSING)

    def _add(
        self, name: str, function: Any, args: Any, kwargs: Any, result: Any, entry: Entry | None = None
    ) -> Op:
        return self._append(make_op(name, function, args, kwargs, entry or entry_for(name)), result)

    def _append(self, op: Op, result: Any) -> Op:
        for index, tensor in enumerate(as_tuple(result)):
            if isinstance(tensor, Tensor):
                op.outs.append(self._assign(tensor, Value(tensor, op, index)))
        self.memory.note_constants(op)
        for value in op.inputs:
            value.num_reads += 1
        op.index = len(self.ops)
        self.ops.append(op)
        op.rule.learn(op)
        if self._names_all or op.rule is MISSING:
            self._name_site(op)
        if self.is_cut:
            op.is_cut, op.operands = True, []
        elif self.saves_numbers:
            for value in op.rule.needs(op):
                self.memory.save(value)
        return op

    def _name_site(self, op: Op) -> None:
        """Add the name of the module that runs an operation, which is found without hooks."""
        module = caller(sys._getframe(3), Module)
        if module is not None:
            op.site += f" in {self.names.get(module) or type(module).__name__}"

    def _overwrite(
        self, operator: Operator, func: OpOverload, args: Any, kwargs: Any, values: Any, by_name: Any
    ) -> Any:
        """An operation in place is the same operation, whose result is a new value of the tensor."""
        target = args[0]
        previous = values[0]
        is_value = isinstance(previous, Value)
        if self.is_cut and is_value and not (previous.maker is not None and previous.maker.is_cut):
            message = f"{operator.name}_ changes a value in place under torch.no_grad(): make it out of place"
            raise EbcliError(message)
        if not is_value:  # a constant, which the result replaces
            values = target.clone(), *values[1:]
        op = make_op(operator.name, _out_of_place(operator.name, func), values, by_name, operator.entry)
        if isinstance(op.rule, Decomposition):
            parts = self._decompose(op.rule, args, kwargs)
            op = make_op("same", same, (self.value_of(parts),), {}, entry_for("same"))
        needs = op.rule.needs(op)
        if self.saves_numbers:
            for value in needs:
                self.memory.save(value)  # before the numbers are gone
        if is_value and not previous.num_reads and previous.maker is not None and previous not in needs:
            previous.numbers = None
        size = target.untyped_storage().nbytes() // target.element_size()
        self.memory.before_write(target)
        before = None
        if target.numel() < size:
            flat = target.as_strided((size,), (1,), 0)
            before = self._memory_of(target, previous, flat)
        func(*args, **kwargs)
        filling = new = self._append(op, target).out
        if before is not None:
            # what fills the memory of a view, flat, after a new value of the view was written to it
            places = torch.arange(size, device=target.device).as_strided(*view_of(target))
            filling = self._add("write", aten.index_put.default, (before, [places], new), {}, flat).out
        self.memory.write(target, filling)
        self._assign(target, new)
        return target

    def _memory_of(self, view: Tensor, value: Any, flat: Tensor) -> Any:
        """What the memory of a view holds, flat: a value or, if it is constant, a copy."""
        contents = self.memory.contents(view).filling
        if contents is not None:
            value = contents
        elif not isinstance(value, Value):
            return flat.clone()
        else:
            while value.numel < flat.numel() and value.maker is not None and _is_view(value.maker):
                value = value.maker.signal
            if value.numel < flat.numel():
                raise EbcliError(
                    "part of a tensor is overwritten whose other parts are unknown: write into a copy"
                )
        return self._add("as_strided", aten.as_strided.default, (value, *view_of(flat)), {}, flat).out

    def rename(self, tensor: Tensor, value: Value) -> Tensor:
        """A tensor that holds a value, too."""
        value.tensor_ref = weakref.ref(tensor)
        self._assign(tensor, value)
        return tensor

    def _assign(self, tensor: Tensor, value: Value) -> Value:
        setattr(tensor, _ATTRIBUTE, (self._token, value, self.memory.contents(tensor).version))
        return value


def make_op(name: str, function: Any, args: Sequence[Any], kwargs: Kwargs, entry: Entry) -> Op:
    """An operation with its rule."""
    op = Op(name, function, args, kwargs)
    op.rule = entry.choose(op)
    if isinstance(op.rule, RecordingRule):
        op.operands = op.rule.operands(op)
    return op


def _count_from(start: int, op: Op) -> None:
    """Let an operation that reads memory count from where its tensor starts: its numbers lie in memory of their own."""
    offset = op.arguments["storage_offset"]
    if offset is None or not start:
        return
    if offset < start:
        raise EbcliError(f"{op.name} reads what is before its tensor in memory: call it on the whole tensor")
    if "storage_offset" not in op.kwargs:
        op.args = op.args[:-1]
    op.kwargs = {**op.kwargs, "storage_offset": offset - start}
    del op.arguments


def _is_view(op: Op) -> bool:
    """Whether its result shares memory with its signal."""
    return getattr(op.function, "is_view", False)


def _out_of_place(name: str, func: OpOverload) -> Any:
    """The operation in place as a function."""
    if func.namespace == "aten":
        overload = getattr(getattr(aten, name, None), schema_of(func).overload_name or "default", None)
        if overload is not None and not schema_of(overload).is_mutable:
            return overload
    return lambda a, *args, **kwargs: func(a.clone(), *args, **kwargs)


def caller(frame: FrameType | None, kind: type) -> Any:
    """The innermost object of a kind whose method is running: the first argument of a function on the stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first_argument = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first_argument, kind):
                return first_argument
        frame = frame.f_back
    return None
