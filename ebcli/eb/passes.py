"""The backward passes: from a prior over the classes to the relevance at each layer, the mass and the lost mass."""

from __future__ import annotations

import warnings
from itertools import islice

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ebcli.eb.autograd import quiet, vector_jacobian
from ebcli.eb.contrast import difference, difference_from_mean, mass
from ebcli.eb.graph import contributions_of, facts
from ebcli.eb.paths import Passes, check_below


class BackwardPasses(Passes):
    """Backward passes that explain each neuron by its own inputs."""

    def lost_mass(self) -> list[dict[str, Tensor]]:
        """For each layer, (K, B) for each operation: the probability that arrives at neurons nothing contributes to."""
        found: list[dict[str, Tensor]] = [{} for _ in self._paths]
        nodes = self._graph.weighted
        if not nodes:
            return found
        targets, batch = self._priors.shape[:2]
        arrived = torch.autograd.grad(
            self._logits,
            [GradientEdge(node, 0) for node in nodes],
            torch.cat([self._priors, _numbered(self._priors.abs().sum(0))]),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
            materialize_grads=False,
        )
        for node, P in zip(nodes, arrived, strict=True):
            if P is not None:  # no probability arrives at layers with something folded into them
                _, z = contributions_of(node).normalizer(*node.saved_tensors)
                swallowed = P[:targets].where(z == 0, 0).flatten(1)
                lost = swallowed.new_zeros(targets, batch).index_add_(1, _image_of(P[targets:].flatten(1)), swallowed)
                site = facts(node).site  # type: ignore[union-attr]
                for path, by_site in zip(self._paths, found, strict=True):
                    if node in path.above and lost.any():
                        by_site[site] = by_site.get(site, 0) + lost
        return found

    def relevance(self, contrastive: bool) -> list[tuple[Tensor, Tensor]]:
        """Relevance (K, B, ...) at each layer, and the marginal mass (K, B).

        Raises:
            LayerError: contrastive, at a layer that is not below the classifier.
        """
        top = self._graph.classifiers if contrastive else []
        if contrastive:
            check_below(top, self._paths)
        for node in top:
            contributions_of(node).dual = contributions_of(node).of_dual()
        self._prepare(self._priors, kept=contrastive)
        with quiet():
            for node in top:
                contributions_of(node).dual.prepare(*node.saved_tensors)
        relevances = self._down(self._priors)
        if not contrastive:
            return [(relevance, mass(relevance)) for relevance in relevances]
        is_whole = all(path.takes_all for path in self._paths) and not any(self._special)
        if is_whole and self._graph.loses_nothing():
            return [(relevance, mass(self._priors)) for relevance in relevances]
        for node in top:
            contributions_of(node).dual = None
        return [
            # where every cell is part of the map, both maps sum to 1 at the classifier's inputs already
            (difference(P, P - relevance, special) if special else relevance, mass(P))
            for relevance, P, special in zip(relevances, self._down(self._priors), self._special, strict=True)
        ]

    def against(self, others: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each map minus the mean map of other priors (N, *logits.shape), both normalized; and the mass (K, B)."""
        targets = len(self._priors)
        priors = torch.cat([self._priors, others])
        self._prepare(priors)
        found = []
        for P, special in zip(self._down(priors), self._special, strict=True):
            found.append((difference_from_mean(P[:targets], P[targets:], special), mass(P[:targets])))
        return found

    def _prepare(self, priors: Tensor, *, kept: bool = False) -> None:
        """Compute what several priors, or several backward passes, share."""
        several = len(priors) > 1
        if not (several or kept):
            return
        with quiet():
            for node in self._graph.weighted:
                if several or not contributions_of(node).normalizes_in_backward:
                    contributions_of(node).prepare(*node.saved_tensors)

    def _down(self, priors: Tensor) -> tuple[Tensor, ...]:
        """One backward pass: relevance (K, B, ...) at each layer, all K together."""
        edges = [GradientEdge(node, 0) for path in self._paths for node in path.ends]

        several = len(priors) > 1
        grad = torch.autograd.grad if several else vector_jacobian  # vmap knows the first

        def down(prior: Tensor) -> tuple[Tensor, ...]:
            arrived = iter(grad(self._logits, edges, prior, retain_graph=True, allow_unused=True))
            return tuple(path.arriving(list(islice(arrived, len(path.ends)))) for path in self._paths)

        if several:
            with warnings.catch_warnings():  # about operations that vmap loops over, such as roi_align
                warnings.filterwarnings("ignore", "There is a performance drop")
                return torch.vmap(down)(priors)
        return tuple(P[None] for P in down(priors[0]))


def _numbered(prior: Tensor) -> Tensor:
    """A prior (B, ...), and once for each binary digit of an image's number, doubled where that digit is 1."""
    images = torch.arange(len(prior), device=prior.device)
    digits = [1 + (images >> digit) % 2 for digit in range((len(prior) - 1).bit_length())]
    return torch.stack([prior, *(prior * d.reshape(-1, *(1 for _ in prior.shape[1:])).to(prior) for d in digits)])


def _image_of(P: Tensor) -> Tensor:
    """Which image each neuron (N,) belongs to, from what arrives there of a numbered prior (1 + digits, N).

    Tokens may be part of the batch or come before it, so the shape does not tell.
    """
    digits = P[1:] > 1.5 * P[:1]
    return sum((digit.long() << at for at, digit in enumerate(digits)), torch.zeros_like(P[0], dtype=torch.long))
