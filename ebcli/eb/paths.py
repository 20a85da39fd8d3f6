"""What is asked of the whole list: what lies between output and layer, and which rule explains it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ebcli.eb.operations import Op, Value, reachable
from ebcli.eb.places import Places
from ebcli.eb.rules.activations import Activation
from ebcli.eb.rules.layers import Layer
from ebcli.eb.rules.moves import MISSING

Messages = dict[Value, list[Any]]
Propagate = Callable[[Op, list[list[Any]]], list[list[Any]]]


def walk(start: Messages, ops: Iterable[Op], propagate: Propagate, wanted: Iterable[Value]) -> Messages:
    """What arrives at the wanted values, and at values that none of the operations made.

    Args:
        start: values, and what is there.
        ops: the operations to take, latest first.
        propagate: what each operand of an operation gets, from what has arrived at each result.
        wanted: values.
    """
    messages = dict(start)
    stays = set(wanted)
    for op in ops:
        incoming = [(messages.get if out in stays else messages.pop)(out, []) for out in op.outs]
        if op.operands and any(incoming):
            for value, outgoing in zip(op.operands, propagate(op, incoming), strict=True):
                if outgoing:
                    messages[value] = [*messages.get(value, ()), *outgoing]
    return messages


def latest_first(ops: Iterable[Op]) -> list[Op]:
    """Operations in the order of a walk, each once."""
    return sorted(set(ops), key=lambda op: -op.index)


def path_ops(paths: "Paths") -> list[Op]:
    """The operations on any of some paths, latest first."""
    return latest_first(op for path in paths for op in path.ops)


def descend(start: Iterable[Value], stops: Callable[[Op], bool] = lambda _: False) -> list[Op]:
    """The operations that probability passes on its way down, latest first; nothing below those that it stops at."""

    def makers_below(op: Op) -> list[Op | None]:
        if stops(op):
            return []
        return [value.maker for value in op.operands]

    return latest_first(reachable((value.maker for value in start), makers_below))


def without_rule(ops: Sequence[Op]) -> list[str]:
    """The names of operations without a rule, earliest first."""
    return [op.site for op in reversed(ops) if op.rule is MISSING]


def is_learned(op: Op) -> bool:
    """Whether it is a layer with weights."""
    return isinstance(op.rule, Layer) and op.rule.is_learned


def joins_constants(op: Op) -> bool:
    """Whether constants may be among the elements of its result."""
    return op.rule.joins and len(op.outs) == 1


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
        self.layer = layer
        self.ops: list[Op] = []
        values_above = {layer}
        for op in reversed(descend([output])):
            if not values_above.isdisjoint(op.operands):
                values_above.update(op.outs)
                self.ops.append(op)
        self.ops.reverse()
        self.classifiers = [op for op in descend([output], is_learned) if is_learned(op)]

    def explains_jointly(self, source: Value) -> bool:
        """Whether the joint rule holds for the layer.

        It does where activations that can have values of both signs are between the layer and the classifier. It does
        not where the classifier averages cells that attention made, of other cells or of the channels of each, because
        there the average assigns probability to places, which is more exact step by step (Swin, EdgeNeXt). Where the
        classifier reads a class token, attention does.

        Args:
            source: the network's input (B, C, ...).
        """
        inputs = [value for op in self.classifiers for value in op.operands]
        between = set(self.ops).intersection(descend(inputs))
        if not any(isinstance(op.rule, Activation) and not op.out.facts.nonnegative for op in between):
            return False
        mixing = {op for op in between if mixes(op)}
        reachable_ops = between.intersection(descend(inputs, mixing.__contains__)) - mixing
        averages = [op for op in reachable_ops if isinstance(op.rule, Layer) and op.rule.averages(op)]
        grid = [Places(source, axis) for axis in range(2, source.ndim)]
        for average in averages:
            below = mixing.intersection(descend(average.operands))
            if any(averages_cells(op, average, grid) for op in below):
                return False
        return True


Paths = Sequence[Path]


def mixes(op: Op) -> bool:
    """Whether it mixes cells by weights that depend on the image, as attention does."""
    return op.out.facts.mixtures > max(value.facts.mixtures for value in op.inputs)


def averages_cells(mixing: Op, average: Op, grid: Iterable[Places]) -> bool:
    """Whether an average adds up cells that an earlier operation made by mixing, and not channels or branches.

    Args:
        mixing: the earlier operation. Its cells are what attention weights vary along, and what the grid varies along.
        average: the average.
        grid: the cells of the image, along each axis.
    """

    def adds_up(axis: int) -> bool:
        return Places(mixing.out, axis).differ(average.operand, average.rule.averaged_axes(average))

    if any(map(adds_up, mixing.rule.query_axes(mixing))):
        return True
    varying = {
        axis for places in grid for axis, size in enumerate(places.marks_of(mixing.out).shape) if size > 1
    }
    return any(map(adds_up, varying))
