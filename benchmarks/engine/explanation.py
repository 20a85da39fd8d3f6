"""A recorded forward pass, and the maps of some priors, by either rule."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.engine import joint as jointly
from benchmarks.engine.arguments import batch_checked, check_logits
from benchmarks.engine.capture import Capture, LayerChoice, label_of, single_tensor
from benchmarks.engine.mode import Listening, new_record, refuse
from benchmarks.engine.operations import Op, Value
from benchmarks.engine.paths import Path, joins_constants, walk
from benchmarks.engine.places import Places
from benchmarks.engine.products import added, ratio
from benchmarks.engine.record import Record
from benchmarks.engine.rules.rule import MISSING
from benchmarks.engine.stepwise import Stepwise, total
from ebcli.eb.eval_mode import evaluating
from ebcli.eb.maps import special_tokens
from ebcli.errors import LayerError


@dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        record: of it.
        logits: the network's output, (B, num_classes, ...).
        output: its value.
        paths: from there to each layer.
        names: the layers' names.
        images: which image each element belongs to.
    """

    record: Record
    logits: Tensor
    output: Value
    paths: list[Path]
    names: dict[Path, str | None]
    images: Places

    @classmethod
    def of(cls, net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice]) -> Forward:
        """Run the network once. Raises LayerError if the output does not depend on a layer."""
        record = new_record(net)
        with evaluating(net), Listening(record), Capture(net, layers, record) as capture:
            entered = capture.enter(inputs)
            with batch_checked(net, inputs), torch.enable_grad():
                result = single_tensor(net(entered), "the network's output")
            output = record.value_of(result)
        check_logits(net, inputs, result.detach())
        first = min(value.maker.index if value.maker else -1 for value in capture.values())
        # numbers that come back are constants for the record, and their maps would be wrong without a word
        refuse([name for name, at in record.left.items() if at > first], "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        paths = {Path.between(output, value): name for value, name in zip(capture.values(), capture.names, strict=True)}
        if output.facts.is_softmax:
            warnings.warn(
                "the network ends in a softmax: the map explains the score before it, as without the softmax",
                stacklevel=3,
            )
        for path, name in paths.items():
            if not path.ops and path.layer is not output:
                raise LayerError(
                    f"the network's output does not depend on {label_of(name)}, or torch.no_grad() in the network cuts "
                    "the path between them: choose a layer closer to the output"
                )
        return cls(record, result.detach(), output, [*paths], paths, Places(capture.source, 0, record.ops))


Found = tuple[Tensor, dict[str, Tensor]]  # relevance (K, ...) or of one prior (...), and what was lost (K, B) or (B,)


def _stacked(by_prior: Sequence[Sequence[Found]]) -> list[Found]:
    """For each layer, what was found for each prior; what rounding leaves is not lost."""
    found = []
    for of_layer in zip(*by_prior, strict=True):
        maps = torch.stack([P for P, _ in of_layer])
        sites = {site: torch.stack([of[site] for _, of in of_layer]) for site in of_layer[0][1]}
        least = 100 * torch.finfo(maps.dtype).eps
        found.append((maps, {site: lost for site, lost in sites.items() if (lost > least).any()}))
    return found


def _of_image(priors: Tensor, b: int) -> Tensor:
    """Priors (K, B, ...) without the other images."""
    alone = torch.zeros_like(priors)
    alone[:, b] = priors[:, b]
    return alone


def _merged(by_image: Sequence[Explained]) -> Explained:
    relevance, masses, lost = zip(*by_image, strict=True)
    if lost[0] is None:
        return Explained(added(relevance), None if masses[0] is None else torch.cat(masses, 1), None)
    zero = torch.zeros_like(masses[0])
    sites = {
        site: torch.cat([of.get(site, zero) for of in lost], 1) for site in dict.fromkeys(s for of in lost for s in of)
    }
    return Explained(added(relevance), torch.cat(masses, 1), sites)


class Explained(NamedTuple):
    """Of one layer: relevance (K, ...), mass (K, B), and lost mass (K, B) by operation."""

    relevance: Tensor
    mass: Tensor | None
    lost: dict[str, Tensor] | None


class Explanation:
    """The maps of some priors, by either rule.

    Args:
        forward: the forward pass.
        prior: (K, *logits.shape), the probabilities to start from.
        others: (N, *logits.shape), what the maps are contrasted with; None for the duals.
        contrastive: subtract the map of the dual.
        tracks: find the probability that each operation lost.
    """

    def __init__(
        self, forward: Forward, prior: Tensor, others: Tensor | None, *, contrastive: bool, tracks: bool
    ) -> None:
        self._forward, self._images, self._prior, self._others = forward, forward.images, prior, others
        self._contrastive, self._tracks = contrastive and others is None, tracks

    def of(self, paths: Sequence[Path], *, is_joint: bool) -> list[Explained]:
        """The maps of layers."""
        for path in paths:
            if self._contrastive and not path.is_below_classifier:
                raise LayerError(
                    f"{label_of(self._forward.names[path])} is not below the classifier, so it has no contrastive map: "
                    "choose a layer closer to the input"
                )
        images, batch = self._forward.images, len(self._forward.logits)
        joins = [op.out for path in paths for op in path.ops if is_joint and joins_constants(op)]
        if batch == 1 or (all(map(images.tell, [*(path.layer for path in paths), *joins])) and not self._tracks):
            return self._found(paths, is_joint)
        by_image = []  # operations may merge images, so each one is explained alone
        for b in range(batch):
            one = copy.copy(self)
            one._images = images.alone()
            one._prior, one._others = (p if p is None else _of_image(p, b) for p in (self._prior, self._others))
            by_image.append(one._found(paths, is_joint))
        return [_merged(of_layer) for of_layer in zip(*by_image, strict=True)]

    def _found(self, paths: Sequence[Path], is_joint: bool) -> list[Explained]:
        find, prior = self._joint if is_joint else self._stepwise, self._prior
        special = [self._special(path) for path in paths]
        contrasts = None
        if self._contrastive and not is_joint:
            contrasts = [P for P, _ in self._stepwise(prior, paths, contrastive=True)]
            if not (self._tracks or any(special)):
                return [Explained(P, None, None) for P in contrasts]
        marginal = find(prior, paths)
        duals: list[Any] = [None] * len(paths)
        if self._others is not None or (self._contrastive and is_joint):
            duals = [P for P, _ in find(-prior if self._others is None else self._others, paths)]
        found = []
        for i, (path, n, (P, lost)) in enumerate(zip(paths, special, marginal, strict=True)):
            relevance, dual = P, duals[i]
            if contrasts is not None:
                # where every cell is part of the map, both maps sum to 1 at the classifier's inputs already
                relevance, dual = contrasts[i], P - contrasts[i] if n else None
            if dual is not None:
                dual = self._normalized(dual, path, n)
                relevance = self._normalized(P, path, n) - (
                    dual if self._others is None else dual.mean(0, keepdim=True)
                )
            mass = self._sums(P, path) if relevance is P or self._tracks else None
            found.append(Explained(relevance, mass, lost if self._tracks else None))
        return found

    def _joint(self, priors: Tensor, paths: Sequence[Path]) -> list[Found]:
        """All winning neurons of an image as one."""
        return _stacked([jointly.explained(self._forward.output, prior, paths, self._images) for prior in priors])

    def _stepwise(self, priors: Tensor, paths: Sequence[Path], *, contrastive: bool = False) -> list[Found]:
        """Each neuron by itself."""
        output = self._forward.output
        ops = dict.fromkeys(op for path in paths for op in path.ops)
        lost: dict[Op, Any] = {}

        def lose(op: Op, P: list[Any], shares: list[Any]) -> None:
            if op.operands and op.rule is not MISSING:
                went = added([0, *(share[0].sum(dtype=torch.float64) for share in shares if share)])
                lost[op] = lost.get(op, 0) + added([p.sum(dtype=torch.float64) for p in P if p is not None]) - went

        tracks = self._tracks and not contrastive
        answer = Stepwise(self._forward.record.ops, contrastive=contrastive, lose=lose if tracks else None)

        def down(prior: Tensor) -> list[Tensor]:
            lost.clear()
            arrived = walk({output: [(prior, answer.start(output))]}, [path.layer for path in paths], answer, ops)
            return [total(arrived.get(path.layer, []), path.layer) for path in paths]

        def with_losses(prior: Tensor) -> list[Found]:
            found = []
            for path, P in zip(paths, down(prior), strict=True):
                sites: dict[str, Any] = {}
                for op in filter(lost.__contains__, path.ops):
                    sites[op.site] = sites.get(op.site, 0) + lost[op].to(P.dtype)[None]
                found.append((P, sites))
            return found

        if tracks or len(priors) == 1 or not all(op.is_native for op in ops):
            return _stacked(list(map(with_losses, priors)))
        with warnings.catch_warnings():  # about operations that vmap loops over, such as roi_align
            warnings.filterwarnings("ignore", "There is a performance drop")
            return [(maps, {}) for maps in torch.vmap(down)(priors)]

    def _special(self, path: Path) -> int:
        """How many tokens at the front are not cells of the map."""
        of = path.layer
        return special_tokens(of.shape, self._images.source.shape, self._images.axis(of))

    def _sums(self, maps: Tensor, path: Path, special: int = 0) -> Tensor:
        """The sum (K, B) of maps (K, ...) over their cells."""
        if special:
            tokens = 2 - (self._images.axis(path.layer) or 0)
            maps = maps.narrow(tokens, special, maps.shape[tokens] - special)
        return torch.stack([self._images.sums(P, path.layer) for P in maps])

    def _normalized(self, maps: Tensor, path: Path, special: int) -> Tensor:
        """Maps (K, ...) over the probability on their cells; maps without any stay 0.

        Class and register tokens are no cells. Without the normalization, one that takes more from a map than from the
        other would leave the difference of the rest below zero everywhere.
        """
        totals = self._sums(maps, path, special)
        return torch.stack([ratio(P, self._images.spread(of, path.layer)) for P, of in zip(maps, totals, strict=True)])
