"""Where the elements of one axis, such as the images, are in later values: followed along the list, never guessed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from benchmarks.engine.operations import Op, Value
from benchmarks.engine.rules.averages import reduced_axes
from benchmarks.engine.rules.rule import Join, Rule

GONE = -1
_ALONG = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}  # where the argument is that names the axes
_UNTOLD = frozenset([*_ALONG, "index", "take", "masked_select", "as_strided", "sort", "topk"])
_FLAT = frozenset(["view", "_unsafe_view", "unsqueeze", "squeeze", "flatten"])


class Places:
    """The place of each element along one axis of a value.

    It is told by a stride: element i of a value, in their order, is at i // stride % count.

    Attributes:
        is_one: there is only one, which all elements belong to.

    Args:
        source: the value.
        axis: of it, not negative.
        ops: the list.
    """

    def __init__(self, source: Value, axis: int, ops: Iterable[Op]) -> None:
        self.source, self.count, self.is_one = source, source.shape[axis], False
        self._strides: dict[Value, int | None] = {source: source.shape[axis + 1 :].numel()}
        for op in ops:
            of = [v for v in op.inputs if v in self._strides]
            of = [v for v in of if v.is_floating] or of
            for out in op.outs if of else ():
                strides = {self._moved(op, v, out) for v in of}
                strides = strides - {GONE} or strides  # gone from some, it is in the others
                self._strides[out] = strides.pop() if len(strides) == 1 else None

    def _moved(self, op: Op, of: Value, out: Value) -> int | None:
        """The stride in a result, by that in an input; None if it is unknown."""
        stride = self._strides[of]
        if stride is None or stride == GONE or op.name in _FLAT:
            return stride
        found = self._located(of)
        if found is not None and op.name in ("read", "write", "as_strided"):
            return _through_memory(op, of, *found)
        moved = found and axis_of_result(op, found[0], len(of.shape), len(out.shape))
        if found is None or moved is None or moved == GONE:
            return moved
        if out.shape[moved] != of.shape[found[0]]:
            return GONE if out.shape[moved] == 1 else None
        return found[1] * out.shape[moved + 1 :].numel()

    def _located(self, value: Value) -> tuple[int, int] | None:
        """The axis of a value that the places are on, and their stride along it; None if they are spread over some."""
        found, stride = None, self._strides[value]
        for axis, size in enumerate(value.shape):
            below = value.shape[axis + 1 :].numel()
            if stride is not None and below and stride % below == 0 and size % (inner := stride // below or 1) == 0:
                if size == inner * self.count:
                    return axis, inner
                found = found or ((axis, inner) if size % (inner * self.count) == 0 else None)
        return found

    def alone(self) -> Places:
        """The same places, where only one has anything."""
        one = copy.copy(self)
        one.is_one = True
        return one

    def tell(self, value: Value) -> bool:
        """Whether the places in a value are known."""
        return self._strides[value] not in (None, GONE)

    def meets(self, value: Value, axes: Iterable[int]) -> bool:
        """Whether some of these axes of a value have elements of different places, as far as is known."""
        stride = self._strides.get(value)
        if stride is None or stride == GONE:
            return stride is None
        extents = ((value.shape[axis + 1 :].numel(), value.shape[axis]) for axis in axes)
        return any(size > 1 and below < stride * self.count and below * size > stride for below, size in extents)

    def axis(self, value: Value) -> int | None:
        """The axis of a value that has the places alone; None if none has."""
        found = self._located(value) if self._strides[value] != GONE else None
        return found[0] if found is not None and value.shape[found[0]] == self.count else None

    def of(self, value: Value) -> Tensor:
        """The place of each element."""
        numbers = torch.arange(value.shape.numel(), device=value.device) // max(self._strides[value] or 1, 1)
        return (numbers % self.count).reshape(value.shape)

    def sums(self, z: Tensor, value: Value) -> Tensor:
        """The sum (count,) of the elements of each place."""
        axis = self.axis(value)
        if self.is_one:
            return z.sum(dtype=torch.float64).to(z.dtype)[None]
        if axis is not None:
            return z.movedim(axis, 0).flatten(1).sum(1, dtype=torch.float64).to(z.dtype)
        return z.new_zeros(self.count).index_add(0, self.of(value).flatten(), z.flatten())

    def spread(self, total: Tensor, value: Value) -> Tensor:
        """One number (count,) for each place, at each element."""
        axis = self.axis(value)
        if self.is_one:
            return total
        if axis is None:
            return total[self.of(value)]
        return total.reshape([-1 if a == axis else 1 for a in range(len(value.shape))])


def _through_memory(op: Op, of: Value, axis: int, inner: int) -> int | None:
    """The stride in what a view shows, or in memory that was written to."""
    if op.name == "as_strided":
        steps, (size, seen) = of.stride, op.args[1:3]
    else:
        (_, steps, _), (size, seen, _) = op.function.layout, op.function.view
        steps = steps if op.args[0] is of else seen
    stride = steps[axis] * inner
    if op.name == "write":
        return stride
    return next((math.prod(size[a + 1 :]) for a, n in enumerate(size) if seen[a] == stride and n > 1), None)


def axis_of_result(op: Op, axis: int, ndim: int, out_ndim: int) -> int | None:  # noqa: PLR0911  a case an operation
    """Where an input's axis is in the result; GONE if it is not there, None if that is unknown."""
    name = op.name
    if name == "permute":
        return [a % ndim for a in op.args[1]].index(axis)
    if name in ("transpose", "t"):
        i, j = (a % ndim for a in (op.args[1:3] if name == "transpose" else (0, ndim - 1)))
        return j if axis == i else i if axis == j else axis
    if name in ("stack", "select", "unbind"):
        at = (op.args[1] if len(op.args) > 1 else 0) % (out_ndim if name == "stack" else ndim)
        return axis + (at <= axis) if name == "stack" else None if at == axis else axis - (at < axis)
    if name in ("mv", "im2col", "col2im", "unfold"):
        stays = axis == 0 if name != "unfold" else axis != op.args[1] % ndim
        return axis if stays else None
    if type(op.rule) in (Rule, Join) and out_ndim != ndim and name != "expand":
        return None
    if out_ndim < ndim:  # a reduction
        reduced = {a + ndim for a in reduced_axes(op)}
        if len(reduced) != ndim - out_ndim:
            return None
        return GONE if axis in reduced else axis - sum(a < axis for a in reduced)
    if name in _UNTOLD:
        along = op.args[_ALONG[name]] if name in _ALONG and len(op.args) > _ALONG[name] else axis
        if axis in {a % ndim for a in ([along] if isinstance(along, int) else along)}:
            return None
    return axis + out_ndim - ndim
