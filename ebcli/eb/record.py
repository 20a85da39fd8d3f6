"""The forward pass as a list of operations of ATen, recorded below autograd.

There, PyTorch has spelled out what a network is written in: methods and functions, modules, composite operations,
compiled and exported programs. Each value has one maker: overwriting a tensor, through a view too, makes a new value.
"""

import sys
import weakref
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ebcli.eb.facts import Facts, Gate
from ebcli.eb.operations import RECORD, SUMS, Op, Value, aten, changed, flat, storage_of
from ebcli.eb.rules import rule_of
from ebcli.eb.rules.respelled import RESPELLED
from ebcli.eb.rules.rule import MISSING
from ebcli.errors import EbcliError

_ATTRIBUTE, _CONSTANT = "_ebcli", (None, None, None)
_AS_MADE = 0, None, None  # memory that was not overwritten
_GATES = frozenset(["var", "std", "var_mean", "std_mean", "linalg_vector_norm"])
_AFFINE = frozenset(["add", "sub", "rsub", "mul", "div"])
# What takes nothing but shape and type from its operands
_SHAPE_ONLY = frozenset(
    [f"{kind}_like" for kind in "zeros ones full empty rand randn randint".split()]
    + [f"new_{kind}" for kind in "zeros ones full empty empty_strided".split()]
)


class Record(TorchDispatchMode):
    """The operations that signals pass, while it is active in this thread.

    Args:
        net: the network, for the modules' names in messages.
        names_all: find the module of every operation, not only of those without a rule.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch would import its compiler, for half a second, to turn it off at each operation

    def __init__(self, net: nn.Module | None = None, *, names_all: bool = False) -> None:
        super().__init__()
        self.names_all = names_all
        self.ops: list[Op] = []
        self.keeps = True  # whether numbers are kept
        self.is_cut = False
        self._net = net
        self.left: dict[str, int] = {}  # functions that took numbers out of PyTorch, and at which operation
        self._token = object()
        # storage -> how often it was overwritten, what fills it now, and what keeps its address from being used again
        self._written: dict[int, tuple[int, Value | None, StorageWeakRef | None]] = {}
        self._kept: dict[int, list[Value]] = {}  # storage -> values whose numbers are in it
        self._readers: dict[int, list[Op]] = {}  # storage of a constant -> operations that have read it

    def __del__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Free what was kept."""
        for op in self.ops:  # values and operations refer to each other
            op.outs.clear()
            op.__dict__.clear()
        self.ops.clear()

    def start(self, tensor: Tensor) -> Value:
        """Make a tensor a signal."""
        value = Value(tensor)
        value.facts = Facts()
        self.keep(value)
        return self._is_now(tensor, value)

    def value_of(self, tensor: Any) -> Any:
        """The value of a tensor that depends on the input; anything else as it is."""
        if not isinstance(tensor, Tensor):
            return tensor
        token, value, version = getattr(tensor, _ATTRIBUTE, _CONSTANT)
        if token is not self._token:
            value, version = tensor, None
        now, whole, _ = self._writes_to(tensor)
        if whole is None or version == now:
            return value
        if (whole.shape, whole.stride) == (tensor.shape, tensor.stride()):
            return self._is_now(tensor, whole)
        return self._add("as_strided", aten.as_strided.default, (whole, *view_of(tensor)), {}, tensor).out

    def keep(self, value: Value) -> None:
        """Keep a value's numbers until the end."""
        if value.kept is None and (tensor := value.live()) is not None:
            value.kept = tensor.detach()  # which, unlike the tensor, does not lead back here
            self._kept.setdefault(storage_of(tensor), []).append(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, is_mutable, is_composite = described(func)
        if RECORD.get() is not self or name in _SHAPE_ONLY:
            return func(*args, **kwargs)
        values, named = changed(args, kwargs, self.value_of)
        if not any(type(a) is Value for a in flat((*values, *named.values()))):
            if is_mutable:
                self._copy_constants(args[0])
            return func(*args, **kwargs)
        if is_composite:  # in inference mode, and in what operations are spelled out in
            with self:
                return func.decompose(*args, **kwargs)
        if is_mutable and name.endswith("_"):
            return self._overwrite(name.removesuffix("_"), func, args, kwargs, values, named)
        if "out" in kwargs:
            raise EbcliError(f"{name} writes its result into out=, in place of what is there: assign it instead")
        parts = self._spelled_out(name, values, args, kwargs)
        result = func(*args, **kwargs)
        if name in _AFFINE and isinstance(result, Tensor):
            values, named = changed(values, named, lambda a: self._expanded(a, result.shape))
        if parts is not NotImplemented:
            self.equate(parts, result, is_gate=name in _GATES)
        elif isinstance(result, (Tensor, list, tuple)):  # and not a number
            self._add(name, func, values, named, result)
        return result

    def _spelled_out(self, name: str, values: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operation by others that equal it up to rounding, if it is explained as these."""
        if name not in RESPELLED or (name in SUMS and not isinstance(values[0], Value)):
            return NotImplemented
        with self:
            return RESPELLED[name](*args, **kwargs)

    def _expanded(self, value: Any, shape: torch.Size) -> Any:
        """The response of a layer as the neurons that a bias or a scale makes of it by broadcasting."""
        if not (isinstance(value, Value) and value.facts.is_open and value.shape != shape):
            return value
        tensor: Any = value.live()
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
                    out.facts.gate, out.facts.nonnegative, is_gate = Gate.SWITCH, True, False

    def copied(self, tensor: Tensor, value: Value) -> Value:
        """A value of its own for a tensor whose value is also elsewhere."""
        return self._add("alias", aten.alias.default, (value,), {}, tensor).out

    def call(self, name: str, compute: Any, function: Any, signals: Sequence[Tensor], rule: Any) -> Any:
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
        self._add(f"refused.{name}", None, values, {}, tuple(flat([result])))

    def _add(self, name: str, function: Any, args: Any, kwargs: Any, result: Any, rule: Any = None) -> Op:
        return self._made(ruled(name, function, args, kwargs, rule), result)

    def _made(self, op: Op, result: Any) -> Op:
        for at, tensor in enumerate((result,) if isinstance(result, Tensor) else result):
            if isinstance(tensor, Tensor):
                op.outs.append(self._is_now(tensor, Value(tensor, op, at)))
        for a in flat((*op.args, *op.kwargs.values())):
            if isinstance(a, Value):
                a.reads += 1
            elif isinstance(a, Tensor):
                self._readers.setdefault(storage_of(a), []).append(op)
        op.index = len(self.ops)
        self.ops.append(op)
        op.rule.learn(op)
        if self.names_all or op.rule is MISSING:
            module = caller(sys._getframe(2), "self", nn.Module)  # which needs no hooks
            op.site += f" in {self.names.get(module) or type(module).__name__}" if module is not None else ""
        if self.is_cut:
            op.is_cut, op.operands = True, []
        elif self.keeps:
            for value in op.rule.keeps(op):
                self.keep(value)
        return op

    @cached_property
    def names(self) -> dict[nn.Module, str]:
        """The names of the network's modules."""
        return {} if self._net is None else {module: name for name, module in self._net.named_modules()}

    def _overwrite(self, name: str, func: Any, args: Any, kwargs: Any, values: Any, named: Any) -> Any:
        """An operation in place is the same operation, whose result is a new value of the tensor."""
        target, old = args[0], values[0]
        if self.is_cut and isinstance(old, Value) and not (old.maker is not None and old.maker.is_cut):
            raise EbcliError(f"{name}_ changes a value in place under torch.no_grad(): make it out of place")
        if not isinstance(old, Value):  # a constant, which the result replaces
            values = target.clone(), *values[1:]
        parts = self._spelled_out(name, values, args, kwargs)
        op = ruled(name, self._out_of_place(name, func), values, named)
        needed = op.rule.keeps(op)
        for value in needed if self.keeps and parts is NotImplemented else ():
            self.keep(value)  # before the numbers are gone
        if isinstance(old, Value) and not old.reads and old.maker is not None and old not in needed:
            old.kept = None
        storage, size = storage_of(target), target.untyped_storage().nbytes() // target.element_size()
        self._save(storage)
        memory = self._memory(target, old, size) if target.numel() < size else None
        func(*args, **kwargs)
        if parts is not NotImplemented:
            op = ruled("same", aten.alias.default, (self.value_of(parts),), {})
        new = now = self._made(op, target).out
        if memory is not None:
            places = torch.arange(size, device=target.device).as_strided(*view_of(target))
            whole = target.as_strided((size,), (1,), 0)
            now = self._add("write", aten.index_put.default, (memory, [places], new), {}, whole).out
        self._written[storage] = self._writes_to(target)[0] + 1, now, StorageWeakRef(target.untyped_storage())
        self._is_now(target, new)
        return target

    def _out_of_place(self, name: str, func: Any) -> Any:
        overload = getattr(getattr(aten, name, None), func._overloadname, None) if func.namespace == "aten" else None
        if overload is not None and not overload._schema.is_mutable:
            return overload
        return lambda a, *rest, **named: func(a.clone(), *rest, **named)

    def _memory(self, view: Tensor, value: Any, size: int) -> Any:
        """What the memory of a view held, flat: a value or, if it was constant, a copy."""
        whole = view.as_strided((size,), (1,), 0)
        if (held := self._writes_to(view)[1]) is not None:
            value = held
        elif not isinstance(value, Value):
            return whole.clone()
        else:
            while value.shape.numel() < size and value.maker is not None and is_view(value.maker):
                value = value.maker.signal
            if value.shape.numel() < size:
                raise EbcliError("part of a tensor is overwritten whose other parts are unknown: write into a copy")
        return self._add("as_strided", aten.as_strided.default, (value, *view_of(whole)), {}, whole).out

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

        if self.keeps and isinstance(overwritten, Tensor):
            for op in self._readers.pop(storage_of(overwritten), ()):
                op.args, op.kwargs = changed(op.args, op.kwargs, copied)
                op.__dict__.pop("named", None)

    @property
    def overwritten(self) -> list[Tensor]:
        """The tensors that hold what overwritten memory holds."""
        return [tensor for _, whole, _ in self._written.values() if whole and (tensor := whole.live()) is not None]

    def renamed(self, tensor: Tensor, value: Value) -> Tensor:
        """A tensor that holds a value, too."""
        value.live = weakref.ref(tensor)
        self._is_now(tensor, value)
        return tensor

    def _writes_to(self, tensor: Tensor) -> tuple[int, Value | None, StorageWeakRef | None]:
        return self._written.get(storage_of(tensor), _AS_MADE) if self._written else _AS_MADE

    def _is_now(self, tensor: Tensor, value: Value) -> Value:
        setattr(tensor, _ATTRIBUTE, (self._token, value, self._writes_to(tensor)[0]))
        return value


@cache
def described(func: Any) -> tuple[str, bool, bool]:
    """An operation's name, whether it changes arguments, and whether it is made of others."""
    name = func._schema.name.removeprefix("aten::").replace("::", ".")
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return name, func._schema.is_mutable, is_composite


def ruled(name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any], rule: Any = None) -> Op:
    """An operation with its rule."""
    op = Op(name, function, args, kwargs)
    op.rule = rule or rule_of(op)
    op.operands = op.rule.operands(op)
    return op


def is_view(op: Op) -> bool:
    """Whether its result shares memory with its signal."""
    return op.name != "same" and getattr(op.function, "is_view", False)


def view_of(tensor: Tensor) -> tuple[Any, ...]:
    """What it shows of its memory, as arguments of `as_strided`."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def caller(frame: FrameType | None, name: str, kind: type) -> Any:
    """The innermost object of a kind that a function on the stack has by this name; None if there is none."""
    while frame is not None:
        found = frame.f_locals.get(name) if name in frame.f_code.co_varnames else None
        if isinstance(found, kind):
            return found
        frame = frame.f_back
    return None
