"""Averages, sums and interpolation: weighted sums with fixed weights. And writing that adds to what was there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.facts import MIXED, SWITCH, inherited
from benchmarks.engine.products import LinearMap, added, quotient
from benchmarks.engine.record import Op, Value
from benchmarks.engine.rules.layers import Layer, weighted_label
from benchmarks.engine.rules.rule import ENDS, MISSING, Arrived, How, Join, Rule, Share, gradient


class Average(Rule):
    """y = W a with fixed, non-negative weights: by the contributions with the sign of y.

    Args:
        reduces: it makes fewer elements, and could be the average that a classifier reads.
        all_inputs: all floating inputs are added, not only the first one.
    """

    def __init__(self, *, reduces: bool = False, all_inputs: bool = False) -> None:
        super().__init__()
        self._reduces, self._all_inputs = reduces, all_inputs

    def keeps(self, op: Op) -> Sequence[Value]:
        return op.inputs

    def rearranges(self, op: Op) -> bool:
        return False

    def takes(self, op: Op, at: int) -> bool:
        return op.operands[at].is_floating and (at == 0 or self._all_inputs)

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative = all(v.facts.nonnegative for v in self._signals(op)) and not (
            self._all_inputs and any(isinstance(a, Tensor) and a.is_floating_point() for a in op.args)
        )
        facts.gate = MIXED if facts.gate in (MIXED, SWITCH) else 0
        facts.mixtures += self.mixes(op)
        op.out.facts = facts

    def mixes(self, op: Op) -> bool:
        if op.name == "sum" and op.signal.facts.weighed:
            axes, ndim = op.args[1] if len(op.args) > 1 else None, len(op.signal.shape)
            reduced = {axis if axis < 0 else axis - ndim for axis in axes or range(ndim)}
            return not reduced.isdisjoint(op.signal.facts.weighed)
        return op.name.startswith("grid_sampler") and len(op.inputs) > 1

    def is_linear(self, op: Op) -> bool:
        return True

    def averages(self, op: Op) -> bool:
        return self._reduces and op.out.shape.numel() < op.signal.shape.numel() and not self.mixes(op)

    def _signals(self, op: Op) -> list[Value]:
        return [value for i, value in enumerate(op.operands) if self.takes(op, i)]

    def _neurons(self, op: Op, how: How) -> list[tuple[Any, list[Tensor | None], Tensor]]:
        """For each sign: which neurons have it, the inputs with that sign, and their sum."""
        found = []
        positive = all(value.facts.nonnegative for value in self._signals(op))
        for sign in (1,) if positive and how.signs is None else (1, -1):
            parts = [
                (
                    (v.tensor if positive and sign > 0 else (sign * v.tensor).clamp_(min=0))
                    if self.takes(op, i)
                    else v.tensor
                )
                for i, v in enumerate(op.operands)
            ]
            constant = torch.zeros_like if self._all_inputs else _same
            z = op.at(
                *parts, constant=lambda a, c=constant: c(a) if isinstance(a, Tensor) and a.is_floating_point() else a
            )
            if not positive or how.signs is not None:
                signs = op.out.tensor if how.signs is None else torch.as_tensor(how.signs)
                found.append((signs * sign > 0, parts, z))
            else:
                found.append((True, parts, z))
        return found

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        totals: list[list[Tensor]] = [[] for _ in op.operands]
        for takes, parts, z in self._neurons(op, how):
            q, scale = quotient(P[0] if takes is True else P[0] * takes, z)
            for i, (part, back) in enumerate(zip(parts, self.back(op, [q]), strict=True)):
                if self.takes(op, i):
                    assert back is not None
                    totals[i].append(part * back if scale is None else (part * back.float() * scale).to(part.dtype))
        below = How(None, how.above_classifier, spares_zeros=True)
        return [(added(terms), below) if terms else None for terms in totals]

    def loses(self, op: Op, how: How) -> Tensor:
        return added([z if takes is True else z * takes for takes, _, z in self._neurons(op, how)]) == 0

    def back(self, op: Op, arrived: Arrived) -> list[Tensor | None]:
        return gradient(op, [v.zeros() if self.takes(op, i) else v.tensor for i, v in enumerate(op.operands)], arrived)

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        others = [value.tensor for value in op.operands[1:]] if not self._all_inputs else of[1:]
        return [weighted_label(lambda a: op.at(a.contiguous(), *others), of[0])]


def _same(a: Any) -> Any:
    return a


def pooling(op: Op) -> Rule:
    divisor = op.named.get("divisor_override")
    return MISSING if divisor is not None and divisor < 0 else _AVERAGE


def sampled(op: Op) -> Rule:
    """Of `grid_sample`: the grid is where to look, and gets nothing, as queries and keys."""
    if op.named["interpolation_mode"] == 2:
        return MISSING  # bicubic, whose weights have both signs
    return _SAMPLED if isinstance(op.args[0], Value) else ENDS


def written(op: Op) -> Rule:
    """Of `index_add` and the like."""
    alpha = op.kwargs.get("alpha", 1)
    return MISSING if alpha <= 0 else _WRITTEN


def put(op: Op) -> Rule:
    accumulates = op.named.get("accumulate", False)
    return _WRITTEN if accumulates else Join()


class Bicubic(Layer):
    """W a = R a C^T, whose rows R and columns C have negative weights too."""

    def __init__(self) -> None:
        super().__init__(_bicubic)

    @property
    def is_learned(self) -> bool:
        return False

    def averages(self, op: Op) -> bool:
        return False

    def learn(self, op: Op) -> None:
        super().learn(op)
        facts = op.out.facts
        facts.is_open, facts.layers = False, facts.layers - 1

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.nn.functional.interpolate(of[0], op.out.shape[-2:])]


def _bicubic(op: Op) -> LinearMap:
    like = op.signal

    def along(axis: int) -> list[Tensor]:
        units = torch.eye(like.shape[axis], dtype=like.dtype, device=like.device)
        images = units[:, None, :, None].expand(-1, 1, -1, like.shape[-1])  # rows are units, columns alike
        images = images if axis == -2 else units[:, None, None].expand(-1, 1, like.shape[-2], -1)
        resampled = op.at(images.contiguous())
        weight = (resampled[:, 0, :, 0] if axis == -2 else resampled[:, 0, 0]).T
        return [weight.clamp(min=0), (-weight).clamp(min=0)]

    rows, columns = along(-2), along(-1)

    def resample(a: Tensor, negative: int) -> Tensor:
        return rows[0] @ a @ columns[negative].T + rows[1] @ a @ columns[1 - negative].T

    return LinearMap(lambda a: resample(a, 0), negative=lambda a: resample(a, 1))


class LogSumExp(Rule):
    """A unit that adds up exp(a_k), and its logarithm: to the elements by their softmax."""

    def keeps(self, op: Op) -> Sequence[Value]:
        return (*op.inputs, *op.outs)

    def rearranges(self, op: Op) -> bool:
        return False

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        facts.nonnegative = False
        facts.activations += 2
        op.out.facts = facts

    def _weights(self, op: Op, spread: Tensor) -> Tensor:
        a, (axes, *rest) = op.signal.tensor, op.args[1:]
        keeps = bool(rest and rest[0])
        axes = [axes] if isinstance(axes, int) else axes
        total = op.out.tensor
        for axis in sorted(axis % a.ndim for axis in axes) if not keeps else []:
            total, spread = total.unsqueeze(axis), spread.unsqueeze(axis)
        return (a - total).exp() * spread

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        assert P[0] is not None
        return [(self._weights(op, P[0]), How(None, how.above_classifier))]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        assert G[0] is not None
        a = op.signal.tensor
        won = self._weights(op, (G[0] * op.out.tensor).clamp(min=0))
        return [torch.where(a == 0, 0, won / a)]

    def labels(self, op: Op, of: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.amax(of[0], *op.args[1:])]


_AVERAGE, _REDUCED, _WRITTEN = Average(), Average(reduces=True), Average(all_inputs=True)
_SAMPLED = Average()

ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    **dict.fromkeys("mean sum _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d trace".split(), _REDUCED),
    **dict.fromkeys(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
        "_upsample_bilinear2d_aa cumsum col2im torchvision.roi_align torchvision.ps_roi_align".split(),
        _AVERAGE,
    ),
    **dict.fromkeys(["avg_pool1d", "avg_pool2d", "avg_pool3d"], pooling),
    **dict.fromkeys(["upsample_bicubic2d", "_upsample_bicubic2d_aa"], Bicubic()),
    **dict.fromkeys(["grid_sampler_2d", "grid_sampler_3d"], sampled),
    **dict.fromkeys(["index_add", "scatter_add"], written),
    **dict.fromkeys(["index_put", "_unsafe_index_put"], put),
    "logsumexp": LogSumExp(),
}
