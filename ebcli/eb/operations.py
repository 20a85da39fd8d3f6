"""What a record is made of: values, and the operations that made them."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
RECORD: ContextVar[Any] = ContextVar("record", default=None)  # that is being made in this thread: the innermost one
SUMS = frozenset(["addmm", "baddbmm", "addmv"])  # explained as others only if a signal is added, not a bias


class quiet:  # noqa: N801  a context, in lower case as torch.no_grad
    """Hide operations, such as those of rules, from the records of this thread."""

    def __enter__(self) -> None:
        self._before = RECORD.set(None)

    def __exit__(self, *error: object) -> None:
        RECORD.reset(self._before)


class Value:
    """What a tensor held at one time. Its numbers are kept where a rule needs them, and otherwise computed again.

    Attributes:
        maker: the operation that made it; None for the input.
        at: which of the maker's results it is.
        facts: what its maker's rule knows of it, see `ebcli.eb.facts`.
        reads: how many operations read it.
    """

    __slots__ = "__weakref__ at device dtype facts is_floating kept live maker reads shape stride".split()

    def __init__(self, tensor: Tensor, maker: "Op | None" = None, at: int = 0) -> None:
        self.shape, self.stride, self.dtype, self.device = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        self.is_floating, self.live = tensor.is_floating_point() or tensor.is_complex(), weakref.ref(tensor)
        self.maker, self.at, self.reads = maker, at, 0
        self.facts: Any = None
        self.kept: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """Its numbers."""
        if self.kept is None:
            assert self.maker is not None
            result = self.maker.at(*(value.tensor for value in self.maker.inputs))
            result = result if isinstance(result, Tensor) else result[self.at]
            self.kept = result if result.stride() == self.stride else self.empty().copy_(result)
        return self.kept

    def varies_along(self, axis: int) -> bool:
        """Whether its elements along an axis are not copies of one."""
        return self.shape[axis] > 1 and self.stride[axis] != 0

    @property
    def distinct(self) -> int:
        """The number of elements, without the copies that broadcasting made."""
        return math.prod(n for n, step in zip(self.shape, self.stride, strict=True) if step or n < 2)

    def empty(self, **options: Any) -> Tensor:
        """A tensor with its layout, and no numbers yet."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device, **options)

    def leaf(self, *, with_numbers: bool) -> Tensor:
        """A leaf of autograd with its layout."""
        leaf = self.empty(requires_grad=True)
        return leaf.copy_(self.tensor) if with_numbers else leaf


class Op:
    """An operation: a pure function of its inputs.

    Attributes:
        index: in the list.
        name: in ATen, without namespace, overload and the underscore of operations in place.
        args, kwargs: its arguments, with Values in the places of tensors that depend on the input.
        inputs: these Values.
        operands: the Values that its probability goes to: inputs, or what an activation is a function of.
        rule: how it shares probability, an entry of `ebcli.eb.rules`.
        outs: its results.
        is_cut: probability ends here, because the network computes it without gradients.
        site: its name and that of its module, for messages.
    """

    rule: Any

    def __init__(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.name, self.function, self.args, self.kwargs = name, function, tuple(args), kwargs
        self.inputs = [a for a in flat((*args, *kwargs.values())) if type(a) is Value]
        self.operands: list[Value] = []
        self.outs: list[Value] = []
        self.index, self.is_cut, self.site = 0, False, name.rpartition(".")[2]

    def at(self, *inputs: Any, constant: Callable[[Any], Any] = lambda a: a) -> Any:
        """Its result for other inputs, and perhaps for other constants."""
        rest = iter(inputs)
        args, kwargs = changed(self.args, self.kwargs, lambda a: next(rest) if isinstance(a, Value) else constant(a))
        return self.function(*args, **kwargs)

    def of(self, *floating: Tensor, constant: Callable[[Any], Any] = lambda a: a) -> Any:
        """Its result for other floating-point inputs, and perhaps for other constants."""
        rest = iter(floating)
        return self.at(*(next(rest) if v.is_floating else v.tensor for v in self.inputs), constant=constant)

    @cached_property
    def named(self) -> dict[str, Any]:
        """Its arguments by the names that ATen gives them."""
        names, defaults = _signature(self.function)
        return defaults | dict(zip(names, self.args, strict=False)) | self.kwargs

    def numbers(self, *names: str) -> list[Any]:
        """Some of these, None if there are none of the name, with tensors in the places of Values."""
        return [a.tensor if isinstance(a := self.named.get(name), Value) else a for name in names]

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


@cache
def _signature(function: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of the arguments of an operation of ATen, and their defaults."""
    arguments = function._schema.arguments
    return [a.name for a in arguments], {a.name: a.default_value for a in arguments if a.has_default_value()}


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments of an operation of ATen, which nests lists at most once."""
    for a in arguments:
        if isinstance(a, (list, tuple)):
            yield from a
        else:
            yield a


def changed(args: Iterable[Any], kwargs: dict[str, Any], change: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments of an operation of ATen, each changed."""

    def of(a: Any) -> Any:
        return list(map(change, a)) if isinstance(a, (list, tuple)) else change(a)

    return tuple(map(of, args)), {name: of(a) for name, a in kwargs.items()}


def reachable(start: Iterable[Any], below: Callable[[Any], Any] = lambda at: dict(at.next_functions)) -> Iterator[Any]:
    """The nodes at and below some others, each once; by default, those of autograd."""
    waiting, seen = list(start), {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += below(node)
