"""Normalization: a batch norm is part of the layer before it; all others pass probability through.

The paper's rule for local response normalization applies to every norm that rescales units by a common factor. Jointly,
that factor is a constant, and the mean that some norms subtract is part of the linear map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from benchmarks.engine.operations import Op, Value
from benchmarks.engine.rules.activations import OneInput, Scale
from benchmarks.engine.rules.rule import Rule


def _batch_factor(op: Op) -> Tensor:
    named = {k: v.tensor if isinstance(v, Value) else v for k, v in op.named.items()}
    gamma, variance = named["weight"], named["running_var"]
    factor = (variance + named["eps" if "eps" in named else "epsilon"]).rsqrt()
    factor = factor if gamma is None else factor * gamma
    return factor.to(op.out.dtype).reshape(1, -1, *[1] * (len(op.out.shape) - 2))


class Norm(OneInput):
    """Units are rescaled by a factor that they have in common, and their mean may be subtracted.

    Args:
        slope: (operation, G) -> M^T G, in which the factor is a constant.
    """

    def __init__(self, slope: Callable[[Op, Tensor], Tensor]) -> None:
        super().__init__(elementwise=0, gate=None)
        self._slope = slope

    def keeps(self, op: Op) -> Sequence[Value]:
        return op.outs[1:]  # the deviations

    def slope(self, op: Op, G: Tensor) -> Tensor:
        return self._slope(op, G)


def _layer_norm(op: Op, G: Tensor) -> Tensor:
    n, gamma = len(op.args[1]), op.args[2]
    axes = tuple(range(-n, 0))
    g = (G if gamma is None else G * gamma) * op.outs[2].tensor
    return g.sub_(g.mean(axes, keepdim=True))


def _rms_norm(op: Op, G: Tensor) -> Tensor:
    gamma = op.args[2]
    return (G if gamma is None else G * gamma) * op.outs[1].tensor


def _group_norm(op: Op, G: Tensor) -> Tensor:
    gamma, groups = op.args[1], op.args[6]
    g = G if gamma is None else G * gamma.reshape(-1, *[1] * (G.ndim - 2))
    g = g.reshape(len(g), groups, -1) * op.outs[2].tensor.reshape(len(g), groups, 1)
    return (g - g.mean(-1, keepdim=True)).reshape(G.shape)


def _channel_norm(op: Op, G: Tensor) -> Tensor:
    """With the batch's own statistics, as instance norm has them of each channel."""
    gamma, factor = op.named["weight"], op.outs[2].tensor
    g = G * (factor if gamma is None else factor * gamma).reshape(1, -1, *[1] * (G.ndim - 2))
    return g - g.mean((0, *range(2, G.ndim)), keepdim=True)


_BATCH_NORM = Scale(lambda op: op.once(lambda: _batch_factor(op)), shifts=True, gate=None, elementwise=0)
_OWN_STATISTICS = Norm(_channel_norm)


def batch_norm(op: Op) -> Rule:
    named = op.named
    return _OWN_STATISTICS if named.get("training") or named.get("running_var") is None else _BATCH_NORM


ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    **dict.fromkeys(
        "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update".split(),
        batch_norm,
    ),
    "native_layer_norm": Norm(_layer_norm),
    "native_group_norm": Norm(_group_norm),
    "_fused_rms_norm": Norm(_rms_norm),
}
