"""What is asked of the whole list: what lies between output and layer, which rule explains it, and whose images."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value, reachable
from ebcli.eb.rules.activations import Activation
from ebcli.eb.rules.layers import Layer, reduced_axes
from ebcli.eb.rules.rule import MISSING, Join, Rule, Winner

Arrivals = dict[Value, list[Any]]
Answer = Callable[[Op, list[list[Any]]], list[list[Any]]]
UNKNOWN = -1
_ALONG = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}  # where the argument is that names the axes
_UNTOLD = frozenset([*_ALONG, "index", "take", "masked_select", "as_strided", "sort", "topk"])
_FLAT = frozenset(["view", "_unsafe_view", "unsqueeze", "squeeze", "flatten"])


def walk(start: Arrivals, ops: Iterable[Op], answer: Answer, wanted: Iterable[Value]) -> Arrivals:
    """What arrives at the wanted values, and at values that none of the operations made.

    Args:
        start: values, and what is there.
        ops: the operations to take, latest first.
        answer: what each operand of an operation gets, from what has arrived at each result.
        wanted: values.
    """
    arrived, wanted = dict(start), set(wanted)
    for op in ops:
        messages = [(arrived.get if out in wanted else arrived.pop)(out, []) for out in op.outs]
        if op.operands and any(messages):
            for value, more in zip(op.operands, answer(op, messages), strict=True):
                if more:
                    arrived[value] = [*arrived.get(value, ()), *more]
    return arrived


def latest_first(ops: Iterable[Op]) -> list[Op]:
    """Operations in the order of a walk, each once."""
    return sorted(set(ops), key=lambda op: -op.index)


def descend(start: Iterable[Value], stops: Callable[[Op], bool] = lambda _: False) -> list[Op]:
    """The operations that probability passes on its way down, latest first; nothing below those that it stops at."""
    makers = (value.maker for value in start)
    return latest_first(reachable(makers, lambda op: () if stops(op) else (value.maker for value in op.operands)))


def without_rule(ops: Sequence[Op]) -> list[str]:
    """The names of operations without a rule, earliest first."""
    return [op.site for op in reversed(ops) if op.rule is MISSING]


def is_learned(op: Op) -> bool:
    """Whether it is a layer with weights."""
    return isinstance(op.rule, Layer) and op.rule.is_learned


class Path:
    """What lies between the output and a layer.

    Args:
        output: the logits' value.
        layer: the layer's value.

    Attributes:
        ops: the operations from which probability can arrive there, latest first.
        classifiers: the layers with weights that probability reaches first on its way down from the output.
    """

    def __init__(self, output: Value, layer: Value) -> None:
        above, self.layer, self.ops = {layer}, layer, list[Op]()
        for op in reversed(descend([output])):
            if not above.isdisjoint(op.operands):
                above.update(op.outs)
                self.ops.insert(0, op)
        self.classifiers = [op for op in descend([output], is_learned) if is_learned(op)]

    def explains_jointly(self, ops: Sequence[Op]) -> bool:
        """Whether the joint rule holds for the layer.

        It does where activations that can have values of both signs are between the layer and the classifier. It does
        not where attention mixes cells that the classifier averages, because there the average assigns probability to
        places, which is more exact step by step (Swin). Where the classifier reads a class token, attention does.
        """
        inputs = [value for op in self.classifiers for value in op.operands]
        between = set(self.ops).intersection(descend(inputs))
        if not any(isinstance(op.rule, Activation) and not op.out.facts.nonnegative for op in between):
            return False
        mixing = {op for op in between if mixes(op)}
        reached = between.intersection(descend(inputs, mixing.__contains__)) - mixing
        averages = [op for op in reached if isinstance(op.rule, Layer) and op.rule.averages(op)]
        pairs = ((op, average) for average in averages for op in mixing.intersection(descend(average.operands)))
        return not any(averages_cells(op, average, ops) for op, average in pairs)


def mixes(op: Op) -> bool:
    """Whether it mixes cells by weights that depend on the image, as attention does."""
    return any(out.facts.mixtures > max(value.facts.mixtures for value in op.inputs) for out in op.outs)


def averages_cells(mixing: Op, average: Op, ops: Sequence[Op]) -> bool:
    """Whether an average adds up cells of those that an earlier operation mixed, and not channels or branches."""
    signal, out = average.operands[0], average.out.shape
    if average.name in ("sum", "mean"):
        reduced = {axis + len(signal.shape) for axis in reduced_axes(average)}
    else:
        reduced = {axis for axis, size in enumerate(signal.shape) if out[axis : axis + 1] != (size,)}
    return any(Places(mixing.out, axis, ops).meets(signal, reduced) for axis in query_axes(mixing))


def query_axes(mixing: Op) -> set[int]:
    """The axes of an operation's result along which its attention weights vary."""
    ndim = len(mixing.out.shape)
    if mixing.name == "sum":
        of, reduced = len(mixing.signal.shape), reduced_axes(mixing)
        kept = range(-of, 0) if of == ndim else [axis for axis in range(-of, 0) if axis not in reduced]
        return {at for at, axis in enumerate(kept) if axis in mixing.signal.facts.weighed - reduced}
    if mixing.name.startswith("grid_sampler"):
        return {*range(2, ndim)}
    is_right = mixing.name in ("mm", "bmm", "baddbmm") and mixing.operands[0] is mixing.inputs[0]
    return {ndim - 1 - (not is_right)}


class Places:
    """The place of each element along one axis of a value.

    It is told by a stride: element i of a value, in their order, is at i // stride % count.

    Attributes:
        is_one: all elements belong to the same place.

    Args:
        source: the value.
        axis: of it, not negative.
        ops: the list.
    """

    def __init__(self, source: Value, axis: int, ops: Iterable[Op]) -> None:
        self.source, self.count, self.is_one = source, source.shape[axis], source.shape[axis] == 1
        self._strides = {source: source.shape[axis + 1 :].numel()}  # of the values that the axis is in
        for op in ops:
            of = [v for v in op.inputs if v in self._strides]
            of = [v for v in of if v.is_floating] or of
            for out in [out for out in op.outs if out.reads] if of else ():
                strides = {self._moved(op, v, out) for v in of} - {None}
                if strides:
                    self._strides[out] = strides.pop() if len(strides) == 1 else UNKNOWN

    def _moved(self, op: Op, of: Value, out: Value) -> Any:
        """The stride in a result, by that in an input; None if the axis is not in it."""
        if op.name in _FLAT or (out.shape == of.shape and not moves(op)):
            return self._strides[of]
        found = self._located(of)
        if found is None:
            return UNKNOWN
        if op.name in ("write", "as_strided"):
            return _through_memory(op, of, *found)
        moved = axis_of_result(op, found[0], len(of.shape), len(out.shape))
        if moved is None or moved == UNKNOWN:
            return moved
        if out.shape[moved] != of.shape[found[0]]:
            return None if out.shape[moved] == 1 else UNKNOWN
        return found[1] * out.shape[moved + 1 :].numel()

    def _located(self, value: Value) -> tuple[int, int] | None:
        """The axis of a value that the places are on, and their stride along it; None if they are spread over some."""
        found, stride = None, self._strides.get(value, UNKNOWN)
        for axis, size in enumerate(value.shape):
            below = value.shape[axis + 1 :].numel()
            if stride > 0 and below and stride % below == 0 and size % (inner := stride // below or 1) == 0:
                if size == inner * self.count:
                    return axis, inner
                found = found or ((axis, inner) if size % (inner * self.count) == 0 else None)
        return found

    def alone(self) -> "Places":
        """The same places, where only one has anything."""
        one = copy.copy(self)
        one.is_one = True
        return one

    def meets(self, value: Value, axes: Iterable[int]) -> bool:
        """Whether some of these axes of a value have elements of different places, as far as is known."""
        stride = self._strides.get(value, 0)
        extents = ((value.shape[axis + 1 :].numel(), value.shape[axis]) for axis in axes)
        return stride == UNKNOWN or any(n > 1 and d < stride * self.count and d * n > stride for d, n in extents)

    def axis(self, value: Value) -> int | None:
        """The axis of a value that has the places alone; None if none has."""
        found = self._located(value)
        return found[0] if found is not None and value.shape[found[0]] == self.count else None

    def sums(self, z: Tensor, value: Value) -> Tensor:
        """The sum (count,) of the elements of each place, which have an axis."""
        by_place = z[None] if self.is_one else z.movedim(self.axis(value) or 0, 0)
        return by_place.flatten(1).sum(1, dtype=torch.float64).to(z.dtype)

    def spread(self, total: Tensor, value: Value) -> Tensor:
        """One number (count,) for each place, at each element."""
        axis = self.axis(value)
        return total if self.is_one else total.reshape([-1 if a == axis else 1 for a in range(len(value.shape))])


def _through_memory(op: Op, of: Value, axis: int, inner: int) -> int:
    """The stride in what a view shows, or in memory that was written to."""
    steps = op.args[1][0].stride() if op.name == "write" and of is op.args[2] else of.stride
    stride, size, seen = steps[axis] * inner, op.out.shape, op.out.stride
    if seen == (1,) and size.numel() >= of.shape.numel():
        return stride
    return next((math.prod(size[a + 1 :]) for a, n in enumerate(size) if seen[a] == stride and n > 1), UNKNOWN)


def moves(op: Op) -> bool:
    """Whether elements of its results are elements of its inputs."""
    return type(op.rule) is Rule or isinstance(op.rule, (Join, Winner))


def axis_of_result(op: Op, axis: int, ndim: int, out_ndim: int) -> int | None:  # noqa: PLR0911  a case an operation
    """Where an input's axis is in the result; None if it is not there."""
    name = op.name
    if name == "permute":
        return [a % ndim for a in op.args[1]].index(axis)
    if name in ("transpose", "t"):
        i, j = (a % ndim for a in (op.args[1:3] if name == "transpose" else (0, ndim - 1)))
        return j if axis == i else i if axis == j else axis
    if name in ("stack", "select", "unbind"):
        at = (op.args[1] if len(op.args) > 1 else 0) % (out_ndim if name == "stack" else ndim)
        return axis + (at <= axis) if name == "stack" else UNKNOWN if at == axis else axis - (at < axis)
    if name in ("mv", "im2col", "col2im", "unfold"):
        stays = axis == 0 if name != "unfold" else axis != op.args[1] % ndim
        return axis if stays else UNKNOWN
    if type(op.rule) in (Rule, Join) and out_ndim != ndim and name != "expand":
        return UNKNOWN
    if out_ndim < ndim:  # a reduction
        reduced = {a + ndim for a in reduced_axes(op)}
        if len(reduced) != ndim - out_ndim:
            return UNKNOWN
        return None if axis in reduced else axis - sum(a < axis for a in reduced)
    if name in _UNTOLD:
        along = op.args[_ALONG[name]] if name in _ALONG and len(op.args) > _ALONG[name] else axis
        if axis in {a % ndim for a in ([along] if isinstance(along, int) else along)}:
            return UNKNOWN
    return axis + out_ndim - ndim


def joins_constants(op: Op) -> bool:
    """Whether constants may be among the elements of its result."""
    return bool(op.rule.joins) and len(op.outs) == 1


def is_constant(op: Op, out: Value) -> Tensor:
    """Which elements of a result come from no input that depends on the image."""
    mark = 1234.5
    result: Tensor = op.of(*(torch.full(v.shape, mark, dtype=v.dtype, device=v.device) for v in op.operands))
    return result != torch.tensor(mark, dtype=out.dtype)
