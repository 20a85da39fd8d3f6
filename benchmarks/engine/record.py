"""The forward pass as a list of operations of ATen, recorded below autograd.

There, PyTorch has spelled out what a network is written in: methods and functions, modules, composite operations,
compiled and exported programs. Each value has one maker: overwriting a tensor, through a view too, makes a new value.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ebcli.errors import EbcliError

_ATTRIBUTE = "_ebcli"
aten = torch.ops.aten
_GATES = frozenset(["var", "std", "var_mean", "std_mean", "linalg_vector_norm"])
_AFFINE = frozenset(["add", "sub", "rsub", "mul", "div"])
SUMS = frozenset(["addmm", "baddbmm", "addmv", "addbmm"])  # explained as others only if a signal is added, not a bias
# What takes nothing but shape and type from its operands
_SHAPE_ONLY = frozenset(
    [f"aten::{kind}_like" for kind in "zeros ones full empty rand randn randint".split()]
    + [f"aten::new_{kind}" for kind in "zeros ones full empty empty_strided".split()]
)
Geometry = tuple[torch.Size, tuple[int, ...], int]


_thread = threading.local()


class quiet:  # noqa: N801  a context, in lower case as torch.no_grad
    """Hide operations, such as those of rules, from the records of this thread."""

    _record: Record | None = None

    def __enter__(self) -> None:
        self._before = active()
        _thread.record = self._record

    def __exit__(self, *error: object) -> None:
        _thread.record = self._before


def active() -> Record | None:
    """The record that is being made in this thread: the innermost one."""
    return getattr(_thread, "record", None)


class Value:
    """What a tensor held at one time. Its numbers are kept where a rule needs them, and otherwise computed again.

    Attributes:
        maker: the operation that made it; None for the input.
        at: which of the maker's results it is.
        facts: what its maker's rule knows of it, see `benchmarks.engine.facts`.
        reads: how many operations read it.
    """

    __slots__ = "__weakref__ at device dtype facts is_floating kept live maker reads shape stride".split()

    def __init__(self, tensor: Tensor, maker: Op | None = None, at: int = 0) -> None:
        self.shape, self.stride, self.dtype, self.device = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        self.is_floating, self.live = tensor.is_floating_point(), weakref.ref(tensor)
        self.maker, self.at, self.reads = maker, at, 0
        self.facts: Any = None
        self.kept: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """Its numbers."""
        if self.kept is None:
            assert self.maker is not None
            result = self.maker.again()
            self.kept = result if isinstance(result, Tensor) else result[self.at]
        return self.kept

    def varies_along(self, axis: int) -> bool:
        """Whether its elements along an axis are not copies of one."""
        return self.shape[axis] > 1 and self.stride[axis] != 0

    @property
    def distinct(self) -> int:
        """The number of elements, without the copies that broadcasting made."""
        return math.prod(n for n, step in zip(self.shape, self.stride, strict=True) if step or n < 2)

    def empty(self) -> Tensor:
        """A tensor with its layout, and no numbers yet."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class Op:
    """An operation: a pure function of its inputs.

    Attributes:
        name: in ATen, without namespace, overload and the underscore of operations in place.
        args, kwargs: its arguments, with Values in the places of tensors that depend on the input.
        inputs: these Values.
        operands: the Values that its probability goes to: inputs, or what an activation is a function of.
        rule: how it shares probability, an entry of `benchmarks.engine.rules`.
        outs: its results.
        is_cut: probability ends here, because the network computes it without gradients.
        site: its name and that of its module, for messages; None where nobody asks.
    """

    def __init__(
        self, index: int, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.index, self.name, self.function, self.args, self.kwargs = index, name, function, tuple(args), kwargs
        self.inputs = [a for a in flat((*args, *kwargs.values())) if isinstance(a, Value)]
        self.operands, self.outs = list[Value](), list[Value]()
        self.is_cut, self.site, self.rule = False, name, None  # type: Any

    def at(self, *inputs: Any, constant: Callable[[Any], Any] = lambda a: a) -> Any:
        """Its result for other inputs, and perhaps for other constants."""
        rest, n = iter(inputs), len(self.args)
        args = changed(
            (*self.args, *self.kwargs.values()), lambda a: next(rest) if isinstance(a, Value) else constant(a)
        )
        return self.function(*args[:n], **dict(zip(self.kwargs, args[n:], strict=True)))

    def again(self) -> Any:
        """Its result, computed again."""
        return self.at(*(value.tensor for value in self.inputs))

    @cached_property
    def named(self) -> dict[str, Any]:
        """Its arguments by the names that ATen gives them."""
        schema = self.function._schema.arguments  # type: ignore[attr-defined]
        given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
        return given | dict(zip((argument.name for argument in schema), self.args, strict=False)) | self.kwargs

    def once(self, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, which several passes share."""
        if "_once" not in self.__dict__:
            self._once = compute()
        return self._once

    @property
    def is_native(self) -> bool:
        """Whether PyTorch's transforms of functions, such as vmap, know it."""
        return not isinstance(self.function, torch._ops.OpOverload) or self.function.namespace == "aten"

    @property
    def signal(self) -> Value:
        return self.inputs[0]

    @property
    def out(self) -> Value:
        return self.outs[0]


def flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments of an operation of ATen, which nests lists at most once."""
    for a in arguments:
        if isinstance(a, (list, tuple)):
            yield from a
        else:
            yield a


def changed(arguments: Iterable[Any], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple([[change(b) for b in a] if isinstance(a, (list, tuple)) else change(a) for a in arguments])


class Record(TorchDispatchMode):
    """The operations that signals pass, while it is active in this thread.

    Args:
        rule_of: the rule of an operation, which says whose numbers it needs, and what is known of the results.
        respelled: for operations that are explained as others: a function made of these, with the same arguments.
        names: of the modules, by id, for messages.
    """

    def __init__(
        self,
        rule_of: Callable[[Op], Any],
        respelled: dict[str, Callable[..., Any]],
        names: dict[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.keeps = True  # whether numbers are kept
        self.is_cut = False
        self.names = names
        self.left: dict[str, int] = {}  # functions that took numbers out of PyTorch, and at which operation
        self._token = object()
        self._rule_of, self._respelled = rule_of, respelled
        self._written: dict[int, tuple[int, Value, Geometry]] = {}  # storage -> how often, and what it holds now
        self._kept: dict[int, list[Value]] = {}  # storage -> values whose numbers are in it
        self._is_spelling = False
        self._before: list[Record | None] = []
        self._storages: list[Any] = []  # keeps addresses of overwritten storages from being used again

    def __del__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Free what was kept."""
        for op in self.ops:  # values and operations refer to each other
            op.outs.clear()
            op.__dict__.clear()
        self.ops.clear()

    def __enter__(self) -> Record:
        self._before.append(active())
        _thread.record = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _thread.record = self._before.pop()

    def start(self, tensor: Tensor, facts: Any) -> Value:
        """Make a tensor a signal."""
        value = Value(tensor)
        value.facts = facts
        self.keep(value)
        return self._is_now(tensor, value)

    def value_of(self, tensor: Any) -> Any:
        """The value of a tensor that depends on the input; anything else as it is."""
        if not isinstance(tensor, Tensor):
            return tensor
        found = getattr(tensor, _ATTRIBUTE, None)
        if found is not None and found[0] is not self._token:
            found = None
        if not self._written:
            return tensor if found is None else found[1]
        version, whole, geometry = self._written.get(storage_of(tensor), (0, None, None))
        if whole is None or (found is not None and found[2] == version):
            return tensor if found is None else found[1]
        if geometry == geometry_of(tensor):
            return self._is_now(tensor, whole)
        read = Read(geometry, geometry_of(tensor), tensor.untyped_storage().nbytes() // tensor.element_size())
        return self._is_now(tensor, self._add("read", read, (whole,), {}, tensor).out)

    def keep(self, value: Value) -> None:
        """Keep a value's numbers until the end."""
        if value.kept is None and (tensor := value.live()) is not None:
            value.kept = tensor.detach()  # which, unlike the tensor, does not lead back here
            self._kept.setdefault(storage_of(tensor), []).append(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if active() is not self:
            return func(*args, **kwargs)
        values = changed(args, self.value_of)
        named = dict(zip(kwargs, changed(kwargs.values(), self.value_of), strict=True))
        is_mutable = func._schema.is_mutable
        if not any(isinstance(a, Value) for a in flat((*values, *named.values()))):
            if is_mutable:
                self._copy_constants(args[0])
            return func(*args, **kwargs)
        if func._schema.name in _SHAPE_ONLY:
            return func(*args, **kwargs)
        if self._is_spelling or torch.is_inference_mode_enabled():  # PyTorch has not taken composites apart
            with self:
                if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return parts
        namespace, name = func._schema.name.split("::")
        name = name if namespace == "aten" else f"{namespace}.{name}"
        if is_mutable and name.endswith("_"):
            return self._overwrite(name.removesuffix("_"), func, args, kwargs, values, named)
        if "out" in kwargs:
            raise EbcliError(f"{name} writes its result into out=, in place of what is there: assign it instead")
        parts = self._spelled_out(name, values, args, kwargs)
        result = func(*args, **kwargs)
        if name in _AFFINE and isinstance(result, Tensor):
            values = changed(values, lambda a: self._expanded(a, result.shape))
        if parts is not NotImplemented:
            self.equate(parts, result, is_gate=name in _GATES)
        elif isinstance(result, (Tensor, list, tuple)):  # and not a number
            self._add(name, func, values, named, result)
        return result

    def _spelled_out(self, name: str, values: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operation by others that equal it up to rounding, if it is explained as these."""
        if name not in self._respelled or (name in SUMS and not isinstance(values[0], Value)):
            return NotImplemented
        before, self._is_spelling = self._is_spelling, True
        try:
            with self:
                return self._respelled[name](*args, **kwargs)
        finally:
            self._is_spelling = before

    def _expanded(self, value: Any, shape: torch.Size) -> Any:
        """The response of a layer as the neurons that a bias or a scale makes of it by broadcasting."""
        if not (isinstance(value, Value) and value.facts.is_open and value.shape != shape):
            return value
        tensor = value.live()
        assert tensor is not None
        return self._add("expand", aten.expand.default, (value, list(shape)), {}, tensor.expand(shape)).out

    def equate(self, parts: Any, result: Any, *, is_gate: bool = False) -> None:
        """Note that results have the values of others, which equal them up to rounding.

        Args:
            parts: the others.
            result: the results.
            is_gate: the first one is made to rescale, so in a product it is the gate.
        """
        for part, own in zip(*((a,) if isinstance(a, Tensor) else a for a in (parts, result)), strict=False):
            if isinstance(own, Tensor) and isinstance(value := self.value_of(part), Value):
                out = self._add("same", aten.alias.default, (value,), {}, own).out
                if is_gate:
                    out.facts.gate, out.facts.nonnegative, is_gate = 4, True, False

    def call(
        self, name: str, compute: Callable[[], Any], function: Callable[..., Any], signals: Sequence[Tensor], rule: Any
    ) -> Any:
        """The value of a function, recorded as one operation with a rule of its own."""
        if name.endswith("_"):
            self._save(storage_of(signals[0]))
        values = [self.value_of(signal) for signal in signals]
        result = compute()
        if all(isinstance(value, Value) for value in values):
            result = result.detach() if any(result is a for a in signals) else result
            self._add(name, function, values, {}, result, rule)
        return result

    def refuse(self, name: str, operands: Iterable[Tensor], result: Any) -> None:
        """Record a function that has no rule."""
        values = [value for value in map(self.value_of, operands) if isinstance(value, Value)]
        self._add(f"refused.{name}", None, values, {}, tuple(flat([result])))  # type: ignore[arg-type]

    def _add(
        self, name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, rule: Any = None
    ) -> Op:
        return self._made(Op(len(self.ops), name, function, args, kwargs), result, rule)

    def _made(self, op: Op, result: Any, rule: Any = None) -> Op:
        self._find_rule(op, rule)
        for at, tensor in enumerate((result,) if isinstance(result, Tensor) else result):
            if isinstance(tensor, Tensor):
                op.outs.append(self._is_now(tensor, Value(tensor, op, at)))
        for value in op.inputs:
            value.reads += 1
        self.ops.append(op)
        if self.names is not None:
            op.site = f"{op.name.rpartition('.')[2]}{module_calling(sys._getframe(2), self.names)}"
        op.rule.learn(op)
        if self.is_cut:
            op.is_cut, op.operands = True, []
        elif self.keeps:
            for value in op.rule.keeps(op):
                self.keep(value)
        return op

    def _find_rule(self, op: Op, rule: Any = None) -> None:
        op.rule = rule or self._rule_of(op)
        op.operands = op.rule.operands(op)

    def _overwrite(self, name: str, func: Any, args: Any, kwargs: Any, values: Any, named: Any) -> Any:
        """An operation in place is the same operation, whose result is a new value of the tensor."""
        target, old = args[0], values[0]
        if self.is_cut and isinstance(old, Value) and not (old.maker is not None and old.maker.is_cut):
            raise EbcliError(f"{name}_ changes a value in place under torch.no_grad(): make it out of place")
        if not isinstance(old, Value):  # a constant, which the result replaces
            values = target.clone(), *values[1:]
        parts = self._spelled_out(name, values, args, kwargs)
        op = Op(len(self.ops), name, self._out_of_place(name, func), values, named)
        self._find_rule(op)
        needed = op.rule.keeps(op)
        for value in needed if self.keeps and parts is NotImplemented else ():
            self.keep(value)  # before the numbers are gone
        if isinstance(old, Value) and not old.reads and old.maker is not None and old not in needed:
            old.kept = None
        storage, geometry = storage_of(target), geometry_of(target)
        size = target.untyped_storage().nbytes() // target.element_size()
        self._save(storage)
        whole = target.numel() == size
        base = None if whole else self._base(target, old, size)
        func(*args, **kwargs)
        self._storages.append(StorageWeakRef(target.untyped_storage()))
        if parts is not NotImplemented:
            op = Op(len(self.ops), "same", aten.alias.default, (self.value_of(parts),), {})
        new = now = self._made(op, target).out
        if base is not None:
            before, layout = base
            flattened = target.as_strided((size,), (1,), 0) if not target.is_meta else target.new_empty(size)
            now = self._add("write", Write(layout, geometry, size), (before, new), {}, flattened).out
            geometry = geometry_of(flattened)
        self._written[storage] = self._written.get(storage, (0,))[0] + 1, now, geometry
        self._is_now(target, new)
        return target

    def _out_of_place(self, name: str, func: Any) -> Any:
        overload = getattr(getattr(aten, name, None), func._overloadname, None) if func.namespace == "aten" else None
        if overload is not None and not overload._schema.is_mutable:
            return overload
        return lambda a, *rest, **named: func(a.clone(), *rest, **named)

    def _base(self, view: Tensor, value: Any, size: int) -> tuple[Any, Geometry]:
        """What the memory of a view held: a value or, if that was constant, a copy; and its layout."""
        storage = storage_of(view)
        if storage in self._written:
            return self._written[storage][1:]
        root = value
        while isinstance(root, Value) and (owner := root.live()) is not None and storage_of(owner) == storage:
            if owner.numel() == size:
                return root, geometry_of(owner)
            root = root.maker.signal if root.maker is not None else None
        if isinstance(value, Value):
            raise EbcliError("a part of a tensor is overwritten whose other parts are unknown: write into a copy")
        everything = view.as_strided((size,), (1,), 0).clone()
        return everything, geometry_of(everything)

    def _save(self, storage: int) -> None:
        """Copy the numbers of values whose storage is about to be overwritten."""
        memory = None
        for value in self._kept.pop(storage, ()):
            if (kept := value.kept) is not None and storage_of(kept) == storage:
                if memory is None:
                    memory = kept.new_empty(0).set_(kept.untyped_storage()).clone()
                value.kept = memory.as_strided(kept.shape, kept.stride(), kept.storage_offset())

    def _copy_constants(self, overwritten: Any) -> None:
        """Copy constants that recorded operations have read, and that are about to be overwritten."""

        def copied(a: Any) -> Any:
            return a.clone() if isinstance(a, Tensor) and storage_of(a) == storage_of(overwritten) else a

        for op in self.ops if self.keeps and isinstance(overwritten, Tensor) else ():
            op.args = changed(op.args, copied)
            op.kwargs = dict(zip(op.kwargs, changed(op.kwargs.values(), copied), strict=True))

    @property
    def overwritten(self) -> list[Value]:
        """What memory that was overwritten holds."""
        return [whole for _, whole, _ in self._written.values()]

    def renamed(self, tensor: Tensor, value: Value) -> Tensor:
        """A tensor that holds a value, too."""
        value.live = weakref.ref(tensor)
        self._is_now(tensor, value)
        return tensor

    def _is_now(self, tensor: Tensor, value: Value) -> Value:
        version = self._written[storage_of(tensor)][0] if self._written and storage_of(tensor) in self._written else 0
        setattr(tensor, _ATTRIBUTE, (self._token, value, version))
        return value


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def geometry_of(tensor: Tensor) -> Geometry:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


@dataclass(frozen=True)
class Read:
    """From a value that fills some memory to what a view of it shows.

    Attributes:
        layout: of the value.
        view: of the view.
        size: of the memory.
    """

    layout: Geometry
    view: Geometry
    size: int

    def __call__(self, a: Tensor) -> Tensor:
        return self._memory(a).as_strided(*self.view).clone()

    def back(self, P: Tensor) -> tuple[Tensor, ...]:
        """The gradients."""
        memory = P.new_zeros(self.size)
        memory.as_strided(*self.view).copy_(P)
        return (memory.as_strided(*self.layout),)

    def _memory(self, a: Tensor) -> Tensor:
        memory = a.new_zeros(self.size)
        memory.as_strided(*self.layout).copy_(a)
        return memory


class Write(Read):
    """From a value that fills some memory, and a view of it that is overwritten, to the memory."""

    def __call__(self, a: Tensor, part: Tensor) -> Tensor:  # type: ignore[override]
        memory = self._memory(a)
        memory.as_strided(*self.view).copy_(part)
        return memory

    def back(self, P: Tensor) -> tuple[Tensor, ...]:
        memory = P.clone()
        part = memory.as_strided(*self.view).clone()
        memory.as_strided(*self.view).zero_()
        return memory.as_strided(*self.layout), part


def module_calling(frame: FrameType | None, names: dict[int, str]) -> str:
    """`` in features.0``, of the innermost module with a method on the stack. Inspecting the stack needs no hooks."""
    while frame is not None:
        caller = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(caller, nn.Module):
            return f" in {names.get(id(caller)) or type(caller).__name__}"
        frame = frame.f_back
    return ""
