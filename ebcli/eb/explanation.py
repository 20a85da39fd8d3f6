"""What the two rules have in common: the part of the graph above each layer, and backward passes along it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.capture import TargetLayer
from ebcli.eb.contrast import difference_from_mean, mass
from ebcli.eb.graph import Back, BackwardGraph, parents
from ebcli.eb.maps import special_tokens
from ebcli.eb.recording import Recording, Step
from ebcli.errors import LayerError


@dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        logits: the network's output, (B, num_classes, ...).
        graph: the graph below it.
        recording: which explanation its backward passes belong to.
        paths: the part of the graph above each layer.
        input_shape: the shape of the network's input.
    """

    logits: Tensor
    graph: BackwardGraph
    recording: Recording
    paths: list[LayerPath]
    input_shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LayerPath:
    """The part of the graph between the logits and a layer.

    Attributes:
        layer: the layer.
        ends: the nodes at which something arrives for the layer, and how it gets from there to the layer's value.
        above: the nodes from which something can arrive there.
    """

    layer: TargetLayer
    ends: dict[Any, Back | None]
    above: set[Any]

    @classmethod
    def down_to(cls, layer: TargetLayer, graph: BackwardGraph) -> LayerPath:
        """Raises LayerError if the output does not depend on the layer."""
        ends = graph.ends(layer.edge.node)
        if not ends:
            raise LayerError(
                f"the network's output does not depend on {layer.label}, or torch.no_grad() in the network cuts the "
                "path between them: choose a layer closer to the output"
            )
        return cls(layer, ends, graph.above(ends))

    def arriving(self, arrived: Sequence[Tensor | None], *, jointly: bool) -> Tensor:
        """What arrives at the layer's output, from what arrives at each end."""
        total: Tensor | None = None
        for part, back in zip(arrived, self.ends.values(), strict=True):
            if part is not None:
                moved = part if back is None else back(part, jointly=jointly)
                total = moved if total is None else total + moved
        return self.layer.zeros() if total is None else total

    @property
    def takes_all(self) -> bool:
        """Whether no probability bypasses the layer on its way to another one."""
        known = self.above.union(self.ends)
        return all(parent in known for node in self.above for parent in parents(node))


class Explanation(ABC):
    """A rule, asked about some layers of a forward pass.

    Args:
        forward: the forward pass.
        paths: those of its paths to explain.
        priors: (K, *logits.shape), the probabilities to start from.
    """

    def __init__(self, forward: Forward, paths: Sequence[LayerPath], priors: Tensor) -> None:
        self._logits, self._graph, self._recording = forward.logits, forward.graph, forward.recording
        self._paths, self._priors = paths, priors
        self._special = [special_tokens(tuple(path.layer.shape), forward.input_shape) for path in paths]
        self._kept: dict[Hashable, Any] = {}

    @abstractmethod
    def relevance(self, contrastive: bool) -> list[tuple[Tensor, Tensor]]:
        """Relevance (K, B, ...) at each layer, and the marginal mass (K, B).

        Raises:
            LayerError: contrastive, at a layer that is not below the classifier.
        """

    @abstractmethod
    def lost_mass(self) -> list[dict[str, Tensor]]:
        """For each layer, (K, B) for each operation: the probability that ends there."""

    @abstractmethod
    def answer(self, step: Step, arrived: Tensor, signals: tuple[Tensor, ...]) -> list[Tensor]:
        """What each of a step's signals gets in the backward pass."""

    def against(self, others: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each map minus the mean map of other priors (N, *logits.shape), both normalized; and the mass (K, B)."""
        targets = len(self._priors)
        return [
            (difference_from_mean(P[:targets], P[targets:], special), mass(P[:targets]))
            for P, special in zip(self._maps(torch.cat([self._priors, others])), self._special, strict=True)
        ]

    @abstractmethod
    def _maps(self, priors: Tensor) -> list[Tensor]:
        """Marginal maps (K, B, ...) at each layer."""

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, shared by the backward passes of this explanation."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    @property
    def _edges(self) -> list[GradientEdge]:
        return [GradientEdge(node, 0) for path in self._paths for node in path.ends]

    def _check_below_classifier(self) -> None:
        for path in self._paths:
            if path.above.isdisjoint(self._graph.classifiers):
                raise LayerError(
                    f"{path.layer.label} is not below the classifier, so it has no contrastive map: choose a layer "
                    "closer to the input"
                )
