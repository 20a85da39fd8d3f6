"""Contributions to residual sums, with the sign of the sum they explain."""

from __future__ import annotations

import torch
from torch import Tensor

from ebcli.eb.autograd import Contributions, ratio
from ebcli.eb.contributions import added


class SharedSum(Contributions):
    """The contributions to y = a_1 + a_2 (a residual): Z = sum_k max(s a_k, 0), s the sign of y.

    Attributes:
        scales: the factor of each operand, -1 for a subtrahend.
    """

    weight = None

    def __init__(self, *scales: float) -> None:
        self.scales = scales

    def normalizer(self, *signals: Tensor) -> tuple[list[Tensor], Tensor]:
        terms = [
            a.detach() if scale == 1 else a.detach() * scale for a, scale in zip(signals, self.scales, strict=True)
        ]
        # recomputed, because the next operation may overwrite y in place
        sign = added(terms).sign()
        parts = [(sign * term).clamp_(min=0) for term in terms]
        return parts, added(parts)

    def redistribute(self, parts: list[Tensor], z: Tensor, P: Tensor) -> list[Tensor]:
        quotient = ratio(P, z)
        return [part * quotient for part in parts]

    def of_dual(self) -> SharedSum:
        """The sum itself: it has no weights to negate."""
        return self

    def unexplained(self, z: Tensor) -> Tensor:
        return (z == 0).any() if self.feeds_inactive else torch.zeros((), dtype=torch.bool, device=z.device)
