"""What is asked of the whole list: what lies between output and layer, which rule explains it, and whose images."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.operations import Op, Value
from benchmarks.engine.places import Places
from benchmarks.engine.rules.activations import Activation
from benchmarks.engine.rules.averages import reduced_axes
from benchmarks.engine.rules.layers import Layer
from benchmarks.engine.rules.rule import MISSING


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


def descend(start: Iterable[Value], stops: Callable[[Op], bool] = lambda _: False) -> list[Op]:
    """The operations that probability passes on its way down, latest first; nothing below those that it stops at."""
    found: set[Op] = set()
    waiting = list(start)
    while waiting:
        op = waiting.pop().maker
        if op is not None and op not in found:
            found.add(op)
            if not stops(op):
                waiting += op.operands
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
            if op.outs and not above.isdisjoint(op.operands):
                above.update(op.outs)
                ops.append(op)
        return cls(layer, ops[::-1], [op for op in descend([output], is_learned) if is_learned(op)])

    @property
    def without_rule(self) -> list[str]:
        """The operations without a rule."""
        return [op.site for op in reversed(self.ops) if op.rule is MISSING]

    @property
    def is_below_classifier(self) -> bool:
        return not set(self.classifiers).isdisjoint(self.ops)

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
        averages = [op for op in reached if op.rule.averages(op)]
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
    if isinstance(mixing.rule, Layer):
        is_right = mixing.name in ("mm", "bmm", "baddbmm", "addbmm") and mixing.operands[0] is mixing.inputs[0]
        return {ndim - 1 - (not is_right)}
    if mixing.name == "sum":
        of, reduced = len(mixing.signal.shape), reduced_axes(mixing)
        kept = range(-of, 0) if of == ndim else [axis for axis in range(-of, 0) if axis not in reduced]
        return {at for at, axis in enumerate(kept) if axis in mixing.signal.facts.weighed - reduced}
    return {*range(2, ndim)}


def joins_constants(op: Op) -> bool:
    """Whether constants may be among the elements of its result."""
    return bool(op.rule.joins) and len(op.outs) == 1


def is_constant(op: Op, out: Value) -> Tensor:
    """Which elements of a result come from no input that depends on the image."""
    mark = 1234.5
    of = [torch.full(v.shape, mark, dtype=v.dtype, device=v.device) if v.is_floating else v.tensor for v in op.inputs]
    result: Tensor = op.at(*of)
    return result != torch.tensor(mark, dtype=out.dtype)
