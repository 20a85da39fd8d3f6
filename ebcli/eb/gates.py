"""Products of two signals: which factor is the weight, and which the signal that gets the probability.

Both factors make the same contribution g a, so Eq. 4 cannot tell them apart. By assumption A1 of the paper, weights of
excitatory connections are non-negative quantities that a signal is multiplied with. How clearly values are meant to be
such factors is a number, their gate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import common_source, depth_of, facts_of

ACTIVATED = 1  # the output of an activation: the gate if the other factor is not
BOUNDED = 2  # non-negative, as the output of a ReLU
MIXED = 3  # attention weights after a linear layer, as in talking heads
SWITCH = 4  # between 0 and 1: a gate or attention weights by design
MASK = 5  # 0 or 1


def gate_of(value: Any) -> int:
    """How clearly a tensor is meant to be a factor, from 0 to MASK."""
    if not isinstance(value, Tensor):
        return 0
    return MASK if value.dtype == torch.bool else facts_of(value).gate


def signed_gate_of(value: Tensor) -> int:
    """How clearly a tensor is meant to be a factor once it is multiplied by constants of both signs."""
    return {BOUNDED: ACTIVATED, SWITCH: MIXED, MASK: MIXED}.get(gate_of(value), gate_of(value))


def gate_of_sum(value: Tensor) -> int:
    """How clearly a weighted sum of a tensor's values is meant to be a factor."""
    return MIXED if gate_of(value) in (MIXED, SWITCH) else 0


def signal_of(a: Tensor, b: Tensor) -> Tensor | None:
    """The factor of a product a b that is the signal, the other one being its gate; None if neither is."""
    gates = gate_of(a), gate_of(b)
    if gates[0] != gates[1] and max(gates) >= SWITCH:
        return a if gates[0] < gates[1] else b
    if common_source(a, b) is not None:
        return a  # an activation, such as x * tanh(x)
    full = torch.broadcast_shapes(a.shape, b.shape).numel()
    sizes = _distinct(a), _distinct(b)
    if sizes[0] != sizes[1] and full in sizes:
        return a if sizes[0] == full else b
    strengths = [0 if gate == MIXED else gate for gate in gates]
    depths = depth_of(a), depth_of(b)
    # the gate is told by its own activation, by those further down, or by having fewer layers than the signal
    ranks = [strengths] if any(strengths) else [[d.activations for d in depths], [-d.layers for d in depths]]
    rank = next((rank for rank in ranks if rank[0] != rank[1]), None)
    if rank is None:
        return None
    return a if rank[0] < rank[1] else b


def _distinct(value: Tensor) -> int:
    """The number of elements, without the copies that broadcasting made."""
    number = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        number *= size if stride or size < 2 else 1
    return number


def holds_weights(left: Tensor, right: Tensor) -> bool | None:
    """Whether the left factor of a matrix product holds the weights, the right one the values; None if unclear."""
    gates = gate_of(left), gate_of(right)
    if max(gates) >= BOUNDED:
        return gates[0] >= gates[1]
    depths = depth_of(left), depth_of(right)
    if depths[0].mixtures != depths[1].mixtures:  # queries times values that their keys have mixed
        return depths[0].mixtures < depths[1].mixtures
    if depths[0].activations != depths[1].activations:  # weights made by a network of their own
        return depths[0].activations > depths[1].activations
    return None
