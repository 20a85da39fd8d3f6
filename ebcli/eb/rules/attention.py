"""Matrix products: a constant matrix is a layer's weight, and attention passes probability to its values.

Attention weights are non-negative, so they are the excitatory weights of Eq. 4, with the values as inputs. Queries and
keys only determine the weights and get nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.facts import (
    ValueFacts,
    amend,
    carries_signal,
    facts_about,
    feeds_only,
    has_share,
    is_nonnegative,
    mark_bypass,
    note,
)
from ebcli.eb.gates import SWITCH, gate_of, holds_weights
from ebcli.eb.primitives import by_parts, weighted_sum
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call, overloads, rule

PRODUCTS = frozenset(
    [
        *overloads("matmul", "mm", "bmm", "mv", "einsum", "addmm", "addbmm", "baddbmm", "addmv"),
        *overloads("scaled_dot_product_attention", "multi_head_attention_forward"),
        Tensor.__rmatmul__,
    ]
)


@rule(*overloads("scaled_dot_product_attention"))
def scaled_dot_product_attention(
    call: Call, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    # (..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev): linear in the values, whatever the kernel
    if not carries_signal(value):
        return call.compute().detach()
    fixed = query.detach(), key.detach()
    return _attended(weighted_sum(call, value, LinearMap(lambda v: call.func(*fixed, v, *args, **kwargs))))


@rule(*overloads("matmul", "mm", "bmm", "mv"), Tensor.__rmatmul__)
def matmul(call: Call, input: Tensor, other: Tensor) -> Any:
    left, right = (other, input) if call.func is Tensor.__rmatmul__ else (input, other)
    # (B, in) @ (in, out): the weight's columns are the outputs
    per_output = (lambda scale: scale[None]) if right.ndim == left.ndim == 2 and not has_share(right) else None
    return _product(call, left, right, torch.matmul, per_output)


@rule(*overloads("einsum"))
def einsum(call: Call, equation: str, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) > 2:
        return NotImplemented
    if len(operands) == 1:  # a trace, a transposition or a sum: all weights are 0 or 1
        return weighted_sum(call, operands[0], LinearMap(lambda a: torch.einsum(equation, a)))
    left, right = operands
    return _product(call, left, right, lambda a, b: torch.einsum(equation, a, b))


@rule(*overloads("addmm", "addbmm", "baddbmm", "addmv"))
def biased_product(
    call: Call, input: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1, **kwargs: Any
) -> Any:
    if carries_signal(input):
        if call.is_in_place:
            return NotImplemented
        # a residual, not a bias
        return by_parts(call, lambda: input * beta + call.func(torch.zeros_like(input), left, right, alpha=alpha))
    if alpha < 0:  # only the sign of the scale matters, and it belongs to the weight
        left, right = (left, -right.detach()) if carries_signal(left) else (-left.detach(), right)
    zero = torch.zeros_like(input)
    return _product(call, left, right, lambda a, b: call.func(zero, a, b, **kwargs))


@rule(*overloads("bilinear"))
def bilinear(call: Call, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not has_share(input1):  # the constant, if there is one, makes the matrix
        input1, input2, weight = input2, input1, weight.transpose(1, 2)

    def spelled_out() -> Tensor:
        matrix = torch.einsum("oij,...j->...oi", weight, input2)
        return torch.einsum("...oi,...i->...o", matrix, input1) + (0 if bias is None else bias)

    return by_parts(call, spelled_out)


@rule(*overloads("cosine_similarity"))
def cosine_similarity(call: Call, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Any:
    def spelled_out() -> Tensor:
        shape = torch.broadcast_shapes(x1.shape, x2.shape)
        x, y = (F.normalize(a.expand(shape), dim=dim, eps=eps).movedim(dim, -1) for a in (x1, x2))
        return (x[..., None, :] @ y[..., None])[..., 0, 0]

    return by_parts(call, spelled_out)


@rule(*overloads("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"))
def grid_sample(call: Call, input: Tensor, grid: Tensor, mode: Any = "bilinear", *args: Any, **kwargs: Any) -> Any:
    # the grid is where to look, and gets nothing, as queries and keys
    if mode in ("bicubic", 2):
        return NotImplemented  # whose weights have both signs
    if not carries_signal(input):
        return call.compute().detach()
    where = grid.detach()
    value = weighted_sum(call, input, LinearMap(lambda a: call.func(a, where, mode, *args, **kwargs)))
    return _attended(value) if has_share(grid) else value


def _product(
    call: Call,
    left: Tensor,
    right: Tensor,
    product: Callable[[Tensor, Tensor], Tensor],
    per_output: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """The product of left and right: one is the signal, the other its weight."""

    def turned(a: Tensor, w: Tensor) -> Tensor:
        return product(w, a)

    if all(map(has_share, (left, right))):
        is_left = holds_weights(left, right)
        if is_left is None:
            return NotImplemented  # queries times keys, which only matter through the attention weights
        weight, values = (left, right) if is_left else (right, left)
        if feeds_only(weight, values):
            return call.compute().detach()  # the layer only feeds queries and keys
        linear = LinearMap.fixed(weight.detach(), turned if is_left else product, nonnegative=is_nonnegative(weight))
        value = weighted_sum(call, values, linear)
        amend(value, gate=min(gate_of(left), gate_of(right)))
        return _attended(value)
    if has_share(left):
        return weighted_sum(call, left, LinearMap(product, right, per_output))
    return weighted_sum(call, right, LinearMap(turned, left))


@rule(*overloads("multi_head_attention_forward"))
def multi_head_attention_forward(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Three weighted sums in a row: value projection, attention and output projection."""
    given = _SIGNATURE.bind(*args, **kwargs).arguments  # query (L, B, E), key and value (S, B, E), or all without B
    value = given["value"]
    if not carries_signal(value) or given.get("static_v") is not None:
        return NotImplemented
    with torch.no_grad():
        result, weights = call.compute()
        _, attention = call.func(**{**given, "need_weights": True, "average_attn_weights": False})
    note(mark_bypass(attention), ValueFacts(nonnegative=True, gate=SWITCH))

    def spelled_out() -> Tensor:
        v = F.linear(value, *_value_projection(given))
        if given["bias_v"] is not None:
            v = torch.cat([v, given["bias_v"].detach().reshape(1, -1).expand_as(v[:1])])
        if given["add_zero_attn"]:
            v = torch.cat([v, torch.zeros_like(v[:1])])
        by_head = v.unflatten(-1, (given["num_heads"], -1)).movedim(0, -2)  # (B, heads, S, E / heads)
        joined = (attention @ by_head).movedim(-2, 0).flatten(-2)  # (L, B, E)
        return F.linear(joined, given["out_proj_weight"], given["out_proj_bias"])

    return by_parts(call, spelled_out, result), weights


def _attended(value: Tensor) -> Tensor:
    if value.grad_fn is not None:
        facts_about(value.grad_fn).is_attention = True
    return value


_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def _value_projection(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    bias = given["in_proj_bias"]
    weight = given["v_proj_weight"] if given.get("use_separate_proj_weight") else given["in_proj_weight"].chunk(3)[2]
    return weight.detach(), None if bias is None else bias.chunk(3)[2].detach()
