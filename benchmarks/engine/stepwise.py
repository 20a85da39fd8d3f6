"""Step by step: each neuron is explained by its own inputs (Eq. 4), the classifier's also by their duals (Eq. 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.operations import Op, Value
from benchmarks.engine.paths import is_learned
from benchmarks.engine.rules.rule import How, Share


class Stepwise:
    """An answer for `walk`: shares of probability.

    Args:
        ops: the whole list.
        contrastive: subtract, at the classifiers, the shares of their duals.
        lose: is told each operation, the probability of its results, and its operands' shares.
    """

    def __init__(
        self, ops: Sequence[Op], *, contrastive: bool = False, lose: Callable[[Op, Any, Any], None] | None = None
    ) -> None:
        self._read = read_by_layers(ops)
        self._contrastive, self._lose = contrastive, lose

    def start(self, value: Value) -> How:
        """How the probability of a value is to be explained, where it starts there."""
        return How(above_classifier=value not in self._read)

    def __call__(self, op: Op, arrived: list[list[Share]]) -> list[list[Share]]:
        result: list[list[Share]] = [[] for _ in op.operands]
        for P, how in (group for of_all in _grouped(op, arrived) for group in _of_each_sign(op, *of_all)):
            found = self._shares(op, P, how)
            if self._lose is not None:
                self._lose(op, P, found)
            for claims, share in zip(result, found, strict=True):
                if share is not None:
                    claims.append(share)
        return result

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
    found: dict[object, tuple[How, list[Tensor | None]]] = {}
    for at, claims in enumerate(arrived):
        for share in claims:
            assert share is not None
            P, how = share
            signs = how.signs if op.outs[at].facts.is_open else None
            key = signs if signs is None or isinstance(signs, int) else id(signs)
            key = key, how.above_classifier
            known, total = found.setdefault(key, (how._replace(signs=signs), [None] * len(arrived)))
            before = total[at]
            total[at] = P if before is None else before + P
            if not how.spares_zeros and known.spares_zeros:
                found[key] = known._replace(spares_zeros=False), total
    return [(P, how) for how, P in found.values()]


def _of_each_sign(op: Op, P: list[Tensor | None], how: How) -> list[tuple[list[Tensor | None], How]]:
    """Copies of a response can be explained with different signs, so their probabilities are not added."""
    signs = how.signs
    if not isinstance(signs, Tensor) or op.operands[0].shape.numel() >= op.outs[0].shape.numel():
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
    parts = [share[0] for share in shares if share is not None]
    return sum(parts[1:], parts[0]) if parts else torch.zeros(like.shape, dtype=like.dtype, device=like.device)
