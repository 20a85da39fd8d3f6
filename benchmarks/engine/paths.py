"""What is asked of the whole list: what lies between output and layer, which rule explains it, and whose images."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.record import Op, Value
from benchmarks.engine.rules.activations import Activation
from benchmarks.engine.rules.layers import Layer
from benchmarks.engine.rules.rule import Missing


def walk(
    start: dict[Value, list[Any]],
    wanted: Iterable[Value],
    answer: Callable[[Op, list[list[Any]]], list[list[Any]]],
    path: Container[Op] | None = None,
    stops: Container[Value] = (),
) -> dict[Value, list[Any]]:
    """What arrives at the wanted values, from the latest operation to the first.

    Args:
        start: values, and what is there.
        wanted: values.
        answer: what each operand of an operation gets, from what has arrived at each result.
        path: the operations to take; None for all.
        stops: values that nothing passes.
    """
    arrived: dict[Value, list[Any]] = {}
    waiting: list[tuple[int, Op]] = []
    seen: set[Op] = set()

    def arrive(value: Value, messages: list[Any]) -> None:
        arrived.setdefault(value, []).extend(messages)
        op = value.maker
        if op is not None and op not in seen and (path is None or op in path) and value not in stops:
            seen.add(op)
            heapq.heappush(waiting, (-op.index, op))

    wanted = set(wanted)
    found: dict[Value, list[Any]] = {}
    for value, messages in start.items():
        arrive(value, messages)
    while waiting:
        op = heapq.heappop(waiting)[1]
        found.update({out: arrived[out] for out in op.outs if out in wanted and out in arrived})
        for value, messages in zip(op.operands, answer(op, [arrived.pop(out, []) for out in op.outs]), strict=True):
            if messages:
                arrive(value, messages)
    return found | {value: arrived[value] for value in wanted if value in arrived}


def taken(op: Op) -> list[Value]:
    """The operands that probability passes to."""
    return [] if op.is_cut else [value for at, value in enumerate(op.operands) if op.rule.takes(op, at)]


def descend(start: Iterable[Value], stops: Callable[[Op], bool] = lambda _: False) -> list[Op]:
    """The operations that probability passes on its way down, latest first; nothing below those that it stops at."""
    found: set[Op] = set()
    waiting = list(start)
    while waiting:
        op = waiting.pop().maker
        if op is not None and op not in found:
            found.add(op)
            if not stops(op):
                waiting += taken(op)
    return sorted(found, key=lambda op: -op.index)


def is_learned(op: Op) -> bool:
    """Whether it is a layer with weights."""
    return isinstance(op.rule, Layer) and op.rule.is_learned


@dataclass(frozen=True, eq=False)
class Path:
    """What lies between the output and a layer.

    Attributes:
        layer: the layer's value.
        ops: the operations from which probability can arrive there, latest first.
        classifiers: the layers with weights that probability reaches first on its way down from the output.
    """

    layer: Value
    ops: list[Op]
    classifiers: list[Op]

    @classmethod
    def between(cls, output: Value, layer: Value) -> Path:
        above, ops = {layer}, []
        for op in reversed(descend([output])):
            if op.outs and not above.isdisjoint(taken(op)):
                above.update(op.outs)
                ops.append(op)
        return cls(layer, ops[::-1], [op for op in descend([output], is_learned) if is_learned(op)])

    @property
    def without_rule(self) -> list[str]:
        """The operations without a rule."""
        return [op.site for op in reversed(self.ops) if isinstance(op.rule, Missing)]

    @property
    def is_below_classifier(self) -> bool:
        return not set(self.classifiers).isdisjoint(self.ops)

    def explains_jointly(self) -> bool:
        """Whether the joint rule holds for the layer.

        It does where activations that can have values of both signs are between the layer and the classifier. It does
        not where attention mixes cells that the classifier averages, because there the average assigns probability to
        places, which is more exact step by step (Swin). Where the classifier reads a class token, attention does.
        """
        inputs = [value for op in self.classifiers for value in taken(op)]
        between = set(self.ops).intersection(descend(inputs))
        if not any(isinstance(op.rule, Activation) and op.rule.is_signed(op) for op in between):
            return False
        mixing = {op for op in between if op.rule.mixes(op)}
        reached = descend(inputs, mixing.__contains__)
        averages = [op for op in reached if op in between and op not in mixing and op.rule.averages(op)]
        for average in averages:
            if any(averages_cells(op, average) for op in descend(taken(average)) if op in mixing):
                return False
        return True


def averages_cells(mixing: Op, average: Op) -> bool:
    """Whether an average adds up cells of those that an earlier operation mixed, and not channels or branches."""
    axes = query_axes(mixing)
    shape = mixing.out.shape
    numbers = torch.arange(max(1, torch.Size(shape[axis] for axis in axes).numel()), dtype=torch.float64)
    cells = numbers.reshape([n if axis - len(shape) in axes else 1 for axis, n in enumerate(shape)]).expand(shape)
    found = labeled({mixing.out: cells.to(mixing.out.device)}, average)
    labels = found.get(average.operands[getattr(average.rule, "position", 0)])
    if labels is None:
        return False
    mean, squares = (average.rule.labels(average, [power])[0] for power in (labels, labels * labels.abs()))
    return not labels.is_meta and bool((squares - mean * mean.abs() > 1e-3).any())


def query_axes(mixing: Op) -> set[int]:
    """The axes, counted from the last, of an operation's result along which its attention weights vary."""
    rule = mixing.rule
    if isinstance(rule, Layer):
        return {-1} if mixing.name in ("mm", "bmm", "baddbmm", "addbmm") and rule.position == 0 else {-2}
    if mixing.name == "sum":
        weighed, ndim = mixing.signal.facts.weighed, len(mixing.signal.shape)
        axes = mixing.args[1] if len(mixing.args) > 1 and mixing.args[1] else range(ndim)
        reduced = {axis if axis < 0 else axis - ndim for axis in axes}
        keeps = len(mixing.out.shape) == ndim
        return {axis if keeps else axis + sum(r > axis for r in reduced) for axis in weighed - reduced}
    return set(range(2 - len(mixing.out.shape), 0))


def labeled(start: dict[Value, Tensor], until: Op) -> dict[Value, Tensor]:
    """Labels of the elements of all values that follow from others, up to an operation; -1 for constants."""
    found = dict(start)
    first = min((value.maker.index if value.maker else -1) for value in start)
    needed = descend_all(until, first)
    for op in needed:
        if any(value in found for value in op.inputs) and not any(out in start for out in op.outs):
            of = [
                found[v] if v in found else torch.full(v.shape, -1.0, dtype=torch.float64, device=v.device)
                for v in op.inputs
            ]
            for out, labels in zip(op.outs, op.rule.labels(op, of), strict=False):
                found[out] = labels
    return found


def descend_all(until: Op, first: int) -> list[Op]:
    """The operations before another one that its inputs are made by, gates and all, first ones first."""
    found: set[Op] = set()
    waiting = list(until.inputs)
    while waiting:
        op = waiting.pop().maker
        if op is not None and op not in found and op.index > first:
            found.add(op)
            waiting += op.inputs
    return sorted(found, key=lambda op: op.index)


class Images:
    """Which image each element of a value belongs to: carried from the input along the list, never guessed.

    Mostly it is told by a stride: the image is that of element (i // stride) % B, where i counts the elements in their
    order. Where no stride tells, labels are sent through the operations.

    Args:
        source: the network's input, (B, ...).
    """

    def __init__(self, source: Value) -> None:
        self.source, self.count = source, source.shape[0]
        self._strides: dict[Value, int | None] = {source: source.shape[1:].numel()}
        self._labels: dict[Value, Tensor] = {}

    def of(self, value: Value) -> Tensor:
        """The image of each element, -1 for none."""
        if value not in self._labels:
            stride = self._stride(value)
            if stride is not None:
                numbers = torch.arange(value.shape.numel(), device=value.device) // max(stride, 1) % self.count
                self._labels[value] = numbers.reshape(value.shape)
            else:
                assert value.maker is not None
                images = torch.arange(self.count, dtype=torch.float64, device=value.device)
                shape = self.source.shape
                start = {self.source: images.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)}
                found = labeled(start, value.maker)
                of = [found.get(v, torch.full(v.shape, -1.0, dtype=torch.float64)) for v in value.maker.inputs]
                self._labels[value] = value.maker.rule.labels(value.maker, of)[value.at].round().long()
        return self._labels[value]

    def axis(self, value: Value) -> int | None:
        """The axis of a value that the images are on; None if they share one with something else."""
        shape, stride = value.shape, self._stride(value)
        if stride is not None:
            found = axis_at(shape, stride, self.count)
            return found[0] if found is not None and shape[found[0]] == self.count else None
        labels = self.of(value)
        for axis, size in enumerate(shape):
            images = torch.arange(size, device=labels.device).reshape(
                [-1 if a == axis else 1 for a in range(len(shape))]
            )
            if size == self.count and bool((labels == images).all()):
                return axis
        return None

    def sums(self, z: Tensor, value: Value) -> Tensor:
        """The sum (B,) of each image's elements."""
        axis = self.axis(value)
        if axis is not None:
            return z.movedim(axis, 0).flatten(1).sum(1, dtype=torch.float64).to(z.dtype)
        labels = self.of(value).flatten() % (self.count + 1)
        return z.new_zeros(self.count + 1).index_add(0, labels, z.flatten())[: self.count]

    def spread(self, total: Tensor, value: Value) -> Tensor:
        """One number (B,) for each image, at each element."""
        axis = self.axis(value)
        if axis is None:
            return torch.cat([total, total.new_zeros(1)])[self.of(value) % (self.count + 1)]
        return total.reshape([-1 if a == axis else 1 for a in range(len(value.shape))])

    def _stride(self, value: Value) -> int | None:
        waiting = [value]
        while waiting:
            op = waiting[-1].maker
            of = [v for v in op.inputs if v.is_floating] or op.inputs if op is not None else []
            unknown = [v for v in of if v not in self._strides]
            if unknown:
                waiting += unknown
                continue
            now = waiting.pop()
            if op is not None and now not in self._strides:
                strides = {self._moved(op, now, v) for v in of}
                self._strides[now] = strides.pop() if len(strides) == 1 else None
        return self._strides[value]

    def _moved(self, op: Op, out: Value, of: Value) -> int | None:
        """The stride of a result, by that of an input."""
        stride = self._strides[of]
        if stride is None or op.name in ("view", "_unsafe_view", "unsqueeze", "squeeze", "flatten"):
            return stride
        found = axis_at(of.shape, stride, self.count)
        if found is None:
            return None
        axis, inner = found
        moved = axis_of_result(op, axis, len(of.shape), len(out.shape))
        if moved is None or out.shape[moved] != of.shape[axis]:
            return None
        return inner * out.shape[moved + 1 :].numel()


def axis_at(shape: torch.Size, stride: int, count: int) -> tuple[int, int] | None:
    """The axis that images with a stride are on, and their stride along it; None if they are spread over several."""
    found = None
    for axis, size in enumerate(shape):
        below = shape[axis + 1 :].numel()
        if below and stride % below == 0 and size % (stride // below * count) == 0:
            if size == stride // below * count:
                return axis, stride // below
            found = found or (axis, stride // below)
    return found


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
        return axis + (at <= axis) if name == "stack" else None if at == axis else axis - (at < axis)
    if out_ndim < ndim and name not in ("mv", "dot"):  # a reduction
        axes = op.args[1] if len(op.args) > 1 else range(ndim)
        if not (isinstance(axes, int) or (isinstance(axes, (list, range)) and all(isinstance(a, int) for a in axes))):
            return None
        reduced = {a % ndim for a in ([axes] if isinstance(axes, int) else axes)}
        return None if axis in reduced or len(reduced) != ndim - out_ndim else axis - sum(r < axis for r in reduced)
    if name in (
        "flip",
        "roll",
        "index",
        "take",
        "masked_select",
        "as_strided",
        "index_select",
        "gather",
        "sort",
        "topk",
    ):
        along = {"flip": 1, "roll": 2, "index_select": 1, "gather": 1}.get(name)
        if along is None or len(op.args) <= along:
            return None
        axes = op.args[along]
        if axis in {a % ndim for a in ([axes] if isinstance(axes, int) else axes)}:
            return None
    return axis + out_ndim - ndim


def joins_constants(op: Op) -> bool:
    """Whether constants may be among the elements of its result."""
    return bool(op.rule.joins) and len(op.outs) == 1


def is_constant(op: Op, out: Value) -> Tensor:
    """Which elements of a result come from no input that depends on the image."""
    mark = 1234.5
    of = [torch.full(v.shape, mark, dtype=v.dtype, device=v.device) if v.is_floating else v.tensor for v in op.inputs]
    result: Tensor = op.at(*of)
    return result != torch.tensor(mark, dtype=out.dtype)
