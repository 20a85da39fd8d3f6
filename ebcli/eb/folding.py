"""Scales, shifts and ReLUs that follow a layer, folded into the layer's neurons.

A neuron and the batch norm behind it are one neuron, whose weights have the sign of the norm's scale and whose response
is the norm's output. The value of what was folded gets a node of its own, beside the layer's: other operations may read
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import Source, ValueFacts, facts_of, is_read_once, note
from ebcli.eb.gates import gate_of
from ebcli.eb.neurons import WeightedSum
from ebcli.eb.nodes import recorded
from ebcli.eb.registry import Call
from ebcli.eb.saved_values import Saved, preserve
from ebcli.eb.steps import Slope, scaled, times


@dataclass(frozen=True, eq=False)
class Folded:
    """An operation behind a layer: a scale, a rearrangement, or only a value that has a node.

    Attributes:
        shape: of its operand.
        factor: the scale.
        move: the rearrangement.
    """

    shape: torch.Size
    factor: Slope = 1.0
    move: Callable[[Tensor], Tensor] | None = None

    def back(self, arrived: Tensor, *, jointly: bool) -> Tensor:
        """What arrives at its operand."""
        if jointly:
            arrived = scaled(arrived, self.factor)
        if self.move is None:
            return arrived.sum_to_size(self.shape)
        back = torch.func.vjp(self.move, arrived.new_zeros(self.shape))[1]
        moved: Tensor = back(arrived)[0]
        return moved


@dataclass(frozen=True)
class FoldTarget:
    """The layer that a value can be folded into.

    Attributes:
        node: the layer's node.
        trail: from the layer's own output to the value.
    """

    node: Any
    trail: tuple[Folded, ...]

    def behind(self, fold: Folded) -> FoldTarget:
        """This layer, for a value with one more operation in between."""
        return replace(self, trail=(*self.trail, fold))


def note_layer(value: Tensor, facts: ValueFacts, step: WeightedSum, *, can_fold: bool) -> None:
    """Note what is known about the value of a layer, or of something folded into one."""
    node = value.grad_fn
    if can_fold and getattr(node, "step", None) is step:  # not without a signal
        facts = replace(facts, layer=FoldTarget(node, step.trail))
    note(value, facts)


def folded(
    call: Call,
    signal: Tensor,
    *,
    scale: Tensor | float = 1.0,
    divides: bool = False,
    channels: tuple[Tensor | None, Slope] | None = None,
    rectified: bool = False,
    bounded: bool = False,
    gate: int | None = None,
) -> Tensor | None:
    """Fold a scale and a shift, or a ReLU, into the layer that made `signal`.

    Args:
        call: the call to answer.
        signal: the layer's output, possibly rearranged.
        scale: the factor of `signal`, a number or a tensor that broadcasts to it.
        divides: `signal` is divided by the scale instead.
        channels: for a batch norm, instead of `scale`: gamma (C,), and the slope.
        rectified: the operation is a ReLU.
        bounded: a ReLU that is cut off above.
        gate: see `pass_through`.

    Returns:
        The value; None if no layer with weights made `signal`.
    """
    target = facts_of(signal).layer
    if target is None:
        return None
    node, before, version = target.node, target.node.step, signal._version
    moves = [fold.move for fold in target.trail[len(before.trail) :] if fold.move is not None]
    linear, sign = before.linear, before.fold_sign
    if sign is not None and moves:
        sign = sign.expand(before.shape)  # the layout in which it was made
    for move in moves:
        linear, sign = linear.moved(move), None if sign is None else move(sign)
    factor = times(scale, divides=divides)
    if channels is not None:
        gamma, factor = channels
        if gamma is not None and linear.per_output is not None:
            linear = linear.scaled(gamma)
        elif gamma is not None:
            sign = _turned(sign, gamma.detach().sign().reshape(1, -1, *(1 for _ in signal.shape[2:])))
    elif isinstance(scale, Tensor) or scale < 0:
        sign = _turned(sign, torch.as_tensor(scale, dtype=signal.dtype, device=signal.device).detach().sign())
    trail = (*target.trail, Folded(signal.shape, factor))
    step = before.folded(linear, sign, trail)
    step.rectified = rectified
    cut_off = Saved(signal, step.operation) if bounded else None
    if call.is_in_place and target.trail == before.trail and is_read_once(signal):
        before.follow(None)  # no probability passes through the layer's own node, so its response may be overwritten
    dirty = overwritten(call)
    operands: tuple[Tensor, ...] = node.saved_tensors
    value = recorded(call, step, operands, dirty, saves=True)
    step.follow(value, cut_off)
    if value.shape != signal.shape:  # broadcast by a bias or a scale
        step.linear = linear.moved(partial(torch.broadcast_to, size=value.shape))
    facts = ValueFacts(rectified, gate_of(signal) if gate is None else gate)
    # nobody multiplies a batch norm or a ReLU alone with its input, which it would keep in memory
    is_elementwise = value.shape == signal.shape and value is not signal and channels is None
    if is_elementwise and (not rectified or facts_of(signal).source):
        facts = replace(facts, source=Source(signal, version, not rectified))
    note_layer(value, facts, step, can_fold=not rectified)
    return value


def _turned(sign: Tensor | None, other: Tensor) -> Tensor:
    return other if sign is None else sign * other


def overwritten(call: Call) -> Tensor | None:
    """The operand that the call may overwrite, or None. Preserves what the backward pass needs of it."""
    if not call.is_in_place:
        return None
    operand: Tensor = call.args[0] if call.args else call.kwargs["input"]
    preserve(operand)
    return operand
