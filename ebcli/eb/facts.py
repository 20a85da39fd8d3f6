"""Everything that is known about a tensor, and about a node of the graph.

Both are attributes of what they describe. What is known about a tensor's values no longer holds once it, or memory that
it shares, was changed in place; what is known about its origin stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ebcli.eb.recording import Step

if TYPE_CHECKING:
    from ebcli.eb.folding import FoldTarget
    from ebcli.eb.saved_values import Saved

_ATTRIBUTE = "_ebcli"


@dataclass(frozen=True)
class ValueFacts:
    """What is known about the values of a tensor.

    Attributes:
        nonnegative: no value is negative.
        gate: how clearly the values are meant to be factors, see `ebcli.eb.gates`.
        layer: the layer into which a following scale, shift or ReLU is folded.
        source: the tensor that they are an elementwise function of.
        mean_of: the tensor, and its axes, that they are the mean of.
        is_softmax: they are a softmax, or its logarithm.
    """

    nonnegative: bool = False
    gate: int = 0
    layer: FoldTarget | None = None
    source: Source | None = None
    mean_of: tuple[Tensor, int, tuple[int, ...]] | None = None
    is_softmax: bool = False


class Source(NamedTuple):
    """A tensor, as it was when an elementwise function read it."""

    tensor: Tensor
    version: int
    is_affine: bool  # the function


class Depth(NamedTuple):
    """What a tensor has come through on its way from the input, each on the path with the most."""

    activations: int = 0
    layers: int = 0  # linear layers and convolutions
    mixtures: int = 0  # matrix products of two signals, as in attention


_NOTHING, _SHALLOW = ValueFacts(), Depth()


class _TensorFacts:
    """What is known about a tensor; see the functions below."""

    __slots__ = ("bypasses", "depth", "is_plain", "reads", "values", "version")

    def __init__(self) -> None:
        self.values: ValueFacts | None = None
        self.version = -1
        self.bypasses = self.is_plain = False
        self.reads = 0
        self.depth = _SHALLOW


def _known(value: Tensor) -> _TensorFacts:
    found: _TensorFacts | None = getattr(value, _ATTRIBUTE, None)
    if found is None:
        found = _TensorFacts()
        setattr(value, _ATTRIBUTE, found)
    return found


def facts_of(value: Any) -> ValueFacts:
    """What is known about the values of a tensor."""
    known = getattr(value, _ATTRIBUTE, None)
    return known.values if known is not None and known.values and known.version == value._version else _NOTHING


def note(value: Tensor, facts: ValueFacts = _NOTHING) -> None:
    """Replace what is known about the values of a tensor."""
    known = _known(value)
    known.values, known.version = facts, value._version


def amend(value: Tensor, **changes: Any) -> None:
    """Change some of what is known about the values of a tensor."""
    note(value, replace(facts_of(value), **changes))


def is_known(value: Tensor) -> bool:
    """Whether an operation that the mode saw returned the tensor."""
    known = getattr(value, _ATTRIBUTE, None)
    return known is not None and known.values is not None


def count_read(value: Tensor) -> None:
    """Count that an operation reads the tensor."""
    _known(value).reads += 1


def is_read_once(value: Tensor) -> bool:
    """Whether the current operation is the first to read the tensor."""
    return _known(value).reads <= 1


def depth_of(value: Tensor) -> Depth:
    """What the tensor has come through."""
    return getattr(getattr(value, _ATTRIBUTE, None), "depth", _SHALLOW)


def note_depth(value: Any, operands: Iterable[Tensor], more: Depth = _SHALLOW) -> Any:
    """Count what a value has come through: what its operands have, and `more`. Returns the value."""
    depths = {depth_of(operand) for operand in operands}
    deepest = Depth(*map(max, zip(*depths, strict=True))) if len(depths) > 1 else next(iter(depths), _SHALLOW)
    depth = deepest if more == _SHALLOW else Depth(*map(add, deepest, more))
    if depth != _SHALLOW:
        for tensor in tensors_in(value):
            _known(tensor).depth = depth
    return value


def _sources(value: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """The tensors that a tensor is an elementwise function of, nearest first, and whether it is affine in each."""
    is_affine, source = True, facts_of(value).source
    yield value, is_affine
    while source is not None and source.tensor._version == source.version:
        is_affine &= source.is_affine
        yield source.tensor, is_affine
        source = facts_of(source.tensor).source


def common_source(*values: Tensor) -> tuple[Tensor, bool] | None:
    """The nearest tensor that all values are elementwise functions of, and whether all are affine in it."""
    others = [list(_sources(value)) for value in values[1:]]
    for tensor, is_affine in _sources(values[0]):
        matches = [next((m for m in other if m[0] is tensor), None) for other in others]
        if None not in matches:
            return tensor, is_affine and all(match[1] for match in matches if match)
    return None


def unit_of(value: Tensor) -> Tensor:
    """What an activation of `value` is one of: y where the value is c f(y) + d, as in log(1 + exp(y))."""
    is_shifted = False
    for (tensor, _), (source, is_affine) in pairwise(_sources(value)):
        if not is_affine:
            return source if is_shifted else value
        is_shifted |= not getattr(step_of(tensor.grad_fn), "keeps_zero", True)
    return value


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
        return not is_parameter and not getattr(getattr(value, _ATTRIBUTE, None), "is_plain", False)
    return isinstance(value, (list, tuple)) and any(carries_signal(item) for item in value)


def feeds_only(factor: Any, signal: Any) -> bool:
    """Whether the layer feeds the factor of a signal, but not the signal."""
    return carries_signal(factor) and not carries_signal(signal) and torch.is_grad_enabled()


def mark_plain(value: Tensor) -> None:
    """Note that a tensor requires grad, but was computed from parameters only."""
    _known(value).is_plain = True


def bypasses(value: Any) -> bool:
    """Whether a tensor, or any in a list or tuple, depends on the network's input but not on the layer.

    Such a tensor carries no signal, but it takes its share of probability, which bypasses the layer.
    """
    if isinstance(value, Tensor):
        # the signal may have been written into it since
        return getattr(getattr(value, _ATTRIBUTE, None), "bypasses", False) and not carries_signal(value)
    return isinstance(value, (list, tuple)) and any(map(bypasses, value))


def mark_bypass(value: Any) -> Any:
    """Mark every tensor in a value that carries no signal as dependent on the input. Returns the value."""
    for tensor in tensors_in(value):
        if not carries_signal(tensor):
            _known(tensor).bypasses = True
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


@dataclass
class NodeFacts:
    """What is known about a node of the graph.

    Attributes:
        routes: an operation that only moves values made it.
        is_lossless: if it routes, every element comes from an operand that carries the signal.
        without_rule: the operation without a rule that made it.
        is_attention: it mixes values by attention weights.
        is_average: it averages, with fixed weights.
        constants: elements of its value that are constants.
    """

    routes: bool = False
    is_lossless: bool = False
    without_rule: str | None = None
    is_attention: bool = False
    is_average: bool = False
    constants: Constants | None = None

    @property
    def is_accounted_for(self) -> bool:
        return self.routes or self.without_rule is not None


class Constants(NamedTuple):
    """A value of which some elements are constants, such as a class token beside the tokens of an image."""

    value: Saved | None  # None if all of them are 0
    operation: str
    operands: frozenset[Any]  # the nodes of the operands that carry the signal


_NO_NODE_FACTS = NodeFacts()


def step_of(node: Any) -> Step | None:
    """The step whose node it is; None for nodes of PyTorch's own operations."""
    return getattr(node, "step", None)


def node_facts(node: Any) -> NodeFacts:
    """What is known about a node. To be read only."""
    found: NodeFacts = node.metadata.get(_ATTRIBUTE, _NO_NODE_FACTS)
    return found


def facts_about(node: Any) -> NodeFacts:
    """What is known about a node, to be changed."""
    found: NodeFacts = node.metadata.setdefault(_ATTRIBUTE, NodeFacts())
    return found
