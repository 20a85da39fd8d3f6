"""Step by step: each neuron is explained by its own inputs (Eq. 4), and its dual by the same with negated weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.constants import images_of, is_constant, numbered
from ebcli.eb.contrast import difference, mass
from ebcli.eb.explanation import Explanation
from ebcli.eb.facts import node_facts, step_of
from ebcli.eb.graph import neurons_of
from ebcli.eb.neurons import WeightedSum
from ebcli.eb.nodes import quiet
from ebcli.eb.products import vector_jacobian
from ebcli.eb.recording import Step


class StepwiseWalk:
    """Backward passes in which each neuron is explained by its own inputs.

    Args:
        classifiers: the steps whose duals' shares are subtracted.
    """

    def __init__(self, classifiers: Iterable[WeightedSum] = ()) -> None:
        self._duals = {step: step.as_dual() for step in classifiers}

    def answer(self, step: Step, arrived: Tensor, signals: tuple[Tensor, ...]) -> list[Tensor]:
        shares = step.shares(arrived, self, *signals)
        dual = self._duals.get(step)  # type: ignore[call-overload]
        if dual is None:
            return shares
        return [share - other for share, other in zip(shares, dual.shares(arrived, self, *signals), strict=True)]

    def once(self, _key: Hashable, compute: Callable[[], Any]) -> Any:
        return compute()


class Stepwise(StepwiseWalk, Explanation):
    """The rule that explains each neuron by its own inputs."""

    _keeps = False

    def __init__(self, *arguments: Any) -> None:
        StepwiseWalk.__init__(self)
        Explanation.__init__(self, *arguments)
        self._weighted = [node for node in self._graph.nodes if neurons_of(node) is not None]

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        return Explanation.once(self, key, compute) if self._keeps else compute()

    def relevance(self, contrastive: bool) -> list[tuple[Tensor, Tensor]]:
        if not contrastive:
            return [(P, mass(P)) for P in self._maps(self._priors)]
        self._check_below_classifier()
        self._keeps = True
        StepwiseWalk.__init__(self, [node.step for node in self._graph.classifiers])
        differences = self._maps(self._priors)
        is_whole = all(path.takes_all for path in self._paths) and not any(self._special)
        if is_whole and self._graph.loses_nothing(self._kept):
            return [(P, mass(self._priors)) for P in differences]
        self._duals = {}
        return [
            # where every cell is part of the map, both maps sum to 1 at the classifier's inputs already
            (difference(P, P - contrast, special) if special else contrast, mass(P))
            for contrast, P, special in zip(differences, self._maps(self._priors), self._special, strict=True)
        ]

    def lost_mass(self) -> list[dict[str, Tensor]]:
        found: list[dict[str, Tensor]] = [{} for _ in self._paths]
        nodes = self._weighted + [node for node in self._graph.nodes if node_facts(node).constants]
        if not nodes:
            return found
        targets, batch = self._priors.shape[:2]
        with self._recording.walked_by(self):
            arrived = torch.autograd.grad(
                self._logits,
                [GradientEdge(node, 0) for node in nodes],
                torch.cat([self._priors, numbered(self._priors.abs().sum(0))]),
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
                materialize_grads=False,
            )
        for node, P in zip(nodes, arrived, strict=True):
            if P is None:  # nothing arrives at layers with something folded into them
                continue
            constants, step = node_facts(node).constants, step_of(node)
            if constants is not None:
                ends, operation = is_constant(node, constants, P[0]), constants.operation
            else:
                ends, operation = step.normalizer(*node.saved_tensors)[1] == 0, step.operation  # type: ignore[union-attr]
            swallowed = P[:targets].where(ends, 0).flatten(1)
            lost = swallowed.new_zeros(targets, batch).index_add_(1, images_of(P[targets:].flatten(1)), swallowed)
            for path, by_operation in zip(self._paths, found, strict=True):
                if node in path.above and lost.any():
                    by_operation[operation] = by_operation.get(operation, 0) + lost
        return found

    def _maps(self, priors: Tensor) -> list[Tensor]:
        several = len(priors) > 1
        self._keeps |= several
        if self._keeps:
            self._normalize(several)
        grad = torch.autograd.grad if several else vector_jacobian  # vmap knows the first

        def down(prior: Tensor) -> tuple[Tensor, ...]:
            arrived = iter(grad(self._logits, self._edges, prior, retain_graph=True, allow_unused=True))
            return tuple(path.arriving(list(islice(arrived, len(path.ends))), jointly=False) for path in self._paths)

        with self._recording.walked_by(self), warnings.catch_warnings() if several else quiet():
            if not several:
                return [P[None] for P in down(priors[0])]
            # about operations that vmap loops over, such as roi_align
            warnings.filterwarnings("ignore", "There is a performance drop")
            return list(torch.vmap(down)(priors))

    def _normalize(self, several: bool) -> None:
        """Compute what several priors, or several backward passes, share."""
        with quiet():
            for node in self._weighted:
                steps = [node.step, *([self._duals[node.step]] if node.step in self._duals else [])]
                for step in steps:
                    if several or not getattr(step, "is_large", False):  # a large layer keeps it on the way
                        self.once(step, partial(step.normalizer, *node.saved_tensors))
