"""Step by step: each neuron is explained by its own inputs (Eq. 4), the classifier's also by their duals (Eq. 7)."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import is_learned
from ebcli.eb.products import added
from ebcli.eb.rules.layers import Layer
from ebcli.eb.rules.rule import MISSING, How, Share


class Stepwise:
    """An answer for `walk`: shares of probability.

    Args:
        ops: the whole list.
        contrastive: subtract, at the classifiers, the shares of their duals.
        tracks: sum up what probability each operation lost.
    """

    def __init__(self, ops: Sequence[Op], *, contrastive: bool = False, tracks: bool = False) -> None:
        self._read, self._contrastive, self._tracks = read_by_layers(ops), contrastive, tracks
        self.lost: dict[Op, Any] = {}

    def start(self, value: Value) -> How:
        """How the probability of a value is to be explained, where it starts there."""
        return How(above_classifier=value not in self._read)

    def __call__(self, op: Op, arrived: list[list[Share]]) -> list[list[Share]]:
        found = []
        for P, how in (group for of_all in _grouped(op, arrived) for group in _of_each_sign(op, *of_all)):
            shares = self._shares(op, P, how)
            if self._tracks and op.rule is not MISSING:
                came = sum(p.sum(dtype=torch.float64) for p in P if p is not None)
                went = sum(share[0].sum(dtype=torch.float64) for share in shares if share)
                self.lost[op] = self.lost.get(op, 0) + came - went
            found.append(shares)
        return [[share for share in of_operand if share] for of_operand in zip(*found, strict=True)]

    def lost_on(self, path: Iterable[Op]) -> dict[str, Tensor]:
        """What was lost on a path, by the names of the operations."""
        found: dict[str, Any] = {}
        for op in filter(self.lost.__contains__, path):
            found[op.site] = found.get(op.site, 0) + self.lost[op].to(op.out.dtype)[None]
        return found

    def _shares(self, op: Op, P: list[Tensor | None], how: How) -> list[Share]:
        is_classifier, own = how.above_classifier and is_learned(op), how
        if how.above_classifier and not self._read.isdisjoint(op.outs):  # a response that also skips to the output
            own = how._replace(above_classifier=False)
        shares: list[Share] = op.rule.shares(op, P, own)
        if is_classifier and self._contrastive:
            duals = op.rule.shares(op, P, how._replace(signs=-1 if how.signs is None else -how.signs))
            return [s and d and (s[0] - d[0], s[1]) for s, d in zip(shares, duals, strict=True)]
        if own is not how and not is_classifier:
            return [s and (s[0], s[1]._replace(above_classifier=True)) for s in shares]
        return shares


def _grouped(op: Op, arrived: list[list[Share]]) -> list[tuple[list[Tensor | None], How]]:
    """What has arrived at each result. That which is to be explained in the same way is added up."""
    groups: dict[object, tuple[list[Any], How]] = {}
    for at, (out, claims) in enumerate(zip(op.outs, arrived, strict=True)):
        for P, how in filter(None, claims):
            signs = how.signs if out.facts.is_open else None
            # tensors are the same signs only if they are the same tensor
            key = id(signs) if isinstance(signs, Tensor) else signs, how.above_classifier
            total, before = groups.get(key, ([None] * len(arrived), how))
            total[at] = P if total[at] is None else total[at] + P
            groups[key] = total, How(signs, how.above_classifier, before.spares_zeros and how.spares_zeros)
    return list(groups.values())


def _of_each_sign(op: Op, P: list[Tensor | None], how: How) -> list[tuple[list[Tensor | None], How]]:
    """Copies of a response can be explained with different signs, so their probabilities are not added."""
    signs, has_copies = how.signs, op.operands[0].shape.numel() < op.outs[0].shape.numel()
    if not (isinstance(signs, Tensor) and has_copies) or isinstance(op.rule, Layer):
        return [(P, how)]
    return [([p if p is None else p * (signs * s > 0) for p in P], how._replace(signs=s)) for s in (1, -1)]


def read_by_layers(ops: Sequence[Op]) -> set[Value]:
    """The values that a layer with weights reads, so that the layers which made them are no classifiers."""
    found: set[Value] = set()
    for op in reversed(ops):
        if is_learned(op) or not found.isdisjoint(op.outs):
            found.update(op.operands)
    return found


def total(shares: Sequence[Share], like: Value) -> Tensor:
    """The probability that has arrived."""
    parts = [share[0] for share in shares if share]
    return added(parts) if parts else torch.zeros(like.shape, dtype=like.dtype, device=like.device)
