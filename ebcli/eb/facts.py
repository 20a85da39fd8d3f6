"""What is known about tensors: whether they carry the signal, and facts about their values.

Facts are attributes of the tensors themselves. In-place changes of a tensor, or of memory it shares, invalidate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

ACTIVATED = 1  # the output of an activation: the gate if the other factor is not
BOUNDED = 2  # non-negative, as the output of a ReLU
MIXED = 3  # attention weights after a linear layer, as in talking heads
SWITCH = 4  # between 0 and 1: a gate or attention weights by design
MASK = 5  # 0 or 1


@dataclass(frozen=True)
class Layer:
    """The layer that a value can be folded into.

    Attributes:
        node: the layer's node.
        trail: from the layer's own output to the value, in order: functions that rearrange values, and keys of nodes.
    """

    node: Any
    trail: tuple[Any, ...]

    def moves_since(self, key: object) -> list[Callable[[Tensor], Tensor]]:
        """The rearrangements between the value of the node with a key and this one."""
        return [step for step in self.trail[self.trail.index(key) + 1 :] if callable(step)]


@dataclass(frozen=True)
class ValueFacts:
    """Facts about the values of a tensor.

    Attributes:
        nonnegative: no value is negative.
        gate: how clearly the values are meant to be factors, from 0 to MASK.
        layer: the layer into which a following scale, shift or ReLU is folded.
        root: shared by tensors that are elementwise functions of one tensor.
        is_softmax: they are a softmax, or its logarithm.
    """

    nonnegative: bool = False
    gate: int = 0
    layer: Layer | None = None
    root: object | None = None
    is_softmax: bool = False


class Depth(NamedTuple):
    """What a tensor has come through on its way from the input, each on the path with the most."""

    activations: int = 0
    layers: int = 0  # linear layers and convolutions
    mixtures: int = 0  # matrix products of two signals, as in attention


_UNKNOWN, _SHALLOW = ValueFacts(), Depth()
_FACTS, _BYPASS, _PLAIN, _READS, _DEPTH = (f"_ebcli_{name}" for name in ("facts", "bypass", "plain", "reads", "depth"))


def facts_of(value: Any) -> ValueFacts:
    """The facts about a tensor; those about an unknown one if it was changed in place."""
    facts, version = getattr(value, _FACTS, (_UNKNOWN, None))
    if version is None or value._version != version:
        return _UNKNOWN
    return facts


def note(value: Tensor, facts: ValueFacts = _UNKNOWN) -> None:
    """Replace the facts about a tensor."""
    setattr(value, _FACTS, (facts, value._version))


def is_known(value: Tensor) -> bool:
    """Whether an operation that the mode saw returned the tensor."""
    return hasattr(value, _FACTS)


def count_read(value: Tensor) -> None:
    """Count that an operation reads the tensor."""
    setattr(value, _READS, getattr(value, _READS, 0) + 1)


def is_read_once(value: Tensor) -> bool:
    """Whether the current operation is the first to read the tensor."""
    return getattr(value, _READS, 0) <= 1


def depth_of(value: Tensor) -> Depth:
    """What the tensor has come through."""
    return getattr(value, _DEPTH, _SHALLOW)


def note_depth(value: Any, operands: Iterable[Tensor], more: Depth = _SHALLOW) -> Any:
    """Count what a value has come through: what its operands have, and `more`. Returns the value."""
    depths = {depth_of(operand) for operand in operands}
    deepest = Depth(*map(max, zip(*depths, strict=True))) if len(depths) > 1 else next(iter(depths), _SHALLOW)
    depth = deepest if more == _SHALLOW else Depth(*map(add, deepest, more))
    if depth != _SHALLOW:
        for tensor in tensors_in(value):
            setattr(tensor, _DEPTH, depth)
    return value


def root_of(value: Tensor) -> object:
    """What the tensor shares with every elementwise function of it."""
    facts = facts_of(value)
    if facts.root is None:
        facts = replace(facts, root=object())
        note(value, facts)
    return facts.root


def gate_of(value: Any) -> int:
    """How clearly a tensor is meant to be a factor."""
    if not isinstance(value, Tensor):
        return 0
    return MASK if value.dtype == torch.bool else facts_of(value).gate


def signed_gate_of(value: Tensor) -> int:
    """How clearly a tensor is meant to be a factor once it is multiplied by constants of both signs."""
    return {BOUNDED: ACTIVATED, SWITCH: MIXED, MASK: MIXED}.get(gate_of(value), gate_of(value))


def is_nonnegative(value: Any) -> bool:
    """Whether it is certain that a number or tensor holds no negative values."""
    return value >= 0 if isinstance(value, (int, float)) else facts_of(value).nonnegative


def carries_signal(value: Any) -> bool:
    """Whether a tensor, or any tensor in a list or tuple, carries the signal.

    The signal is every tensor that requires grad and is not a parameter or computed from parameters only.
    """
    if isinstance(value, Tensor):
        if not value.requires_grad or type(value) is Parameter:  # most parameters, at once
            return False
        # a view of a parameter requires grad even if it was made under no_grad
        is_parameter = isinstance(value, Parameter) or isinstance(value._base, Parameter)
        return not is_parameter and not hasattr(value, _PLAIN)
    return isinstance(value, (list, tuple)) and any(carries_signal(item) for item in value)


def feeds_only(factor: Any, signal: Any) -> bool:
    """Whether the layer feeds the factor of a signal, but not the signal."""
    return carries_signal(factor) and not carries_signal(signal) and torch.is_grad_enabled()


def mark_plain(value: Tensor) -> None:
    """Note that a tensor requires grad, but was computed from parameters only."""
    setattr(value, _PLAIN, True)


def bypasses(value: Any) -> bool:
    """Whether a tensor, or any in a list or tuple, depends on the network's input but not on the layer.

    Such a tensor carries no signal, but it takes its share of probability, which bypasses the layer.
    """
    if isinstance(value, Tensor):
        return hasattr(value, _BYPASS)
    return isinstance(value, (list, tuple)) and any(map(bypasses, value))


def mark_bypass(value: Any) -> Any:
    """Mark every tensor in a value that carries no signal as dependent on the input. Returns the value."""
    for tensor in tensors_in(value):
        if not carries_signal(tensor):
            setattr(tensor, _BYPASS, True)
    return value


def has_share(value: Any) -> bool:
    """Whether a tensor depends on the network's input, so that it takes a share of probability."""
    return carries_signal(value) or bypasses(value)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a tensor, or in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, Tensor):
                found.append(item)
            elif item.__class__ not in _HOLD_NONE:
                found += tensors_in(item)
    return found


_HOLD_NONE = frozenset([int, float, bool, str, type(None)])  # the usual arguments, answered at once
