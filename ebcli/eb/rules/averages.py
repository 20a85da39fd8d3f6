"""Averages, sums and interpolation: weighted sums with fixed weights. And writing that adds to what was there."""

from collections.abc import Callable

import torch
from torch import Tensor

from ebcli.eb.facts import SUMMED, Facts
from ebcli.eb.operations import Op, Value
from ebcli.eb.products import LinearMap, shared
from ebcli.eb.rules.layers import Layer
from ebcli.eb.rules.rule import ENDS, MISSING, Arrived, How, Join, Rule, Share, Winner


class Average(Layer):
    """Fixed, non-negative weights.

    Args:
        reduces: it makes fewer elements, and could be the average that a classifier reads.
    """

    def __init__(self, *, reduces: bool = False) -> None:
        super().__init__(_itself, is_learned=False, nonnegative=lambda op: op.signal.facts.nonnegative)
        self._reduces = reduces

    def describe(self, op: Op, facts: Facts) -> None:
        super().describe(op, facts)
        weighed = op.name == "sum" and not op.signal.facts.weighed.isdisjoint(reduced_axes(op))
        facts.mixtures += weighed or (op.name.startswith("grid_sampler") and len(op.inputs) > 1)

    def averages(self, op: Op) -> bool:
        is_mixture = op.out.facts.mixtures > op.signal.facts.mixtures
        return self._reduces and op.out.shape.numel() < op.signal.shape.numel() and not is_mixture


def _itself(op: Op) -> LinearMap:
    return LinearMap(lambda a: op.at(a, *(value.tensor for value in op.inputs[1:])))


class Written(Winner):
    """Adds to what is there: a layer y = a + W b, whose signals are both a and b."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative &= not any(map(_is_bias, op.args))
        facts.gate = SUMMED.get(facts.gate, 0)

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        sizes = [value.shape.numel() for value in op.operands]

        def apply(a: Tensor) -> Tensor:
            parts = iter(a.split(sizes))
            inputs = [next(parts).view(v.shape) if v.is_floating else v.tensor for v in op.inputs]
            return op.at(*inputs, constant=lambda a: torch.zeros_like(a) if _is_bias(a) else a)

        a = torch.cat([value.tensor.flatten() for value in op.operands])
        found = shared(LinearMap(apply), a, P[0], op.out.tensor, nonnegative=False).split(sizes)
        below = How(None, how.above_classifier, spares_zeros=True)
        return [(part.view(value.shape), below) for part, value in zip(found, op.operands, strict=True)]


def _is_bias(a: object) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


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
        other, units = -3 - axis, torch.eye(like.shape[axis], dtype=like.dtype, device=like.device)
        images = units[:, None].unsqueeze(other).expand(-1, 1, *like.shape[-2:])  # alike along the other axis
        weight = op.at(images.contiguous())[:, 0].select(other, 0).T
        return [weight.clamp(min=0), (-weight).clamp(min=0)]

    rows, columns = along(-2), along(-1)

    def resample(a: Tensor, sides: Tensor) -> Tensor:
        """With the positive weights of W, and with the negative ones."""
        positive = rows[0] @ a @ columns[0].T + rows[1] @ a @ columns[1].T
        negative = rows[0] @ a @ columns[1].T + rows[1] @ a @ columns[0].T
        return positive * sides[0] + negative * sides[1]

    return LinearMap(resample, torch.tensor([1, -1]).to(rows[0]))


_AVERAGE, _REDUCED, _WRITTEN = Average(), Average(reduces=True), Written()

ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    "mean sum _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d trace": _REDUCED,
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "_upsample_bilinear2d_aa cumsum col2im torchvision.roi_align torchvision.ps_roi_align": _AVERAGE,
    "avg_pool1d avg_pool2d avg_pool3d": pooling,
    "upsample_bicubic2d _upsample_bicubic2d_aa": Layer(_bicubic, is_learned=False),
    "grid_sampler_2d grid_sampler_3d": sampled,
    "index_add scatter_add": written,
    "index_put _unsafe_index_put": put,
}
