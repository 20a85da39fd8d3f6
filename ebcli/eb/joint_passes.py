"""The backward passes of the joint rule: from a prior over the classes to the relevance at each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.autograd import vector_jacobian
from ebcli.eb.contrast import difference, difference_from_mean, mass, normalized
from ebcli.eb.graph import mark_above_classifier
from ebcli.eb.paths import Passes, check_below


class JointPasses(Passes):
    """Backward passes under the joint rule; the layers have values of their own."""

    def __init__(self, logits: Tensor, *rest: Any) -> None:
        super().__init__(logits, *rest)
        mark_above_classifier(logits)

    def relevance(self, contrastive: bool) -> list[tuple[Tensor, Tensor]]:
        """Relevance (K, B, ...) at each layer, and the marginal mass (K, B), which is 1 where anything contributes.

        Raises:
            LayerError: contrastive, at a layer that is not below the classifier.
        """
        if contrastive:
            check_below(self._graph.classifiers, self._paths)
        maps = self._down(self._priors)
        duals = self._down(-self._priors) if contrastive else maps
        return [
            (difference(P, dual, special) if contrastive else P, mass(P))
            for P, dual, special in zip(maps, duals, self._special, strict=True)
        ]

    def lost_mass(self) -> list[dict[str, Tensor]]:
        """For each layer, what operations lost: nothing, as all winners are explained by what they have in common."""
        return [{} for _ in self._paths]

    def against(self, others: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each map minus the mean map of other priors (N, *logits.shape), and the mass (K, B)."""
        return [
            (difference_from_mean(P, other, special), mass(P))
            for P, other, special in zip(self._down(self._priors), self._down(others), self._special, strict=True)
        ]

    def _down(self, priors: Tensor) -> list[Tensor]:
        """Marginal maps (K, B, ...) at each layer."""
        edges = [GradientEdge(node, 0) for path in self._paths for node in path.ends]
        found: list[list[Tensor]] = [[] for _ in self._paths]
        for prior in priors:
            arrived = iter(vector_jacobian(self._logits, edges, prior, retain_graph=True, allow_unused=True))
            for path, maps in zip(self._paths, found, strict=True):
                G = path.arriving([next(arrived) for _ in path.ends])
                maps.append((path.cut.value * G).clamp(min=0))
        return [normalized(torch.stack(maps)) for maps in found]
