"""Where the elements of values come from: which image of the batch, or which cell of a grid.

Each index along one axis of a source gets a mark, and operations move marks as they move values. Those that only move
elements are run on the marks themselves; the others say in `Rule.places` which elements they take together. So no
operation's name has to be known here.

Marks have the number of axes of their value, and size 1 along axes where they do not vary, so they take hardly any
memory. Elements that do not come from the source have the mark 0. Of elements that are taken together, the marks are
averaged: as marks are random, an average is equal to a mark only if all of them are.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from math import inf, prod

import torch
from torch import Tensor

from ebcli.eb.operations import Dims, Op, Tensors, Value, as_tuple, flatten_all, reachable, trailing_axes

Marks = list[Tensor]  # of each result of an operation

_FIRST = 2.0**20  # marks are above it by less than 1, where no network's own constants are
_PRECISION = 1e-8  # of an average of marks
ONE_MARK = torch.tensor(_FIRST + 0.5, dtype=torch.float64, device="cpu")


class Places:
    """Marks along an axis of a value, and of what is made of it. They are found when they are asked for.

    Args:
        source: the value.
        axis: of it.
        windows_mix: whether a window, such as that of a convolution, mixes what it reads. Otherwise, the result of a
            window belongs to the element at its center, as a cell of a grid does.
    """

    def __init__(self, source: Value, axis: int, *, windows_mix: bool = False) -> None:
        self.source = source
        self.count = source.shape[axis]
        self._windows_mix = windows_mix
        generator = torch.Generator("cpu").manual_seed(0)
        self._names = (
            _FIRST
            + torch.rand(self.count, generator=generator, dtype=torch.float64, device="cpu").sort().values
        )
        shape = [1] * source.ndim
        shape[axis] = self.count
        self._marks: dict[Value, Tensor | None] = {source: self._names.reshape(shape)}

    def marks_of(self, value: Value) -> Tensor:
        """The marks of a value."""
        if value not in self._marks:
            for op in sorted(reachable([value.maker], self._makers_below), key=lambda op: op.index):
                has_marks = any(self._marks.get(operand) is not None for operand in op.operands)
                of_outs = self.marks_after(op) if has_marks else repeat(None)
                for out, of_out in zip(op.outs, of_outs, strict=False):
                    self._marks.setdefault(out, of_out)
        marks = self._marks.get(value)
        if marks is None:
            return torch.zeros([1] * value.ndim, dtype=torch.float64, device="cpu")
        return marks

    def marks_after(self, op: Op) -> Iterable[Tensor | None]:
        """The marks of an operation's results; None of one that has none."""
        return op.rule.places(op, self)

    def _makers_below(self, op: Op) -> list[Op | None]:
        if op.index <= self.source.made_at:
            return []
        return [value.maker for value in op.operands if value not in self._marks]

    def merge(self, op: Op, *marks: Tensor) -> Marks:
        """Of an elementwise function of the operands, or of what has other marks."""
        first, *remaining = marks or map(self.marks_of, op.operands)
        total = _in_front(first, op.out.ndim)
        for t in remaining:
            if t is not first:
                total = _average(total, _in_front(t, op.out.ndim))
        return [total]

    def merge_along(self, marks: Tensor, axes: Iterable[int]) -> Tensor:
        """Of elements that are made of all along some axes."""
        varying = [axis for axis in axes if marks.shape[axis] > 1]
        if not varying:
            return marks
        return marks.sum(varying, keepdim=True) / (marks != 0).sum(varying, keepdim=True).clamp(min=1)

    def reduce(self, op: Op, signal: Value, axes: Dims, windows: Iterable[int] = ()) -> Marks:
        """Of what takes together all along some axes of a signal, which the result may lack, and windows along others.

        Args:
            op: the operation.
            signal: one of its operands.
            axes, windows: axes of the signal, perhaps counted from the last one.
        """
        marks = self.merge_along(self.marks_of(signal), axes)
        for axis in windows:
            marks = self._resize(marks, axis % signal.ndim, op.out.shape)
        if op.out.ndim < signal.ndim:
            marks = marks.squeeze([axis % signal.ndim for axis in axes])
        return [trailing_axes(marks, op.out.ndim)] * len(op.outs)

    def _resize(self, marks: Tensor, axis: int, shape: Dims) -> Tensor:
        size = marks.shape[axis]
        if self._windows_mix or size == 1:
            return self.merge_along(marks, [axis])
        return marks.index_select(axis, torch.arange(shape[axis], device="cpu") * size // max(shape[axis], 1))

    def everything(self, op: Op) -> Marks:
        """Of results that may depend on each element of all operands."""
        total = self.merge_along(flatten_all(map(self.marks_of, op.operands)), [0])
        return [total.reshape([1] * out.ndim) for out in op.outs]

    def move(self, op: Op) -> Marks:
        """Of what only moves elements."""
        try:
            return move_marks(op, [self.marks_of(value) for value in op.floating])
        except (RuntimeError, IndexError):
            return self.everything(
                op
            )  # it does not run on marks alone, such as a view of numbers of another type

    def sum_up(self, op: Op) -> Marks:
        """Of a sum over indices, which is run on marks: the average of those that it adds."""
        marks = [self.marks_of(value) for value in op.floating]
        try:
            (total,) = move_marks(op, marks)
            (count,) = move_marks(op, [(t != 0).double() for t in marks])
        except (RuntimeError, IndexError):
            return self.everything(op)
        return [total / count.clamp(min=1)]

    def weigh(self, op: Op, apply: Callable[[Tensor], Tensor]) -> Marks:
        """Of a sum with weights that are not negative, which is run on marks: their weighted average."""
        marks = self.marks_of(op.operand).expand(op.operand.shape)
        try:
            total, weight = apply(marks), apply((marks != 0).double())
        except (RuntimeError, TypeError, ValueError):  # it does not run in double precision
            return self.everything(op)
        return [_thin((total / weight).nan_to_num(0.0))]

    def differ(self, value: Value, axes: Iterable[int]) -> bool:
        """Whether elements along some axes of a value come from different indices."""
        marks = self.marks_of(value)
        if not marks.numel():
            return False
        lowest = marks.where(marks != 0, inf)
        return any(bool((marks.amax(axis) - lowest.amin(axis) > _PRECISION).any()) for axis in axes)

    def indices(self, marks: Tensor) -> Tensor | None:
        """The index that each element comes from; None if some elements come from several, or from none."""
        indices = torch.searchsorted(self._names, (marks - _PRECISION).contiguous()).clamp(max=self.count - 1)
        is_exact = (self._names[indices] - marks).abs() < _PRECISION
        if bool(is_exact.all()):
            return indices
        return None


class Images(Places):
    """Which image of a batch each element comes from.

    Attributes:
        is_single: only one image has anything.

    Args:
        source: the network's input.
        others: other inputs. Those that have as many rows have one for each image, too.
    """

    def __init__(self, source: Value, others: Sequence[Value] = ()) -> None:
        super().__init__(source, 0, windows_mix=True)
        for other in others:
            if other.shape[:1] == source.shape[:1]:
                self._marks[other] = self._names.reshape([-1] + [1] * (other.ndim - 1))
        self.is_single = self.count == 1
        self._numbers: dict[Value, Tensor | None] = {}

    def as_single(self) -> "Images":
        """The same, where only one image has anything."""
        single = copy.copy(self)
        single.is_single = True
        return single

    def numbers(self, value: Value) -> Tensor | None:
        """The image of each element, of a shape that broadcasts; None if some elements come from several."""
        if value not in self._numbers:
            axes = {*range(value.ndim)}
            # constants, such as a class token, are of the image whose elements they stand beside
            choices = [*(axes - {axis} for axis in range(value.ndim)), set[int]()]
            numbers = (self.indices(self.merge_along(self.marks_of(value), merged)) for merged in choices)
            self._numbers[value] = next((indices for indices in numbers if indices is not None), None)
        return self._numbers[value]

    def are_apart(self, output: Value, values: Iterable[Value]) -> bool:
        """Whether each image makes its own row of the output, and its own elements of some values."""
        if self.is_single:
            return True
        rows = self.numbers(output)
        if rows is None or len(rows) != self.count or rows.flatten().tolist() != [*range(self.count)]:
            return False
        return all(self.numbers(value) is not None for value in values)

    def axis(self, value: Value) -> int | None:
        """The axis of a value that the images are on; None if there is none."""
        axes = (
            axis for shape in self._shapes(value) for axis, size in enumerate(shape) if size == self.count
        )
        return next(axes, None)

    def _shapes(self, value: Value) -> list[Dims]:
        """The shapes that tell the axis of images, the clearest first."""
        if self.count == 1:
            return [value.shape]  # axes of size 1 are all alike
        numbers = self.numbers(value)
        if numbers is None:  # images are mixed
            marks = self.marks_of(value)
            if sum(size > 1 for size in marks.shape) > 1:
                return []
            return [marks.shape, value.shape]
        return [numbers.shape]

    def sums(self, z: Tensor, value: Value) -> Tensor:
        """The sum (count,) of the elements of each image."""
        if self.is_single:
            return z.sum(dtype=torch.float64)[None].to(z.dtype)
        numbers = self.numbers(value)
        assert numbers is not None
        remaining = [axis for axis, size in enumerate(numbers.shape) if size == 1]
        sums = z.sum(remaining, keepdim=True, dtype=torch.float64) if remaining else z.double()
        images = numbers.expand(sums.shape).flatten().to(z.device)
        return sums.new_zeros(self.count).index_add(0, images, sums.flatten()).to(z.dtype)

    def spread(self, totals: Tensor, value: Value) -> Tensor:
        """One number (count,) for each image, at each of its elements."""
        if self.is_single:
            return totals
        numbers = self.numbers(value)
        assert numbers is not None
        return totals[numbers.to(totals.device)]


def move_marks(op: Op, marks: Tensors) -> Marks:
    """Run an operation that only moves elements on marks of its floating-point inputs.

    Raises RuntimeError or IndexError if it cannot be run on them.
    """
    fixed_axes = _fixed_axes(op, marks)

    def constant(a: object) -> object:
        if not isinstance(a, Tensor):
            return a
        if not a.is_floating_point():
            return a.cpu()
        return torch.zeros((), dtype=torch.float64, device="cpu").expand(_narrow(a.shape, fixed_axes))

    def spread(t: Tensor, value: Value) -> Tensor:
        t = t.expand(_narrow(value.shape, fixed_axes))
        # in memory like that of the value, for an operation that reads the memory
        if op.rule.reads_memory:
            return torch.empty_strided(value.shape, value.stride, dtype=t.dtype).copy_(t)
        return t

    results = map(_thin, as_tuple(op.run_floating(*map(spread, marks, op.floating), constant=constant)))
    if not op.rule.joins:
        return [*results]
    return [t.where((t >= _FIRST) & (t < _FIRST + 1), 0) for t in results]


def reshape_marks(marks: Tensor, shape: Dims, new_shape: Dims) -> Tensor:
    """Marks of elements in their order, in another shape.

    Args:
        marks: of a value.
        shape: of the value.
        new_shape: of the same elements.
    """
    if 0 in shape:
        return marks.new_zeros([1] * len(new_shape))
    # the last axes of both shapes that have equally many elements, among which marks do not vary
    varying = max((axis for axis, size in enumerate(marks.shape) if size > 1), default=-1)
    ends = {prod(shape[axis:]): axis for axis in range(varying + 1, len(shape) + 1)}
    sizes = [prod(new_shape[axis:]) for axis in range(len(new_shape) + 1)]
    new_end = next(axis for axis, size in enumerate(sizes) if size in ends)
    end = ends[sizes[new_end]]
    wide = marks.reshape(marks.shape[:end]).expand(shape[:end]).reshape(new_shape[:new_end])
    return trailing_axes(_thin(wide), len(new_shape))


def _fixed_axes(op: Op, marks: Tensors) -> list[int]:
    """Axes, counted from the last, that an operation leaves as they are, and along which no marks vary."""
    ndim = marks[0].ndim
    touched_axes = op.rule.touched_axes(op)
    if touched_axes is None or any(t.ndim != ndim for t in marks):
        return []
    fixed_axes = {*range(-ndim, 0)} - {axis % ndim - ndim for axis in touched_axes}
    return [axis for axis in fixed_axes if all(t.shape[axis] == 1 for t in marks)]


def _narrow(shape: Dims, fixed_axes: Dims) -> list[int]:
    """A shape with one element along some axes, counted from the last."""
    return [min(size, 1) if axis - len(shape) in fixed_axes else size for axis, size in enumerate(shape)]


def _thin(marks: Tensor) -> Tensor:
    """Marks with one element along axes where all are alike."""
    size = marks.numel()
    for axis, step in enumerate(marks.stride()):
        if step == 0 and marks.shape[axis] > 1:  # known without looking
            marks = marks.narrow(axis, 0, 1)
    for axis in range(marks.ndim):
        first = marks.narrow(axis, 0, min(1, marks.shape[axis]))
        if marks.shape[axis] > 1 and bool((marks == first).all()):
            marks = first
    return marks.clone() if marks.numel() < size else marks  # which does not hold the memory of all


def _in_front(marks: Tensor, ndim: int) -> Tensor:
    """Marks with more axes in front."""
    return marks.reshape([1] * (ndim - marks.ndim) + [*marks.shape])


def _average(a: Tensor, b: Tensor) -> Tensor:
    """The marks of elements that are made of two others."""
    return torch.where(a == 0, b, torch.where(b == 0, a, (a + b) / 2))
