"""What is known of a value, by the operations that made it: signs, gates, depth, and what it is a function of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.record import Op, Value

# How clearly a value is meant to be a factor. Both factors of a product g a contribute g a, so Eq. 4 cannot tell them
# apart. By assumption A1 of the paper, weights of excitatory connections are what a signal is multiplied with.
ACTIVATED = 1  # the output of an activation: the gate if the other factor is not
BOUNDED = 2  # non-negative, as the output of a ReLU
MIXED = 3  # attention weights after a linear layer, as in talking heads
SWITCH = 4  # between 0 and 1: a gate or attention weights by design
MASK = 5  # 0 or 1

SIGNED = {BOUNDED: ACTIVATED, SWITCH: MIXED, MASK: MIXED}  # after a product with constants of both signs


@dataclass(slots=True)
class Facts:
    """What the operations so far tell about a value.

    Attributes:
        nonnegative, nonpositive: no element is negative, or positive.
        gate: how clearly it is meant to be a factor, from 0 to MASK.
        activations, layers, mixtures: how many activations, layers with weights, and products of two signals it has
            come through, each on the path with the most.
        is_open: the response of a layer, to which a scale, a norm or a ReLU can still be added.
        elementwise: each element is a function of the same element of its maker's operand: 1 if an affine one, 2 if an
            activation. 0 otherwise.
        weighed: the axes along which a softmax has weighed the elements, which a sum then mixes as attention does.
        is_softmax: a softmax, or its logarithm.
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
    weighed: frozenset[int] = frozenset()
    is_softmax: bool = False
    nonpositive: bool = False
    is_layer: bool = False
    unknown: str = ""


def inherited(op: Op) -> Facts:
    """The facts of a result that has elements of all inputs."""
    of = [value.facts for value in op.inputs]
    if len(of) == 1:
        (f,) = of
        return Facts(f.nonnegative, f.gate, f.activations, f.layers, f.mixtures)
    return Facts(
        all(f.nonnegative for f in of),
        min((f.gate for f in of), default=0),
        max((f.activations for f in of), default=0),
        max((f.layers for f in of), default=0),
        max((f.mixtures for f in of), default=0),
    )


Link = tuple[Value, tuple[Value, ...], bool]  # a value, the rearranged ones after it, whether a function is affine


def sources(value: Value) -> Iterator[Link]:
    """The values that a value is an elementwise function of, nearest first.

    Each comes with the rearrangements that lead from there, which commute with elementwise functions, and with whether
    the function is affine.
    """
    moves: tuple[Value, ...] = ()
    is_affine = True
    yield value, moves, is_affine
    while value.maker is not None and not (value.maker.is_cut or value.facts.is_layer):
        maker = value.maker
        if value.facts.elementwise:
            is_affine &= value.facts.elementwise == 1
        elif maker.rule.rearranges(maker):
            moves = (value, *moves)
        else:
            return
        value = maker.operands[0]
        yield value, moves, is_affine


def common_source(*values: Value) -> Link | None:
    """The nearest value that all values are elementwise functions of, and whether all are affine in it."""
    others = [list(sources(value)) for value in values[1:]]
    for value, moves, is_affine in sources(values[0]):
        matches = [next((m for m in of if m[0] is value and same_moves(value, m[1], moves)), None) for of in others]
        if None not in matches:
            return value, moves, is_affine and all(match[2] for match in matches if match)
    return None


def same_moves(start: Value, a: tuple[Value, ...], b: tuple[Value, ...]) -> bool:
    """Whether two chains of rearrangements of a value put each element in the same place."""

    def what(value: Value) -> tuple[object, ...]:
        op = value.maker
        assert op is not None
        return op.function, op.args[1:], op.kwargs, value.at

    if len(a) == len(b) and all(x is y or what(x) == what(y) for x, y in zip(a, b, strict=True)):
        return True
    if (a[-1] if a else start).shape != (b[-1] if b else start).shape or start.device.type == "meta":
        return False
    numbers = torch.arange(start.shape.numel(), device=start.device).reshape(start.shape)
    return torch.equal(rearranged(numbers, a), rearranged(numbers, b))


def rearranged(u: Tensor, moves: tuple[Value, ...]) -> Tensor:
    """A tensor after rearrangements."""
    for value in moves:
        assert value.maker is not None
        # copies between the rearrangements, which make views possible, are not among these
        result = u.reshape(value.shape) if value.maker.name == "view" else value.maker.at(u)
        u = result if isinstance(result, Tensor) else result[value.at]
    return u


def arranged_back(arrived: Tensor, moves: tuple[Value, ...]) -> Tensor:
    """What arrives before rearrangements, of what arrives after them."""
    for value in reversed(moves):
        op = value.maker
        assert op is not None
        (arrived,) = op.rule.back(op, [arrived if out is value else None for out in op.outs])
    return arrived


def one_sign(op: Op, source: Value) -> int:
    """1 or -1 if an elementwise function of a source has no values of the other sign, by trial; else 0."""
    if source.device.type == "meta":
        return 0
    numbers = torch.linspace(0 if source.facts.nonnegative else -6, 6, 49, dtype=source.dtype, device=source.device)
    found = {source: numbers[:, None]}

    def of(value: Value) -> Tensor:
        if value not in found:
            maker = value.maker
            assert maker is not None
            rearranges = maker.rule.rearranges(maker)
            made = of(maker.operands[0]) if rearranges else maker.at(*map(of, maker.inputs), constant=some)
            found[value] = made if isinstance(made, Tensor) else made[value.at]
        return found[value]

    def some(constant: Any) -> Any:
        if not isinstance(constant, Tensor) or constant.numel() == 1:
            return constant
        return constant.flatten()[:: max(1, constant.numel() // 64)][None]

    try:
        result = op.at(*map(of, op.inputs), constant=some)
        values = (result if isinstance(result, Tensor) else result[0]).nan_to_num()
    except (RuntimeError, TypeError, ValueError):  # it depends on shapes
        return 0
    return int((values >= 0).all()) - int((values <= 0).all())


def is_mean_of(mean: Value, value: Value) -> bool:
    """Whether a value is the mean of another one, over some axes: an average M with M M a = M a."""
    chain: list[Op] = []
    start = mean
    while mean is not value:
        op = mean.maker
        if op is None or len(op.inputs) != 1 or not op.rule.is_linear(op):
            return False
        chain.append(op)
        mean = op.signal
    if not any(op.rule.averages(op) for op in chain) or value.device.type == "meta":
        return False

    def applied(a: Tensor) -> Tensor:
        for op in reversed(chain):
            a = op.at(a)
        return a.expand(torch.broadcast_shapes(a.shape, value.shape))

    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device, value.dtype)
    try:
        once = applied(noise)
        ones = applied(torch.ones_like(noise))
        return bool(
            torch.allclose(ones, torch.ones_like(ones), atol=1e-2) and torch.allclose(applied(once), once, atol=1e-2)
        )
    except RuntimeError:
        return start is value


def signal_of(a: Value, b: Value, shape: tuple[int, ...]) -> int | None:
    """Which factor of a product a b is the signal, the other one being its gate: 0 or 1; None if neither is.

    Args:
        shape: of the product.
    """
    f, g = a.facts, b.facts
    if f.gate != g.gate and max(f.gate, g.gate) >= SWITCH:
        return int(f.gate > g.gate)
    full, sizes = math.prod(shape), (a.distinct, b.distinct)
    if sizes[0] != sizes[1] and full in sizes:
        return int(sizes[1] == full)
    strengths = [0 if gate == MIXED else gate for gate in (f.gate, g.gate)]
    # the gate is told by its own activation, by those further down, or by having fewer layers than the signal
    ranks = [strengths] if any(strengths) else [[f.activations, g.activations], [-f.layers, -g.layers]]
    rank = next((rank for rank in ranks if rank[0] != rank[1]), None)
    return None if rank is None else int(rank[0] > rank[1])


def values_of(left: Value, right: Value) -> int | None:
    """Which factor of a matrix product of two signals holds the values, the other one the weights; None if unclear."""
    f, g = left.facts, right.facts
    if max(f.gate, g.gate) >= BOUNDED:
        return int(f.gate >= g.gate)
    if f.mixtures != g.mixtures:  # queries times values that their keys have mixed
        return int(f.mixtures < g.mixtures)
    if f.activations != g.activations:  # weights made by a network of their own
        return int(f.activations > g.activations)
    return None
