"""What is known of a value, by the operations that made it: signs, gates, depth, and what it is a function of."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from itertools import zip_longest
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value, as_tuple, flatten_arguments
from ebcli.eb.products import vjp


class Gate(IntEnum):
    """How clearly a value is meant to be a factor.

    Both factors of a product g a contribute g a, so Eq. 4 cannot tell them apart. By assumption A1 of the paper, the
    weights of excitatory connections are what a signal is multiplied with.
    """

    ACTIVATION = 1  # the output of an activation: the gate if the other factor is not
    NONNEGATIVE = 2  # non-negative, as the output of a ReLU
    MIXTURE = 3  # attention weights after a linear layer, as in talking heads
    SWITCH = 4  # between 0 and 1: a gate or attention weights by design
    MASK = 5  # 0 or 1; or 1 over a denominator, with which a product is a quotient


AFFINE, NONLINEAR = 1, 2  # functions of the element at the same place
MOVE = 3  # an element of another place

# What a gate is after a product with constants of both signs, and after a weighted sum, from which others are none
AFTER_SIGNS: dict[int, int] = {
    Gate.NONNEGATIVE: Gate.ACTIVATION,
    Gate.SWITCH: Gate.MIXTURE,
    Gate.MASK: Gate.MIXTURE,
}
AFTER_SUM: dict[int, int] = {Gate.SWITCH: Gate.MIXTURE, Gate.MIXTURE: Gate.MIXTURE}


@dataclass(slots=True)
class Facts:
    """What the operations so far tell about a value.

    Attributes:
        nonnegative: no element is negative.
        gate: how clearly it is meant to be a factor, a `Gate`; 0 if it is not.
        activations, layers, mixtures: how many activations, layers with weights, and products of two signals it has
            come through, each on the path with the most.
        is_open: the response of a layer, to which a scale, a norm or a ReLU can still be added.
        elementwise: AFFINE, NONLINEAR or MOVE if each element is such a function of one element of its maker's operand.
        attention_axes: along which a softmax has weighed the elements, so that a sum mixes them as attention does.
        is_softmax: a softmax, or its logarithm.
        is_attention: the weights of `scaled_dot_product_attention`, whose queries and keys get nothing.
        is_layer: its relevance is asked for, so activations above are not functions of what it is a function of.
        unknown: what made it outside of the mode.
    """

    nonnegative: bool = False
    gate: int = 0
    activations: int = 0
    layers: int = 0
    mixtures: int = 0
    is_open: bool = False
    elementwise: int = 0
    attention_axes: frozenset[int] = frozenset()
    is_softmax: bool = False
    is_attention: bool = False
    is_layer: bool = False
    unknown: str = ""


_INHERITANCE = attrgetter("nonnegative", "gate", "activations", "layers", "mixtures")


def inherit(op: Op) -> Facts:
    """The facts of a result that has elements of all inputs."""
    facts = [_INHERITANCE(value.facts) for value in op.inputs]
    if not facts:  # a constant that a network writes over a value
        return Facts()
    if len(facts) == 1:
        return Facts(*facts[0])
    nonnegative, gates, *depths = zip(*facts, strict=True)
    return Facts(all(nonnegative), min(gates), *map(max, depths))


class Link(NamedTuple):
    """A value that another one is an elementwise function of.

    Attributes:
        source: the value.
        moves: the rearranged values after it, which commute with elementwise functions.
        is_affine: whether the function is.
    """

    source: Value
    moves: tuple[Value, ...] = ()
    is_affine: bool = True

    def rearrange(self, u: Tensor) -> Tensor:
        """Numbers of the source after the rearrangements."""
        for value in self.moves:
            assert value.maker is not None
            signal = value.maker.signal
            # as recorded, so that views stay possible
            if u.stride() != signal.stride and 0 not in signal.stride:
                u = torch.empty_strided(signal.shape, signal.stride, dtype=u.dtype, device=u.device).copy_(u)
            u = value.pick(value.maker.run(u))
        return u

    def pull_back(self, incoming: Tensor) -> Tensor:
        """What arrives at the source, of what arrives after the rearrangements."""
        if self.moves:
            return vjp(self.rearrange, self.source.empty(), incoming)
        return incoming

    def rearranges_like(self, other: "Link") -> bool:
        """Whether the rearrangements put each element where those of another link to the same value put it."""
        if self.moves == other.moves:
            return True
        numbers = torch.arange(self.source.numel, dtype=torch.float64).reshape(self.source.shape)
        return torch.equal(self.rearrange(numbers), other.rearrange(numbers))


def sources(value: Value) -> Iterator[Link]:
    """The values that a value is an elementwise function of, nearest first."""
    link = Link(value)
    yield link
    while (maker := link.source.maker) and not (maker.is_cut or link.source.facts.is_layer):
        source, moves, is_affine = link
        if source.facts.elementwise == MOVE:
            moves = (source, *moves)
        elif source.facts.elementwise:
            is_affine &= source.facts.elementwise == AFFINE
        else:
            return
        link = Link((maker.operands or maker.inputs)[0], moves, is_affine)  # a comparison has no operands
        yield link


def common_source(*values: Value) -> Link | None:
    """The nearest value that all values are elementwise functions of."""
    links_by_source = [{link.source: link for link in sources(value)} for value in values[1:]]
    for link in sources(values[0]):
        other_links = [links.get(link.source) for links in links_by_source]
        if all(other and link.rearranges_like(other) for other in other_links):
            return link._replace(is_affine=all(other.is_affine for other in (link, *other_links) if other))
    return None


def never_negative(op: Op, source: Value) -> bool:
    """Whether an elementwise function of a source has no negative values, by trial."""
    lowest = 0 if source.facts.nonnegative else -6
    numbers = torch.linspace(lowest, 6, 49, dtype=source.dtype, device=source.device)

    @cache
    def trial(value: Value) -> Tensor:
        maker = value.maker
        if value is source or maker is None:
            return numbers[:, None]
        if value.facts.elementwise == MOVE:
            return trial(maker.operand)
        return value.pick(run(maker))

    def run(op: Op) -> Any:
        """Its result for all numbers and some elements of its constants, (49, constants)."""
        inputs = [*map(trial, op.inputs)]
        constants = filter(torch.is_tensor, map(_sample, flatten_arguments(op.args)))
        width = max(a.shape[1] for a in (*inputs, *constants) if a.ndim == 2)
        return op.run(*(a.expand(-1, width) for a in inputs), constant=_sample)

    try:
        result, *_ = as_tuple(run(op))
        return bool((result.nan_to_num() >= 0).all())
    except (RuntimeError, TypeError, ValueError):
        return False  # it depends on shapes, or has no numbers on the meta device


def _sample(constant: Any) -> Any:
    """Some elements of a constant, (1, N)."""
    if not isinstance(constant, Tensor) or constant.numel() == 1:
        return constant
    return constant.flatten()[:: max(1, constant.numel() // 64)][None]


def is_mean_of(mean: Value, value: Value) -> bool:
    """Whether a value is the mean of another one, over some axes: an average M with M M a = M a, by trial."""
    chain: list[Op] = []
    while mean is not value:
        if mean.maker is None or len(mean.maker.inputs) != 1 or len(mean.maker.outs) != 1:
            return False
        chain.insert(0, mean.maker)
        mean = mean.maker.signal

    def average(a: Tensor) -> Tensor:
        for op in chain:
            a = op.run(a)
        return a.expand(value.shape)

    is_close = partial(torch.allclose, atol=1e-2)
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value.device, value.dtype)
    try:
        once = average(noise)
        constant = torch.ones_like(noise)
        pairs = ((constant, constant), (once, once), (-noise, -once))
        return all(is_close(average(a), mean) for a, mean in pairs) and not is_close(once, noise)
    except (RuntimeError, TypeError):
        return False


def signal_of(a: Value, b: Value) -> int | None:
    """Which factor of a product a b is the signal, the other one being its gate: 0 or 1; None if neither is."""
    pairs = zip_longest(reversed(a.shape), reversed(b.shape), fillvalue=1)
    full = prod(map(max, pairs))  # torch.broadcast_shapes() imports SymPy

    def rank(value: Value) -> tuple[int, ...]:
        """What makes a factor the gate: that it is one by design, its size, its own activation, or else its depth."""
        f = value.facts
        by_design = f.gate if f.gate >= Gate.SWITCH else 0
        strength = 0 if f.gate == Gate.MIXTURE else f.gate
        is_smaller = _count_distinct(value) < full
        return by_design, is_smaller, strength, f.activations, -f.layers

    first = rank(a)
    second = rank(b)
    if first == second or (first[:3] == second[:3] and first[2]):  # depth does not tell activations apart
        return None
    return int(first > second)


def _count_distinct(value: Value) -> int:
    """The number of elements, without the copies that broadcasting made."""
    return prod(size for size, step in zip(value.shape, value.stride, strict=True) if step or size < 2)


def values_of(left: Value, right: Value) -> int | None:
    """Which factor of a matrix product of two signals holds the values, the other one the weights; None if unclear."""

    def rank(f: Facts) -> tuple[int, ...]:
        """The weights are gates, or queries times values that their keys have mixed, or made by a network."""
        return f.gate if f.gate >= Gate.NONNEGATIVE else 0, -f.mixtures, f.activations

    if left.facts.gate == right.facts.gate >= Gate.NONNEGATIVE:
        return 1
    first = rank(left.facts)
    second = rank(right.facts)
    if first == second:
        return None
    return int(first > second)
