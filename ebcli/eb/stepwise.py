"""Step by step: each neuron is explained by its own inputs (Eq. 4), the classifier's also by their duals (Eq. 7)."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import is_learned
from ebcli.eb.products import add_all
from ebcli.eb.rules.layers import Layer
from ebcli.eb.rules.moves import MISSING
from ebcli.eb.rules.rule import BackwardContext, Share, Shares

Explains = Literal["target", "dual", "difference"]


class Group(NamedTuple):
    """Probability of each result, None where there is none, that is to be explained in the same way."""

    P: list[Tensor | None]
    context: BackwardContext


class Stepwise:
    """Propagates, for `walk`, shares of probability.

    Args:
        ops: the whole list.
        explains: the classifiers' units, their duals, or the first minus the second.
        tracks: sum up what probability each operation lost.
    """

    def __init__(self, ops: Sequence[Op], explains: Explains = "target", *, tracks: bool = False) -> None:
        self._read_by_layers = read_by_layers(ops)
        self._explains = explains
        self._tracks = tracks
        self.lost: dict[Op, Any] = {}

    def start(self, value: Value) -> BackwardContext:
        """How the probability of a value is to be explained, where it starts there."""
        return BackwardContext(above_classifier=value not in self._read_by_layers)

    def __call__(self, op: Op, incoming: list[Shares]) -> list[Shares]:
        outgoing: list[Shares] = [[] for _ in op.operands]
        for group in _group(op, incoming):
            for P, context in _of_each_sign(op, group):
                shares = self._shares(op, P, context)
                if self._tracks and op.rule is not MISSING:
                    total_before = self.lost.get(op, 0)
                    self.lost[op] = total_before + _mass(P) - _mass(share and share[0] for share in shares)
                for of_operand, share in zip(outgoing, shares, strict=True):
                    if share:
                        of_operand.append(share)
        return outgoing

    def lost_on(self, path: Iterable[Op]) -> dict[str, Tensor]:
        """What was lost on a path, by the names of the operations."""
        lost: dict[str, Any] = {}
        for op in filter(self.lost.__contains__, path):
            lost[op.site] = lost.get(op.site, 0) + self.lost[op].to(op.out.dtype)[None]
        return lost

    def _shares(self, op: Op, P: list[Tensor | None], context: BackwardContext) -> Shares:
        is_classifier = context.above_classifier and is_learned(op)
        # a response that a layer reads, too, also skips to the output
        skips = context.above_classifier and not self._read_by_layers.isdisjoint(op.outs)
        own_context = context
        if skips:
            own_context = context._replace(above_classifier=False)
        shares: Shares = op.rule.shares(op, P, own_context)
        if is_classifier and self._explains != "target":
            signs = -1 if context.signs is None else -context.signs
            duals: Shares = op.rule.shares(op, P, context._replace(signs=signs))
            if self._explains == "dual":
                return duals
            return [s and d and (s[0] - d[0], s[1]) for s, d in zip(shares, duals, strict=True)]
        if skips and not is_classifier:
            return [s and (s[0], s[1]._replace(above_classifier=True)) for s in shares]
        return shares


def _mass(probabilities: Iterable[Tensor | None]) -> Any:
    return sum(P.sum(dtype=torch.float64) for P in probabilities if P is not None)


def _group(op: Op, incoming: list[Shares]) -> list[Group]:
    """What has arrived at each result. That which is to be explained in the same way is added up."""
    groups: dict[object, Group] = {}
    for index, (out, claims) in enumerate(zip(op.outs, incoming, strict=True)):
        for P, of_claim in filter(None, claims):
            context = of_claim if out.facts.is_open else of_claim._replace(signs=None, norm=None)
            signs = context.signs
            # tensors are the same signs only if they are the same tensor
            key = id(signs) if isinstance(signs, Tensor) else signs, context.above_classifier, context.norm
            sums, before = groups.get(key, Group([None] * len(incoming), context))
            present = sums[index]
            sums[index] = P if present is None else present + P
            skips_zeros = before.skips_zeros and context.skips_zeros
            groups[key] = Group(sums, context._replace(skips_zeros=skips_zeros))
    return [*groups.values()]


def _of_each_sign(op: Op, group: Group) -> list[Group]:
    """Copies of a response can be explained with different signs, so their probabilities are not added."""
    P, context = group
    signs = context.signs
    has_copies = op.operand.numel < op.out.numel
    if not isinstance(signs, Tensor) or not has_copies or isinstance(op.rule, Layer):
        return [group]
    groups = []
    for sign in (1, -1):
        mask = signs * sign > 0
        groups.append(Group([p if p is None else p * mask for p in P], context._replace(signs=sign)))
    return groups


def read_by_layers(ops: Sequence[Op]) -> set[Value]:
    """The values that a layer with weights reads, so that the layers which made them are no classifiers."""
    values: set[Value] = set()
    for op in reversed(ops):
        if is_learned(op) or not values.isdisjoint(op.outs):
            values.update(op.operands)
    return values


def total(shares: Sequence[Share], like: Value) -> Tensor:
    """The probability that has arrived."""
    parts = [share[0] for share in shares if share]
    if parts:
        return add_all(parts)
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
