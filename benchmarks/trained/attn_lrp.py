"""AttnLRP, written from its paper: relevance propagation for transformers, as gradient times activation.

R. Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024,
arXiv:2402.05602. Relevance is a value times a slope, and each rule changes an operation's slope:

- linear maps: LRP-epsilon, which is the ordinary gradient;
- activations: the identity rule, slope f(x) / x;
- softmax: its first-order Taylor expansion, the ordinary gradient;
- products of two signals, as of queries and keys, attention and values, gates: half to each;
- LayerNorm and RMSNorm: affine maps, whose deviations are constants.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class AttnLRP(TorchFunctionMode):
    """Where it is on, autograd carries AttnLRP's slopes."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        changed = _RULES.get(func)
        return func(*args, **(kwargs or {})) if changed is None else changed(func, *args, **(kwargs or {}))


def _identity(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    before = x.detach().clone()
    value = func(before.clone(), *args, **kwargs)
    return x * (value / torch.where(before == 0, 1, before))


def _half(func: Callable[..., Tensor], *operands: Any, **kwargs: Any) -> Tensor:
    def carries(a: Any) -> bool:
        return isinstance(a, Tensor) and a.requires_grad and not isinstance(a, torch.nn.Parameter)

    if sum(map(carries, operands)) < 2:
        return func(*operands, **kwargs)
    return func(*[_halved(a) if carries(a) else a for a in operands], **kwargs)


def _halved(a: Tensor) -> Tensor:
    """The same value at half the slope."""
    return a * 0.5 + a.detach() * 0.5


def layer_norm(
    _func: Callable[..., Tensor],
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm as the affine map that it is for one picture: its standard deviation is a constant."""
    axes = tuple(range(-len(shape), 0))
    deviation = (x.var(axes, correction=0, keepdim=True) + eps).sqrt().detach()
    value = (x - x.mean(axes, keepdim=True)) / deviation
    value = value if weight is None else value * weight
    return value if bias is None else value + bias


def _constant(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The root mean square of RMSNorm, as transformers writes it, has no slope."""
    return func(*args, **kwargs).detach()


def scaled_dot_product(
    _func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **_others: Any,
) -> Tensor:
    """Attention, step by step, in networks that are evaluated and have as many keys as queries if they are causal."""
    scores = _half(torch.matmul, query * (scale or 1 / math.sqrt(query.shape[-1])), key.mT)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        is_open = attn_mask if attn_mask.dtype == torch.bool else attn_mask == 0
        scores = scores.masked_fill(~is_open, -math.inf)
    return _half(torch.matmul, scores.softmax(-1), value)


def _attention(func: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """multi_head_attention_forward, step by step; (L, B, E) to (L, B, E)."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    heads = given["num_heads"]
    query, key, value = (
        F.linear(given[name], weight, bias).unflatten(2, (heads, -1)).permute(1, 2, 0, 3)
        for name, weight, bias in zip(
            ("query", "key", "value"),
            given["in_proj_weight"].chunk(3),
            given["in_proj_bias"].chunk(3),
            strict=True,
        )
    )  # (B, heads, L, E / heads)
    mixed = scaled_dot_product(func, query, key, value).permute(2, 0, 1, 3).flatten(2)
    return F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"]), None


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.gelu, F.relu, F.silu, F.hardswish, F.sigmoid, torch.sigmoid, torch.relu), _identity),
    **dict.fromkeys(
        (torch.matmul, Tensor.matmul, torch.einsum, torch.mul, Tensor.mul, Tensor.__mul__), _half
    ),
    torch.rsqrt: _constant,
    F.layer_norm: layer_norm,
    F.scaled_dot_product_attention: scaled_dot_product,
    F.multi_head_attention_forward: _attention,
}
