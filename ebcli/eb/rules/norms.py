"""Normalization: a batch norm is part of the layer before it; all others pass probability through.

The paper's rule for local response normalization applies to every norm that rescales units by a common factor. Jointly,
that factor is a constant, and the mean that some norms subtract is part of the linear map.
"""

from collections.abc import Callable

from torch import Tensor

from ebcli.eb.operations import Op
from ebcli.eb.rules.activations import OneInput, Scale
from ebcli.eb.rules.rule import Rule


def _batch_factor(op: Op) -> Tensor:
    named = op.numbers
    gamma, variance = named["weight"], named["running_var"]
    factor = (variance + named["eps" if "eps" in named else "epsilon"]).rsqrt()
    factor = factor if gamma is None else factor * gamma
    return factor.to(op.out.dtype).reshape(1, -1, *[1] * (len(op.out.shape) - 2))


def _group_norm(op: Op, G: Tensor) -> Tensor:
    """M^T G, in which the factor of each group is a constant. Groups follow one another, as of a layer norm."""
    gamma, factor = op.numbers["weight"], op.outs[-1].tensor.reshape(-1, 1)
    if gamma is not None:
        G = G * (gamma.reshape(-1, *[1] * (G.ndim - 2)) if op.name == "native_group_norm" else gamma)
    g = G.reshape(len(factor), G.numel() // max(len(factor), 1)) * factor
    if op.name != "_fused_rms_norm":
        g.sub_(g.mean(-1, keepdim=True))
    return g.reshape(G.shape)


def _channel_norm(op: Op, G: Tensor) -> Tensor:
    """With the batch's own statistics, as instance norm has them of each channel."""
    gamma, factor = op.numbers["weight"], op.outs[2].tensor
    g = G * (factor if gamma is None else factor * gamma).reshape(1, -1, *[1] * (G.ndim - 2))
    return g - g.mean((0, *range(2, G.ndim)), keepdim=True)


_BATCH_NORM = Scale(factor=lambda op: op.once(lambda: _batch_factor(op)), keeps_zero=False, gate=None, elementwise=0)
_OWN_STATISTICS = OneInput(gate=None, elementwise=0, transposed=_channel_norm)


def batch_norm(op: Op) -> Rule:
    named = op.named
    return _OWN_STATISTICS if named.get("training") or named.get("running_var") is None else _BATCH_NORM


ENTRIES: dict[str, Rule | Callable[[Op], Rule]] = {
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update "
    "_native_batch_norm_legit_no_training _batch_norm_no_update": batch_norm,
    "native_layer_norm native_group_norm _fused_rms_norm": OneInput(gate=None, elementwise=0, transposed=_group_norm),
}
