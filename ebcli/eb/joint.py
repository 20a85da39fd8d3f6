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

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.constants import images_of, is_constant, numbered
from ebcli.eb.contrast import difference, mass
from ebcli.eb.explanation import Explanation, LayerPath
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
        for of_layer, by_operation in zip(zip(*map(self._explained, self._priors), strict=True), found, strict=True):
            for node in of_layer[0][1]:
                share = torch.stack([shares[node] for _, shares in of_layer])
                operation = constants_of(node).operation  # type: ignore[union-attr]
                if share.any():
                    by_operation[operation] = by_operation.get(operation, 0) + share
        return found

    def _maps(self, priors: Tensor) -> list[Tensor]:
        by_prior = [[P for P, _ in self._explained(prior)] for prior in priors]
        return [torch.stack(of_layer) for of_layer in zip(*by_prior, strict=True)]

    def _explained(self, prior: Tensor) -> list[tuple[Tensor, dict[Any, Tensor]]]:
        """For each layer, its relevance (B, ...), and the shares (B,) of constants above it."""
        arrived = self._down(prior, [*self._edges, *(GradientEdge(node, 0) for node in self._constants)])
        constants = {
            node: self._of_constants(node, G, prior)
            for node, G in zip(self._constants, arrived[len(self._edges) :], strict=True)
        }
        found, start = [], 0
        for path in self._paths:
            end = start + len(path.ends)
            z = _excitation(path.layer.value, path.arriving(arrived[start:end], jointly=True))
            images = self._images(z, prior, partial(self._arriving, path))
            others = {node: excitation for node, excitation in constants.items() if node in path.above}
            total = _sums(z, images, prior) + sum(others.values())
            each = total.reshape(-1, *(1 for _ in z.shape[1:])) if images is None else total[images].reshape(z.shape)
            found.append((ratio(z, each), {node: ratio(excitation, total) for node, excitation in others.items()}))
            start = end
        return found

    def _of_constants(self, node: Any, G: Tensor | None, prior: Tensor) -> Tensor:
        """The contributions (B,) of the constants in a node's value."""
        if G is None:
            return prior.new_zeros(len(prior))
        constants = constants_of(node)
        assert constants is not None and constants.value is not None
        z = _excitation(constants.value.get(), G)
        z = z.where(self.once((node, "constant"), lambda: is_constant(node, constants, G)), 0)
        return _sums(z, self._images(z, prior, lambda numbers: self._down(numbers, [GradientEdge(node, 0)])[0]), prior)

    def _images(self, z: Tensor, prior: Tensor, arriving: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """The image of each of z's elements, flattened; None if that is its first index."""
        if len(z) == len(prior):
            return None
        each = [arriving(numbers) for numbers in numbered(prior)]
        return images_of(torch.stack([torch.zeros_like(z) if G is None else G for G in each]).flatten(1))

    def _arriving(self, path: LayerPath, prior: Tensor) -> Tensor:
        edges = [GradientEdge(node, 0) for node in path.ends]
        return path.arriving(self._down(prior, edges), jointly=True)

    def _down(self, prior: Tensor, edges: list[GradientEdge]) -> tuple[Tensor | None, ...]:
        with self._recording.walked_by(self):
            return vector_jacobian(self._logits, edges, prior, retain_graph=True, allow_unused=True)


def _excitation(a: Tensor, G: Tensor) -> Tensor:
    """max(a G, 0), and 0 where G is 0: padding may be infinite."""
    return (a * G).where(G != 0, 0).clamp(min=0)


def _sums(z: Tensor, images: Tensor | None, prior: Tensor) -> Tensor:
    """The sum (B,) of each image's elements."""
    if images is None:
        return z.flatten(1).sum(1, dtype=torch.float64).to(z.dtype)
    return prior.new_zeros(len(prior)).index_add_(0, images, z.flatten())


def constants_of(node: Any) -> Constants | None:
    """The constants in a node's value, unless all are 0."""
    constants = node_facts(node).constants
    return constants if constants is not None and constants.value is not None else None
