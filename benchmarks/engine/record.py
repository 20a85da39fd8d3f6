"""The forward pass as a list of operations of ATen, recorded below autograd.

There, PyTorch has spelled out what a network is written in: methods and functions, modules, composite operations,
compiled and exported programs. Each value has one maker: overwriting a tensor, through a view too, makes a new value.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engine.memory import Geometry, Read, Write, geometry_of, storage_of
from benchmarks.engine.operations import SUMS, Op, Value, aten, changed, flat
from ebcli.errors import EbcliError

_ATTRIBUTE = "_ebcli"
_GATES = frozenset(["var", "std", "var_mean", "std_mean", "linalg_vector_norm"])
_AFFINE = frozenset(["add", "sub", "rsub", "mul", "div"])
# What takes nothing but shape and type from its operands
_SHAPE_ONLY = frozenset(
    [f"aten::{kind}_like" for kind in "zeros ones full empty rand randn randint".split()]
    + [f"aten::new_{kind}" for kind in "zeros ones full empty empty_strided".split()]
)


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


def module_calling(frame: FrameType | None, names: dict[int, str]) -> str:
    """`` in features.0``, of the innermost module with a method on the stack. Inspecting the stack needs no hooks."""
    while frame is not None:
        caller = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(caller, nn.Module):
            return f" in {names.get(id(caller)) or type(caller).__name__}"
        frame = frame.f_back
    return ""
