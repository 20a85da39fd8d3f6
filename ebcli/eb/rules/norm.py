"""Normalization: batch norm is folded into the layer before it; all others pass probability through. And p-norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.contributions import LinearMap
from ebcli.eb.facts import SWITCH, ValueFacts, facts_of, is_nonnegative, note
from ebcli.eb.primitives import folded, pass_through, weighted_sum, with_value
from ebcli.eb.registry import Call, overloads, rule, spelled


@rule(*overloads("batch_norm"))
def batch_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    # torch.batch_norm has (weight, bias) where F.batch_norm has (running_mean, running_var)
    gamma = running_mean if _is_native(call) else weight
    value = folded(call, input, channels=gamma)
    return pass_through(call, input, gate=0, affine=True) if value is None else value


def _is_native(call: Call) -> bool:
    return torch.batch_norm in spelled(call.func)


# The paper's rule for local response normalization applies to every norm that rescales units by a common factor. Under
# the joint rule, that factor is a constant, and the mean that some norms subtract is part of the linear map.
@rule(*overloads("local_response_norm", "rms_norm", "instance_norm"))
def norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, gate=0, affine=_rescaled(lambda a: call.func(a, *args, **kwargs)))


@rule(*overloads("layer_norm"))
def layer_norm(
    call: Call, input: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> Tensor:
    def centered(a: Tensor) -> Tensor:
        return a - a.mean(tuple(range(-len(shape), 0)), keepdim=True)

    return pass_through(
        call, input, gate=0, affine=_rescaled(lambda a: F.layer_norm(a, shape, weight, None, eps), centered)
    )


@rule(*overloads("group_norm"))
def group_norm(
    call: Call, input: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> Tensor:
    def centered(a: Tensor) -> Tensor:
        by_group = a.reshape(len(a), groups, -1)
        return (by_group - by_group.mean(2, keepdim=True)).reshape(a.shape)

    return pass_through(
        call, input, gate=0, affine=_rescaled(lambda a: F.group_norm(a, groups, weight, None, eps), centered)
    )


# the operators behind them in decomposed programs, which also return the statistics
@rule(*overloads("native_layer_norm", "native_group_norm", "_fused_rms_norm"))
def native_norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    first, *statistics = _computed(call)
    return norm(first, input), *statistics


@rule(*overloads("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"))
def native_batch_norm(call: Call, input: Tensor, weight: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    if any(arg is True for arg in (*args, *kwargs.values())):
        return NotImplemented  # the input's own statistics, as what instance norm is decomposed into
    first, *statistics = _computed(call)
    return batch_norm(first, input, weight=weight), *statistics


def _computed(call: Call) -> tuple[Any, ...]:
    """A call with the first of its values, which is computed already, and the other values."""
    with torch.no_grad():
        value, *others = call.compute()
    return replace(call, func=lambda: value, args=(), kwargs={}), *others


@rule(*overloads("normalize"))
def normalized(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    affine = _rescaled(lambda a: call.func(a, *args, **kwargs))
    return pass_through(call, input, keeps_zero=True, nonnegative=is_nonnegative(input), affine=affine)


@rule(torch.norm, Tensor.norm, makes_gates=True)
def p_norm(
    call: Call, input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *args: Any, **kwargs: Any
) -> Any:
    """(sum_k |a_k|^p)^(1/p): a weighted sum of powers. It is made to rescale, so in a product it is the gate."""
    order = 2 if p in ("fro", None) else p
    if not isinstance(order, (int, float)) or not 0 < order < math.inf:
        return NotImplemented
    axes = tuple(range(input.ndim)) if dim is None else dim
    with torch.no_grad():
        result = call.compute()
        powers = input.abs() ** order
    powers = with_value(call, powers, input)
    note(powers, replace(facts_of(powers), nonnegative=True))
    sums = replace(call, func=torch.sum, args=(powers, axes, keepdim), kwargs={})
    value = with_value(call, result, weighted_sum(sums, powers, LinearMap(lambda a: a.sum(axes, keepdim))))
    note(value, ValueFacts(nonnegative=True, gate=SWITCH))
    return value


@rule(torch.linalg.vector_norm, "aten.linalg_vector_norm", makes_gates=True)
def vector_norm(call: Call, x: Tensor, ord: Any = 2, *args: Any, **kwargs: Any) -> Any:
    return p_norm(call, x, ord, *args, **kwargs)


def _rescaled(
    normalize: Callable[[Tensor], Tensor], centered: Callable[[Tensor], Tensor] = lambda a: a
) -> Callable[[Tensor], Tensor]:
    """A norm, without its bias, as a function of the signal whose factors are those of this signal."""

    def affine(a: Tensor) -> Tensor:
        before = centered(a)
        with torch.no_grad():
            factor = (normalize(a.detach()) / before).nan_to_num_(0.0, 0.0, 0.0)  # 0 where `before` is 0
        return before * factor

    return affine
