"""A recorded forward pass, and the maps of some priors, by either rule."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ebcli.eb import joint
from ebcli.eb.arguments import check_batch, check_logits
from ebcli.eb.capture import Capture, LayerChoice, evaluating, label_of, single_tensor
from ebcli.eb.mode import Listening, refuse
from ebcli.eb.operations import Value
from ebcli.eb.paths import Path, Places, joins_constants, latest_first, walk
from ebcli.eb.products import added, ratio
from ebcli.eb.record import Record
from ebcli.eb.result import special_tokens
from ebcli.eb.stepwise import Stepwise, total
from ebcli.errors import LayerError


@dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        record: of it.
        logits: the network's output, (B, num_classes, ...).
        output: its value.
        paths: from there to each layer, and the layer's name.
        images: which image each element belongs to.
    """

    record: Record
    logits: Tensor
    output: Value
    paths: dict[Path, str | None]
    images: Places

    @classmethod
    def of(cls, net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice], *, tracks: bool) -> "Forward":
        """Run the network once. Raises LayerError if the output does not depend on a layer."""
        record = Record(net, names_all=tracks)
        with evaluating(net), Listening(record), Capture(net, layers, record) as capture, torch.enable_grad():
            try:
                result = single_tensor(net(capture.enter(inputs)), "the network's output")
            except (RuntimeError, ValueError, IndexError):
                check_batch(net, inputs)
                raise
            output = record.value_of(result)
        check_logits(net, inputs, result.detach())
        first = min(value.maker.index if value.maker else -1 for value in capture.values())
        # numbers that come back are constants for the record, and their maps would be wrong without a word
        refuse([name for name, at in record.left.items() if at > first], "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        paths = {Path(output, value): name for value, name in zip(capture.values(), capture.names, strict=True)}
        if output.facts.is_softmax:
            warnings.warn("the network ends in a softmax: the map explains the score before it", stacklevel=3)
        cut = [label_of(name) for path, name in paths.items() if not path.ops and path.layer is not output]
        if cut:
            raise LayerError(f"the output does not depend on {cut[0]}, or only in torch.no_grad(): choose a later one")
        return cls(record, result.detach(), output, paths, Places(capture.source, 0, record.ops))


# Of one layer: relevance (K, ...), mass (K, B), and lost mass (K, B) by operation
Explained = tuple[Tensor, Tensor | None, dict[str, Tensor]]
Maps = list[joint.Found]


@dataclass(frozen=True)
class Explanation:
    """The maps of some priors, by either rule.

    Attributes:
        forward: the forward pass.
        prior: (K, *logits.shape), the probabilities to start from.
        others: (N, *logits.shape), subtract the mean of their maps, if there are any.
        contrastive: subtract the maps of the duals.
        tracks: find the probability that each operation lost.
    """

    forward: Forward
    prior: Tensor
    others: Tensor
    contrastive: bool
    tracks: bool

    def of(self, paths: Sequence[Path], *, is_joint: bool) -> list[Explained]:
        """The maps of layers."""
        above = [label_of(self.forward.paths[path]) for path in paths if set(path.classifiers).isdisjoint(path.ops)]
        if self.contrastive and above:
            raise LayerError(f"{above[0]} is not below the classifier, as contrastive maps need: choose an earlier one")
        joins = [op.out for path in paths for op in path.ops if is_joint and joins_constants(op)]
        have_axes = None not in map(self.forward.images.axis, [*(path.layer for path in paths), *joins])
        batch, *rest = self.forward.logits.shape
        if batch == 1 or (have_axes and not self.tracks):
            return self._found(paths, is_joint)
        # operations may merge images, so each one is explained alone
        forward, by_image = replace(self.forward, images=self.forward.images.alone()), []
        for only in torch.eye(batch).to(self.prior).reshape(batch, batch, *(1 for _ in rest)):
            one = replace(self, forward=forward, prior=self.prior * only, others=self.others * only)
            by_image.append(one._found(paths, is_joint))
        return [_merged(of_layer) for of_layer in zip(*by_image, strict=True)]

    def _found(self, paths: Sequence[Path], is_joint: bool) -> list[Explained]:
        others = -self.prior if self.contrastive and is_joint else self.others
        differences: Maps = []
        if self.contrastive and not is_joint:
            differences = self._maps(self.prior, paths, is_joint, subtracts_duals=True)
            if not (self.tracks or any(map(self._special, paths))):
                return [(P, None, {}) for P, _ in differences]
        marginal = self._maps(self.prior, paths, is_joint)
        subtracted = self._maps(others, paths, is_joint) if len(others) else []
        found: list[Explained] = []
        for i, (path, (P, lost)) in enumerate(zip(paths, marginal, strict=True)):
            relevance = P
            if subtracted:
                other = self._normalized(subtracted[i][0], path)
                relevance = self._normalized(P, path) - (other.mean(0, keepdim=True) if len(self.others) else other)
            elif differences:
                relevance, _ = differences[i]
                if self._special(path):  # otherwise both maps sum to 1 at the classifier's inputs already
                    relevance = self._normalized(P, path) - self._normalized(P - relevance, path)
            mass = self._sums(P, path) if relevance is P or self.tracks else None
            found.append((relevance, mass, lost))
        return found

    def _maps(self, priors: Tensor, paths: Sequence[Path], is_joint: bool, *, subtracts_duals: bool = False) -> Maps:
        output, ops = self.forward.output, latest_first(op for path in paths for op in path.ops)
        answer = Stepwise(self.forward.record.ops, contrastive=subtracts_duals, tracks=self.tracks)

        def down(prior: Tensor) -> Maps:
            if is_joint:  # all winning neurons of an image as one
                return joint.explained(output, prior, paths, self.forward.images)
            answer.lost.clear()
            arrived = walk({output: [(prior, answer.start(output))]}, ops, answer, [path.layer for path in paths])
            return [(total(arrived.get(path.layer, []), path.layer), answer.lost_on(path.ops)) for path in paths]

        if is_joint or len(priors) == 1 or not all(op.is_native for op in ops):
            return tree_map(lambda *of_priors: torch.stack(of_priors), *map(down, priors))
        with warnings.catch_warnings():  # about operations that vmap loops over, such as roi_align
            warnings.filterwarnings("ignore", "There is a performance drop")
            return torch.vmap(down)(priors)

    def _special(self, path: Path) -> int:
        """How many tokens at the front are not cells of the map."""
        return special_tokens(path.layer.shape, self.forward.images.source.shape, self.forward.images.axis(path.layer))

    def _sums(self, maps: Tensor, path: Path) -> Tensor:
        """The sum (K, B) of maps (K, ...) over their cells."""
        return torch.stack([self.forward.images.sums(P, path.layer) for P in maps])

    def _normalized(self, maps: Tensor, path: Path) -> Tensor:
        """Maps (K, ...) over the probability on their cells; maps without any stay 0.

        Class and register tokens are no cells. Without the normalization, one that takes more from a map than from the
        other would leave the difference of the rest below zero everywhere.
        """
        special, cells = self._special(path), maps
        if special:
            tokens = 2 - (self.forward.images.axis(path.layer) or 0)
            cells = maps.narrow(tokens, special, maps.shape[tokens] - special)
        by_prior = zip(maps, self._sums(cells, path), strict=True)
        return torch.stack([ratio(P, self.forward.images.spread(of, path.layer)) for P, of in by_prior])


def _merged(by_image: Sequence[Explained]) -> Explained:
    """Maps of all images, from those of each image."""
    relevance, mass, lost = zip(*by_image, strict=True)
    total = None if mass[0] is None else torch.cat(mass, 1)
    return added(relevance), total, {site: torch.cat([of[site] for of in lost], 1) for site in lost[0]}
