"""The joint rule for a network of :mod:`fuzz`, node by node from its description and the definition alone.

All winning units h = f(u) are one neuron, which is affine in whatever lies below them, with weights G:

    G = M^T G                                 below an affine map M, written out as a matrix or by ordinary autograd
    P = max(h G, 0), G = P / u                at units
    P(i) = max(a_i G_i, 0) / sum_k            at the layer, over its elements and the constants above it
"""

from typing import Any

import torch
from slow_reference import Arrived, SlowReference
from torch import Tensor
from torch.nn import functional as F


class SlowJointReference(SlowReference):
    """The joint neuron's weights of every node, for a prior; negate the prior for the dual.

    Attributes:
        G: node -> the weights of its value's elements.
    """

    def __init__(self, description: Any, prior: Tensor) -> None:
        self.constants: dict[int, Tensor] = {}  # node -> the contributions (B,) of the constants in its value
        super().__init__(description, prior)
        self.G = self.P

    def shares(self, i: int) -> tuple[Tensor, Tensor]:
        """P at node i, and the share (B,) of the constants above it."""
        z = (self.values[i] * self.G[i]).clamp(min=0)
        constants = sum(
            (c for k, c in self.constants.items() if k != i and i in self._below([k])), z.new_zeros(len(z))
        )
        total = z.flatten(1).sum(1) + constants
        total = torch.where(total == 0, 1.0, total)
        return z / total.reshape(-1, *[1] * (z.ndim - 1)), constants / total

    def parts(self, arrived: list[Arrived]) -> list[Arrived]:
        return [Arrived(sum(part.P for part in arrived))] if arrived else []

    def _linear(self, part: Arrived, a: Tensor, function: Any) -> Tensor:
        """M^T G, by ordinary autograd."""
        a = a.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(function(a), a, part.P)[0]

    def _weighted(self, i: int, part: Arrived, a: Tensor) -> Tensor:
        W = self._matrix(self.nodes[i].facts["linear"], a)
        return (part.P.reshape(len(a), -1) @ W).reshape(a.shape)

    _average = _weighted

    def _sum(self, i: int, part: Arrived, *terms: Tensor) -> tuple[Tensor, ...]:
        return tuple(scale * part.P for scale in self.nodes[i].facts["scales"])

    def _pass(self, i: int, part: Arrived, u: Tensor) -> Tensor:
        function, G = self.nodes[i].facts["value"], part.P
        norm = NORMS.get(getattr(function, "func", None))
        if norm is not None:
            return self._linear(part, u, lambda a: norm(a, **function.keywords))
        h = self.values[i]
        if self._is_above_classifier(i):  # where nothing competes
            return torch.where(h != 0, G, 0)
        return torch.where(u != 0, (h * G).clamp(min=0) / u, 0)

    def _is_above_classifier(self, i: int) -> bool:
        waiting, reached = [len(self.nodes) - 1], set()
        while waiting:
            k = waiting.pop()
            reached.add(k)
            waiting += () if k in self.classifiers else self._signals(k)
        return i in reached

    def _scale(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        return Arrived(part.P * self.nodes[i].facts["c"])

    def _shift(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        return Arrived(part.P * self.nodes[i].facts["sign"])

    def _batch_norm(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        facts = self.nodes[i].facts
        factor = facts["gamma"] / (facts["var"] + 1e-5).sqrt()
        return Arrived(part.P * factor.reshape(-1, *[1] * (a.ndim - 2)))

    def _move(self, i: int, part: Arrived, *operands: Tensor) -> tuple[Arrived, ...]:
        is_constant = (
            self.nodes[i].facts["move"](*(torch.zeros(a.shape, dtype=torch.long) for a in operands)) < 0
        )
        if is_constant.any():  # one image after the other
            z = torch.where(is_constant, self.values[i] * part.P, 0).clamp(min=0)
            self.constants[i] = z.flatten(1).sum(1)
        return super()._move(i, part, *operands)

    def _gated(self, i: int, part: Arrived, a: Tensor, gate: Tensor) -> Tensor:
        return (part.P * gate).sum_to_size(a.shape)

    def _attended(self, out: Tensor, P: Tensor, weights: Tensor, v: Tensor) -> Tensor:
        return weights.mT @ P

    def _rows(self, P: Tensor, sign: Tensor, a: Tensor, W: Tensor, is_classifier: bool) -> Tensor:
        return P @ W


def _standardized(a: Tensor) -> Tensor:
    """Over the last axis, with the deviation constant."""
    return (a - a.mean(-1, keepdim=True)) / (a.detach().var(-1, correction=0, keepdim=True) + 1e-5).sqrt()


NORMS = {
    F.layer_norm: lambda a, normalized_shape: _standardized(a),
    F.group_norm: lambda a, num_groups: _standardized(a.flatten(1)).reshape(a.shape),
    F.rms_norm: lambda a, normalized_shape: a / (a.detach().square().mean(-1, keepdim=True) + EPSILON).sqrt(),
    F.normalize: lambda a, dim: a / a.detach().norm(dim=dim, keepdim=True).clamp_min(1e-12),
    F.local_response_norm: lambda a, **options: (
        a * (F.local_response_norm(a, **options) / a).detach().nan_to_num()
    ),
}
EPSILON = torch.finfo(torch.float64).eps
