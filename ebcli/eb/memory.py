"""Which value fills which memory: views that are written to, and numbers that are saved in memory of the network."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from ebcli.eb.operations import Args, Op, Value, flatten_arguments, map_arguments
from ebcli.eb.torch_private import StorageWeakRef, storage_of


class Contents(NamedTuple):
    """What memory holds.

    Attributes:
        version: how often it was overwritten.
        filling: the value that fills it, flat or as the tensor that it was made for; None if it was never overwritten.
        keeper: keeps the memory's address from being used again.
    """

    version: int = 0
    filling: Value | None = None
    keeper: StorageWeakRef | None = None


_AS_MADE = Contents()


class Memory:
    """The memory that the tensors of a forward pass lie in."""

    def __init__(self) -> None:
        self._contents: dict[int, Contents] = {}
        self._values: dict[int, list[Value]] = {}  # values whose numbers lie there
        self._readers: dict[int, list[Op]] = {}  # operations that have read a constant there

    def contents(self, tensor: Tensor) -> Contents:
        """What the memory of a tensor holds."""
        if self._contents:
            return self._contents.get(storage_of(tensor), _AS_MADE)
        return _AS_MADE

    def overwritten(self) -> Iterator[Tensor]:
        """The tensors that hold what fills overwritten memory."""
        for contents in self._contents.values():
            if contents.filling is not None:
                tensor = contents.filling.tensor_ref()
                if tensor is not None:
                    yield tensor

    def save(self, value: Value) -> None:
        """Keep a value's numbers until the end."""
        if value.numbers is None and (tensor := value.tensor_ref()) is not None:
            value.numbers = tensor.detach()  # which, unlike the tensor, does not lead back to the tape
            self._values.setdefault(storage_of(tensor), []).append(value)

    def note_constants(self, op: Op) -> None:
        """Note which constants an operation has read."""
        for a in flatten_arguments(op.args, op.kwargs):
            if isinstance(a, Tensor):
                self._readers.setdefault(storage_of(a), []).append(op)

    def write(self, tensor: Tensor, filling: Value) -> None:
        """Note that a value fills the memory of a tensor from now on."""
        version = self.contents(tensor).version + 1
        self._contents[storage_of(tensor)] = Contents(
            version, filling, StorageWeakRef(tensor.untyped_storage())
        )

    def before_write(self, tensor: Tensor) -> None:
        """Copy the numbers of values that lie in memory which is about to be overwritten."""
        storage = storage_of(tensor)
        memory = None
        for value in self._values.pop(storage, ()):
            numbers = value.numbers
            if numbers is None or storage_of(numbers) != storage:
                continue
            if memory is None:
                memory = numbers.new_empty(0).set_(numbers.untyped_storage()).clone()
            value.numbers = memory.as_strided(numbers.shape, numbers.stride(), numbers.storage_offset())

    def copy_constants(self, overwritten: Any) -> None:
        """Copy constants that recorded operations have read, and that are about to be overwritten."""

        def copy(a: Any) -> Any:
            if isinstance(a, Tensor) and storage_of(a) == storage_of(overwritten):
                return a.clone()
            return a

        if isinstance(overwritten, Tensor):
            for op in self._readers.pop(storage_of(overwritten), ()):
                op.args, op.kwargs = map_arguments(copy, op.args, op.kwargs)
                op.__dict__.pop("arguments", None)


def view_of(tensor: Tensor) -> Args:
    """What a tensor shows of its memory, as arguments of `as_strided`."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()
