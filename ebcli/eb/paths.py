"""The part of the graph between the logits and a layer, and what backward passes along it start from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.autograd import quiet
from ebcli.eb.capture import Cut
from ebcli.eb.graph import BackwardGraph, parents
from ebcli.eb.maps import special_tokens
from ebcli.errors import LayerError


@dataclass(frozen=True)
class LayerPath:
    """The part of the graph between the logits and a layer.

    Attributes:
        cut: the layer.
        ends: the nodes at which the layer's probability arrives, with the rearrangements between the layer's output
            and the node's value.
        above: the nodes whose probability can reach the layer.
    """

    cut: Cut
    ends: dict[Any, list[Callable[[Tensor], Tensor]]]
    above: set[Any]

    @classmethod
    def down_to(cls, cut: Cut, graph: BackwardGraph) -> LayerPath:
        """Raises LayerError if the output does not depend on the layer."""
        ends = graph.ends(cut.edge.node)
        if not ends:
            raise LayerError(
                f"the network's output does not depend on {cut.label}, or detach() or torch.no_grad() in the network "
                "cuts the path between them: choose a layer closer to the output"
            )
        return cls(cut, ends, graph.above(list(ends)))

    def arriving(self, shares: Sequence[Tensor | None]) -> Tensor:
        """The probability at the layer's output, from what arrives at each end."""
        total: Any = 0
        for P, moves in zip(shares, self.ends.values(), strict=True):
            total = total + (self._moved_back(P, moves) if moves else P) if P is not None else total
        return total if isinstance(total, Tensor) else torch.zeros_like(self.cut.value)

    def _moved_back(self, P: Tensor, moves: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        def move(value: Tensor) -> Tensor:
            return functools.reduce(lambda moved, step: step(moved), moves, value)

        with quiet():
            back = torch.func.vjp(move, torch.zeros_like(self.cut.value, dtype=P.dtype))[1]
            return back(P)[0]

    @property
    def takes_all(self) -> bool:
        """Whether no probability bypasses the layer on its way to another one."""
        known = self.above.union(self.ends)
        return all(parent in known for node in self.above for parent in parents(node))


def check_below(classifiers: Sequence[Any], paths: Sequence[LayerPath]) -> None:
    """Raises LayerError if a layer is not below the classifier, so that it has no contrastive map."""
    for path in paths:
        if path.above.isdisjoint(classifiers):
            raise LayerError(
                f"{path.cut.label} is not below the classifier, so it has no contrastive map: choose a layer "
                "closer to the input"
            )


class Passes:
    """Backward passes from one forward pass.

    Args:
        logits: the network's output, (B, num_classes, ...).
        graph: its graph.
        paths: the layers.
        priors: (K, *logits.shape), the probabilities to start from.
        input_shape: the shape of the network's input.
    """

    def __init__(
        self,
        logits: Tensor,
        graph: BackwardGraph,
        paths: Sequence[LayerPath],
        priors: Tensor,
        input_shape: tuple[int, ...],
    ) -> None:
        self._logits, self._graph, self._paths, self._priors = logits, graph, paths, priors
        self._special = [special_tokens(tuple(path.cut.value.shape), input_shape) for path in paths]
