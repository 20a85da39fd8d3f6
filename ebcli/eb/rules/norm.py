"""Normalization: batch norm is folded into the layer before it; all others pass probability through. And p-norms.

The paper's rule for local response normalization applies to every norm that rescales units by a common factor. Jointly,
that factor is a constant, and the mean that some norms subtract is part of the linear map.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import ValueFacts, is_nonnegative, note
from ebcli.eb.folding import folded
from ebcli.eb.gates import SWITCH
from ebcli.eb.primitives import by_parts, mixed, rescaled
from ebcli.eb.registry import Call, name_of, overloads, rule, spelled
from ebcli.eb.saved_values import Saved
from ebcli.eb.steps import times

# The order of the arguments behind the input; F's is another one than torch's
_OF_MODULES = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_OF_OPERATORS = ("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")


@rule(*overloads("batch_norm", "instance_norm"))
def channel_norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = spelled(call.func)
    order = _OF_OPERATORS if torch.batch_norm in names or torch.instance_norm in names else _OF_MODULES
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    is_batch = name_of(call.func) == "batch_norm"
    if not is_batch and given.get("use_input_stats", given.get("training", True)):
        return group_norm(call, input, input.shape[1], given.get("weight"), None, given.get("eps", 1e-5))
    variance = None if is_batch and given.get("training") else given.get("running_var")
    return _by_channel(call, input, given.get("weight"), variance, given.get("eps", 1e-5))


def _by_channel(call: Call, input: Tensor, gamma: Tensor | None, variance: Tensor | None, eps: float) -> Tensor:
    saved = Saved(input if variance is None else variance)

    def slope(G: Tensor) -> Tensor:
        spread = saved.get()
        if variance is None:  # that of the batch
            spread = spread.transpose(0, 1).flatten(1).var(1, correction=0)
        factor = (spread + eps).rsqrt() if gamma is None else (spread + eps).rsqrt() * gamma.detach()
        return G * factor.to(G.dtype).reshape(1, -1, *(1 for _ in G.shape[2:]))

    value = folded(call, input, channels=(gamma, slope))
    return rescaled(call, input, slope, gate=0) if value is None else value


@rule(*overloads("layer_norm"))
def layer_norm(
    call: Call, input: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> Tensor:
    return _standardized(call, input, lambda a: a.flatten(-len(shape)), weight, eps)


@rule(*overloads("rms_norm"))
def rms_norm(call: Call, input: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _standardized(call, input, lambda a: a.flatten(-len(shape)), weight, eps, centers=False)


@rule(*overloads("group_norm"))
def group_norm(
    call: Call, input: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> Tensor:
    by_channel = None if weight is None else weight.reshape(-1, *(1 for _ in input.shape[2:]))
    return _standardized(call, input, lambda a: a.reshape(len(a), groups, -1), by_channel, eps)


def _standardized(
    call: Call,
    input: Tensor,
    grouped: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    eps: float,
    *,
    centers: bool = True,
) -> Tensor:
    """A norm over the last axis of `grouped(input)`."""
    saved = Saved(input)

    @functools.cache
    def factor() -> Tensor:
        a = grouped(saved.get())
        if centers:  # three times as fast as the variance
            return torch.native_layer_norm(a, a.shape[-1:], None, None, eps)[2]
        return (a.square().mean(-1, keepdim=True) + eps).rsqrt()

    def slope(G: Tensor) -> Tensor:
        g = grouped(G if weight is None else G * weight.detach()) * factor()
        return (g.sub_(g.mean(-1, keepdim=True)) if centers else g).reshape(G.shape)

    return mixed(rescaled(call, input, slope, gate=0))


@rule(*overloads("local_response_norm"))
def local_response_norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    saved = Saved(input)

    def slope(G: Tensor) -> Tensor:
        a = saved.get()
        return G * (call.func(a, *args, **kwargs) / a).nan_to_num_(0.0, 0.0, 0.0)

    return mixed(rescaled(call, input, slope, gate=0))


@rule(*overloads("normalize"))
def normalized(call: Call, input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    with torch.no_grad():
        norm = input.norm(p, dim, keepdim=True).clamp_min(eps)
    slope = times(norm, divides=True)
    return mixed(rescaled(call, input, slope, keeps_zero=True, nonnegative=is_nonnegative(input)))


# The operators behind them in decomposed programs, which also return the statistics
@rule(
    *overloads("native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm"),
    *overloads("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
)
def native_norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    name = name_of(call.func)
    if name in ("native_batch_norm", "_native_batch_norm_legit") and any(arg is True for arg in args):
        return NotImplemented  # the input's own statistics, as what instance norm is decomposed into
    with torch.no_grad():
        value, *statistics = call.compute()
    computed = replace(call, func=lambda: value, args=(), kwargs={})
    if name == "native_layer_norm":
        return layer_norm(computed, input, *args, **kwargs), *statistics
    if name == "_fused_rms_norm":
        return rms_norm(computed, input, *args, **kwargs), *statistics
    if name == "native_group_norm":
        weight, bias, _, _, _, groups, eps = args
        return group_norm(computed, input, groups, weight, bias, eps), *statistics
    return _by_channel(computed, input, args[0], args[3], args[-1]), *statistics


@rule(torch.norm, Tensor.norm, makes_gates=True)
def p_norm(
    call: Call, input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *args: Any, **kwargs: Any
) -> Any:
    """(sum_k |a_k|^p)^(1/p), step by step. It is made to rescale, so in a product it is the gate."""
    order = 2 if p in ("fro", None) else p
    if not isinstance(order, (int, float)) or not 0 < order < math.inf:
        return NotImplemented
    axes = tuple(range(input.ndim)) if dim is None else dim

    def spelled_out() -> Tensor:
        powers = input.square() if order == 2 else input.abs() if order == 1 else input.abs() ** order
        total = powers.sum(axes, keepdim)
        return total.sqrt() if order == 2 else total if order == 1 else total ** (1 / order)

    value = by_parts(call, spelled_out)
    note(value, ValueFacts(nonnegative=True, gate=SWITCH))
    return value


@rule(torch.linalg.vector_norm, "aten.linalg_vector_norm", makes_gates=True)
def vector_norm(call: Call, x: Tensor, ord: Any = 2, *args: Any, **kwargs: Any) -> Any:
    return p_norm(call, x, ord, *args, **kwargs)
