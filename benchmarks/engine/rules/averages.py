"""Averages, sums and interpolation: weighted sums with fixed weights. And writing that adds to what was there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.engine.facts import MIXED, SWITCH, inherited
from benchmarks.engine.operations import Op, Value
from benchmarks.engine.products import LinearMap, added, quotient
from benchmarks.engine.rules.layers import Layer
from benchmarks.engine.rules.rule import ENDS, MISSING, Arrived, How, Join, Rule, Share, gradient


class Average(Rule):
    """y = W a with fixed, non-negative weights: by the contributions with the sign of y.

    Args:
        reduces: it makes fewer elements, and could be the average that a classifier reads.
        all_inputs: all floating inputs are added, not only the first one.
    """

    def __init__(self, *, reduces: bool = False, all_inputs: bool = False) -> None:
        self._reduces, self._all_inputs = reduces, all_inputs

    def operands(self, op: Op) -> list[Value]:
        return super().operands(op) if self._all_inputs else op.inputs[:1]

    def keeps(self, op: Op) -> Sequence[Value]:
        return op.inputs

    def learn(self, op: Op) -> None:
        facts = inherited(op)
        adds_constants = self._all_inputs and any(isinstance(a, Tensor) and a.is_floating_point() for a in op.args)
        facts.nonnegative = all(v.facts.nonnegative for v in op.operands) and not adds_constants
        facts.gate = MIXED if facts.gate in (MIXED, SWITCH) else 0
        weighed = op.name == "sum" and not op.signal.facts.weighed.isdisjoint(reduced_axes(op))
        facts.mixtures += weighed or (op.name.startswith("grid_sampler") and len(op.inputs) > 1)
        op.out.facts = facts

    def averages(self, op: Op) -> bool:
        is_mixture = op.out.facts.mixtures > op.signal.facts.mixtures
        return self._reduces and op.out.shape.numel() < op.signal.shape.numel() and not is_mixture

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        totals: list[list[Tensor]] = [[] for _ in op.operands]
        is_positive = how.signs is None and all(value.facts.nonnegative for value in op.operands)
        signs = None if is_positive else torch.as_tensor(op.out.tensor if how.signs is None else how.signs)
        for sign in (1,) if is_positive else (1, -1):
            parts = {v: v.tensor if is_positive else (sign * v.tensor).clamp_(min=0) for v in op.operands}
            inputs = [parts.get(v, v.tensor) for v in op.inputs]
            z = op.at(*inputs, constant=self._without_constants)
            q, scale = quotient(P[0] if signs is None else P[0] * (signs * sign > 0), z)
            for terms, part, back in zip(totals, parts.values(), self.back(op, [q]), strict=True):
                terms.append(part * back if scale is None else (part * back.float() * scale).to(part.dtype))
        below = How(None, how.above_classifier, spares_zeros=True)
        return [(added(terms), below) for terms in totals]

    def _without_constants(self, a: object) -> object:
        return torch.zeros_like(a) if self._all_inputs and isinstance(a, Tensor) and a.is_floating_point() else a

    def back(self, op: Op, arrived: Arrived) -> list[Tensor | None]:
        inputs = [v.empty() if v in op.operands else v.tensor for v in op.inputs]
        return gradient(op, inputs, arrived)[: len(op.operands)]


def reduced_axes(op: Op) -> set[int]:
    """The axes of its signal that a sum, mean or maximum takes together, counted from the last."""
    ndim, given = len(op.signal.shape), op.args[1] if len(op.args) > 1 else None
    axes = [given] if isinstance(given, int) else range(ndim) if given is None or given == [] else given
    is_told = isinstance(axes, (list, range)) and all(isinstance(axis, int) for axis in axes)
    return {axis % ndim - ndim for axis in axes} if is_told else set()


def pooling(op: Op) -> Rule:
    divisor = op.named.get("divisor_override")
    return MISSING if divisor is not None and divisor < 0 else _AVERAGE


def sampled(op: Op) -> Rule:
    """Of `grid_sample`: the grid is where to look, and gets nothing, as queries and keys."""
    if op.named["interpolation_mode"] == 2:
        return MISSING  # bicubic, whose weights have both signs
    return _AVERAGE if isinstance(op.args[0], Value) else ENDS


def written(op: Op) -> Rule:
    """Of `index_add` and the like."""
    return MISSING if op.kwargs.get("alpha", 1) <= 0 else _WRITTEN


def put(op: Op) -> Rule:
    return _WRITTEN if op.named.get("accumulate", False) else Join()


def _bicubic(op: Op) -> LinearMap:
    """W a = R a C^T, whose rows R and columns C have negative weights too."""
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


_AVERAGE, _REDUCED, _WRITTEN = Average(), Average(reduces=True), Average(all_inputs=True)

ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    **dict.fromkeys("mean sum _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d trace".split(), _REDUCED),
    **dict.fromkeys(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
        "_upsample_bilinear2d_aa cumsum col2im torchvision.roi_align torchvision.ps_roi_align".split(),
        _AVERAGE,
    ),
    **dict.fromkeys(["avg_pool1d", "avg_pool2d", "avg_pool3d"], pooling),
    **dict.fromkeys(["upsample_bicubic2d", "_upsample_bicubic2d_aa"], Layer(_bicubic, is_learned=False)),
    **dict.fromkeys(["grid_sampler_2d", "grid_sampler_3d"], sampled),
    **dict.fromkeys(["index_add", "scatter_add"], written),
    **dict.fromkeys(["index_put", "_unsafe_index_put"], put),
}
