"""What a tape is made of: values, and the operations that made them."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.torch_private import OpOverload, count_modes, leave_modes, schema_of

aten = torch.ops.aten

AnyFunction = Callable[..., Any]
TensorFunction = Callable[[Tensor], Tensor]
Change = Callable[[Any], Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

Dims = Sequence[int]  # sizes, or axes
Tensors = Sequence[Tensor]

ACTIVE_TAPE: ContextVar[Any] = ContextVar("active_tape", default=None)  # of this thread: the innermost one


def same(a: Any) -> Any:
    return a


class quiet:  # noqa: N801  a context, in lower case as torch.no_grad
    """Hide operations, such as those of rules, from the tapes of this thread."""

    def __enter__(self) -> None:
        self._state = ThreadState()
        ACTIVE_TAPE.set(None)

    def __exit__(self, *error: object) -> None:
        try:
            self._state.restore()
        finally:
            self._state.restore()  # again, because the first may be interrupted


class ThreadState:
    """The tape and the modes of this thread, to come back to wherever what follows is interrupted."""

    def __init__(self) -> None:
        self._tape = ACTIVE_TAPE.get()
        self._num_modes = count_modes()

    def restore(self) -> None:
        leave_modes(*self._num_modes)
        ACTIVE_TAPE.set(self._tape)


class Value:
    """What a tensor held at one time. Its numbers are saved where a rule needs them, and otherwise computed again.

    Attributes:
        maker: the operation that made it; None for the input.
        position: which of the maker's results it is.
        facts: what its maker's rule knows of it, see `ebcli.eb.facts`.
        num_reads: how many operations read it.
        numbers: its numbers, or None.
        tensor_ref: a weak reference to the network's own tensor.
    """

    __slots__ = (
        "__weakref__",
        "device",
        "dtype",
        "facts",
        "is_floating",
        "maker",
        "num_reads",
        "numbers",
        "position",
        "shape",
        "stride",
        "tensor_ref",
    )

    def __init__(self, tensor: Tensor, maker: "Op | None" = None, position: int = 0) -> None:
        self.shape = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.is_floating = tensor.is_floating_point() or tensor.is_complex()
        self.tensor_ref = weakref.ref(tensor)
        self.maker = maker
        self.position = position
        self.num_reads = 0
        self.facts: Any = None
        self.numbers: Tensor | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def made_at(self) -> int:
        """The index of the operation that made it; -1 of the input."""
        if self.maker:
            return self.maker.index
        return -1

    @property
    def tensor(self) -> Tensor:
        """Its numbers."""
        if self.numbers is None:
            assert self.maker is not None
            result = self.pick(self.maker.run(*(value.tensor for value in self.maker.inputs)))
            if result.stride() != self.stride:
                result = self.empty().copy_(result)
            self.numbers = result
        return self.numbers

    def pick(self, result: Any) -> Tensor:
        """Its part of what its maker, run on other inputs, returned."""
        if isinstance(result, Tensor):
            return result
        return result[self.position]

    def empty(self, **options: Any) -> Tensor:
        """A tensor with its layout, and no numbers yet."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device, **options)

    def leaf(self, *, with_numbers: bool) -> Tensor:
        """A leaf of autograd with its layout."""
        if with_numbers and 0 in self.stride:  # copies share memory, which cannot be written to
            return self.tensor.detach().contiguous().requires_grad_()
        leaf = self.empty(requires_grad=True)
        if with_numbers:
            return leaf.copy_(self.tensor)
        return leaf


Values = Sequence[Value]


class Op:
    """An operation: a pure function of its inputs.

    Attributes:
        index: in the list.
        name: in ATen, without namespace, overload and the underscore of operations in place.
        args, kwargs: its arguments, with Values in the places of tensors that depend on the input.
        inputs: these Values.
        operands: the Values that its probability goes to: inputs, or what an activation is a function of.
        rule: how it shares probability, from the table of `ebcli.eb.rules`.
        outs: its results.
        is_cut: probability ends here, because the network computes it without gradients.
        site: its name and that of its module, for messages.
    """

    rule: Any

    def __init__(self, name: str, function: AnyFunction, args: Sequence[Any], kwargs: Kwargs) -> None:
        self.name = name
        self.function = function
        self.args = tuple(args)
        self.kwargs = kwargs
        self.inputs = [a for a in flatten_arguments(args, kwargs) if type(a) is Value]
        self.operands: Values = []
        self.outs: list[Value] = []
        self.index = 0
        self.is_cut = False
        self.site = name.rpartition(".")[2]

    def run(self, *inputs: Any, constant: Change = same) -> Any:
        """Its result for other inputs, and perhaps for other constants."""
        remaining = iter(inputs)

        def replace(a: Any) -> Any:
            if isinstance(a, Value):
                return next(remaining)
            return constant(a)

        args, kwargs = map_arguments(replace, self.args, self.kwargs)
        return self.function(*args, **kwargs)

    def run_floating(self, *floating: Tensor, constant: Change = same) -> Any:
        """Its result for other floating-point inputs, and perhaps for other constants."""
        remaining = iter(floating)
        inputs = [next(remaining) if v.is_floating else constant(v.tensor) for v in self.inputs]
        return self.run(*inputs, constant=constant)

    @cached_property
    def arguments(self) -> Kwargs:
        """Its arguments by the names that ATen gives them; none if it is no operation of ATen."""
        if not isinstance(self.function, OpOverload):
            return {}
        names, defaults = _signature(self.function)
        return defaults | dict(zip(names, self.args, strict=False)) | self.kwargs

    def numbers(self, *names: str) -> list[Any]:
        """Some of these, None if there are none of the name, with tensors in the places of Values."""
        arguments = [self.arguments.get(name) for name in names]
        return [a.tensor if isinstance(a, Value) else a for a in arguments]

    def memoize(self, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, which several passes share."""
        if "_cache" not in self.__dict__:
            self._cache = compute()
        return self._cache

    @property
    def is_native(self) -> bool:
        """Whether PyTorch's transforms of functions, such as vmap, know it."""
        return not isinstance(self.function, OpOverload) or self.function.namespace == "aten"

    @property
    def has_one_input(self) -> bool:
        return len(self.inputs) == 1

    @property
    def floating(self) -> Values:
        return [value for value in self.inputs if value.is_floating]

    @property
    def operand(self) -> Value:
        return self.operands[0]

    @property
    def signal(self) -> Value:
        return self.inputs[0]

    @property
    def out(self) -> Value:
        return self.outs[0]


@cache
def _signature(operator: OpOverload) -> tuple[list[str], Kwargs]:
    """The names of the arguments of an operation of ATen, and their defaults."""
    arguments = schema_of(operator).arguments
    return [a.name for a in arguments], {a.name: a.default_value for a in arguments if a.has_default_value()}


def flatten_arguments(args: Iterable[Any], kwargs: Kwargs | None = None) -> Iterator[Any]:
    """Arguments of an operation of ATen, which nests lists at most once."""
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, (list, tuple)):
            yield from a
        else:
            yield a


def map_arguments(change: Change, args: Iterable[Any], kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Arguments of an operation of ATen, each changed."""

    def apply(a: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return list(map(change, a))
        return change(a)

    return tuple(map(apply, args)), {name: apply(a) for name, a in kwargs.items()}


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The results of an operation that may have just one."""
    if isinstance(result, Tensor):
        return (result,)
    return tuple(result)


def flatten_all(tensors: Iterable[Tensor]) -> Tensor:
    """All elements of tensors, one after another."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def trailing_axes(tensor: Tensor, ndim: int) -> Tensor:
    """A tensor with more axes, of size 1, behind its own."""
    return tensor.reshape([*tensor.shape] + [1] * (ndim - tensor.ndim))


def split_like(flat: Tensor, likes: Sequence[Tensor | Value]) -> Tensors:
    """Elements that follow one another, in the shapes of several tensors."""
    parts = flat.split([like.shape.numel() for like in likes])
    return [part.view(like.shape) for part, like in zip(parts, likes, strict=True)]


def _next_nodes(node: Any) -> Iterable[Any]:
    return dict(node.next_functions)


def reachable(start: Iterable[Any], below: Callable[[Any], Iterable[Any]] = _next_nodes) -> Iterator[Any]:
    """The nodes at and below some others, each once; by default, those of autograd."""
    waiting = list(start)
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += below(node)
