"""Jointly: Eq. 4 for networks whose neurons are signed and whose linear layers follow one another.

Step by step, each neuron explains itself by its own inputs (Eq. 4 and 10). Between GELUs, SiLUs or hard swishes, most
values are sums of such neurons, projected, normalized and added to a residual stream, and no coordinate of them wins
or loses. There, all winners n are taken as one joint neuron with the response sum_n P(n) / u_n * u_n. It is linear in
whatever lies below, up to the next activated units, and so are its weights G:

    G = M^T G                                     below linear maps M
    P(n) = max(h_n G_n, 0), G = P(n) / u_n        at activated units h_n = f(u_n)
    P(i) = max(a_i G_i, 0) / sum_k max(a_k G_k, 0)    at the layer

The last line is Eq. 4 for the joint neuron. Its inputs k are the layer's elements and constants that are joined to them
above the layer, such as class and text tokens. With one winner it is Eq. 4 itself. Attention weights, gates, and the
deviations of norms are constants, as they are step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.constants import images_of, is_constant, numbered
from ebcli.eb.contrast import difference, mass
from ebcli.eb.explanation import Explanation
from ebcli.eb.facts import Constants, node_facts
from ebcli.eb.graph import units_above_classifier
from ebcli.eb.products import ratio, vector_jacobian
from ebcli.eb.recording import Step


class Joint(Explanation):
    """The rule that explains all winning neurons as one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for unit in units_above_classifier(self._logits):
            unit.is_above_classifier = True
        above = set().union(*(path.above for path in self._paths))
        self._constants = [node for node in self._graph.nodes if node in above and constants_of(node)]

    def answer(self, step: Step, arrived: Tensor, signals: tuple[Tensor, ...]) -> list[Tensor]:
        return step.slopes(arrived, self, *signals)

    def relevance(self, contrastive: bool) -> list[tuple[Tensor, Tensor]]:
        if contrastive:
            self._check_below_classifier()
        maps = self._maps(self._priors)
        duals = self._maps(-self._priors) if contrastive else maps
        return [
            (difference(P, dual, special) if contrastive else P, mass(P))
            for P, dual, special in zip(maps, duals, self._special, strict=True)
        ]

    def lost_mass(self) -> list[dict[str, Tensor]]:
        # what the winners have in common is explained whole, by the layer or by constants
        found: list[dict[str, Tensor]] = [{} for _ in self._paths]
        for by_operation, (z, constants) in zip(found, self._excitation(self._priors), strict=True):
            total = mass(z) + sum(constants.values())
            for node, excitation in constants.items():
                if excitation.any():
                    operation = constants_of(node).operation  # type: ignore[union-attr]
                    by_operation[operation] = by_operation.get(operation, 0) + ratio(excitation, total)
        return found

    def _maps(self, priors: Tensor) -> list[Tensor]:
        maps = []
        for z, constants in self._excitation(priors):
            total = mass(z) + sum(constants.values())
            maps.append(ratio(z, total.reshape(*total.shape, *(1 for _ in z.shape[2:]))))
        return maps

    def _excitation(self, priors: Tensor) -> list[tuple[Tensor, dict[Any, Tensor]]]:
        """For each layer, the contributions (K, B, ...) of its elements, and those (K, B) of constants above it."""
        by_prior = [self._excitation_of(prior) for prior in priors]
        found = []
        for of_layer in zip(*by_prior, strict=True):
            constants = {node: torch.stack([others[node] for _, others in of_layer]) for node in of_layer[0][1]}
            found.append((torch.stack([z for z, _ in of_layer]), constants))
        return found

    def _excitation_of(self, prior: Tensor) -> list[tuple[Tensor, dict[Any, Tensor]]]:
        arrived = self._down(prior, [*self._edges, *(GradientEdge(node, 0) for node in self._constants)])
        by_image = {}
        for node, G in zip(self._constants, arrived[len(self._edges) :], strict=True):
            by_image[node] = self._of_constants(node, G, prior)
        found, start = [], 0
        for path in self._paths:
            G = path.arriving(arrived[start : start + len(path.ends)], jointly=True)
            start += len(path.ends)
            constants = {node: excitation for node, excitation in by_image.items() if node in path.above}
            found.append(((path.layer.value * G).clamp(min=0), constants))
        return found

    def _of_constants(self, node: Any, G: Tensor | None, prior: Tensor) -> Tensor:
        """The contributions (B,) of the constants in a node's value."""
        excitation = prior.new_zeros(len(prior))
        if G is None:
            return excitation
        constants = constants_of(node)
        assert constants is not None and constants.value is not None
        z = (constants.value.get() * G).clamp(min=0)
        z = z.where(self.once((node, "constant"), lambda: is_constant(node, constants, G)), 0)
        batch = [axis for axis, size in enumerate(z.shape) if size == len(prior)]
        if len(prior) == 1:
            return z.sum()[None]
        if len(batch) == 1:
            return z.movedim(batch[0], 0).flatten(1).sum(1)
        each = [self._down(numbers, [GradientEdge(node, 0)])[0] for numbers in numbered(prior)]
        images = images_of(torch.stack([torch.zeros_like(G) if g is None else g for g in each]).flatten(1))
        return excitation.index_add_(0, images, z.flatten())

    def _down(self, prior: Tensor, edges: list[GradientEdge]) -> tuple[Tensor | None, ...]:
        with self._recording.walked_by(self):
            return vector_jacobian(self._logits, edges, prior, retain_graph=True, allow_unused=True)


def constants_of(node: Any) -> Constants | None:
    """The constants in a node's value, unless all are 0."""
    constants = node_facts(node).constants
    return constants if constants is not None and constants.value is not None else None
