"""Eq. 4 for a whole layer, and the products that it needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.operations import AnyFunction, TensorFunction, Tensors, as_tuple
from ebcli.eb.torch_private import run_backward

_LARGE = 1 << 22  # weights; smaller matrices gain nothing from blocks
_BLOCK = 3 << 18  # weights: 3 MiB in float32
# of |W| |a|, for a normalizer that is a difference of products: it loses no more than four bits
_LEAST = 1 / 16

_ROUNDING = 16 * torch.finfo(torch.float32).eps  # of a difference of products, as a share of them

Signs = int | Tensor


@dataclass(frozen=True)
class LinearMap:
    """A linear map a -> W a, without bias, whose weights can be split by sign.

    Attributes:
        apply: (signal, weight) -> sum, linear in both; (signal) -> sum if `weight` is None.
        weight: W, as learned; None if the weights are fixed and non-negative, as in average pooling.
        per_output: (C,) -> a tensor that scales W per output channel when multiplied with it; None if the outputs
            have no channel axis.
        back: (q, weight) -> W^T q, or (q) if `weight` is None; None to have autograd find it.

    Examples:
        >>> import ebcli, torch
        >>> from torch.nn import functional as F
        >>> linear = ebcli.LinearMap(F.linear, torch.tensor([[1.0, -2.0]]))
        >>> linear.exact(torch.ones(1, 2))
        tensor([[-1.]])
    """

    apply: Callable[..., Tensor]
    weight: Tensor | None = None
    per_output: TensorFunction | None = None
    back: Callable[..., Tensor] | None = None

    @property
    def is_nonnegative(self) -> bool:
        """Whether all weights are fixed and non-negative."""
        return self.weight is None

    def exact(self, a: Tensor) -> Tensor:
        """W a."""
        return self._run(self.apply, a)

    def with_sizes(self, a: Tensor) -> Tensor:
        """|W| a, in the precision of a."""
        if self.weight is None:
            return self.apply(a)
        return self.apply(a, self.weight.abs().to(a))

    def transposed(self, q: Tensor, like: Tensor) -> Tensor:
        """W^T q, shaped like the signal."""
        if self.back is None:
            return vjp(self.exact, like, q)
        return self._run(self.back, q)

    def _run(self, function: Callable[..., Tensor], vector: Tensor) -> Tensor:
        if self.weight is None:
            return function(vector)
        return function(vector, self.weight)


def vjp(function: TensorFunction, like: Tensor, vector: Tensor) -> Tensor:
    """M^T v of a linear function a -> M a; `like` has the shape of a."""
    return gradients(function, [torch.empty_like(like, requires_grad=True)], [vector])[0]


def gradients(function: AnyFunction, leaves: Tensors, vectors: Sequence[Tensor | None]) -> Sequence[Any]:
    """What arrives at leaves of autograd, if vectors arrive at a function's results, but for those that are None."""
    with torch.enable_grad():
        results = as_tuple(function(*leaves))
    pairs = [(r, v) for r, v in zip(results, vectors, strict=False) if v is not None and r.requires_grad]
    if not pairs:
        return [*map(torch.zeros_like, leaves)]
    gradients = run_backward(pairs, leaves)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]


def ratio(P: Tensor, z: Tensor) -> Tensor:
    """P / z for z >= 0, and 0 where z is exactly 0. No epsilon, so no probability leaks, however small the numbers."""
    return P / F.threshold(z, 0.0, math.inf)  # torch.where takes ten times as long


def add_all(terms: Sequence[Any]) -> Any:
    """Their sum. The built-in starts from 0, which costs another pass over a tensor."""
    return sum(terms[1:], terms[0])


def excitation_shares(
    linear: LinearMap,
    a: Tensor,
    P: Tensor,
    signs: Signs,
    *,
    nonnegative: bool,
    response: Any = None,
    bias: Any = None,
) -> Tensor:
    """P_in = a * W^T (P / Z), where Z_n = sum_k max(s_n a_k w_kn, 0): a signal's share of its neurons' probabilities.

    Args:
        linear: W.
        a: the signal.
        P: of the neurons y = W a + b.
        signs: s, of all neurons or, as a tensor with these signs, of each.
        nonnegative: whether no a_k is negative.
        response: y, if it is known.
        bias: b, if it is known.
    """
    weight = linear.weight
    is_large = weight is not None and weight.ndim == 2 and weight.numel() >= _LARGE and weight.is_cpu
    if is_large and linear.apply is torch.matmul:
        return _by_blocks(linear, a, P, signs, nonnegative=nonnegative)
    if weight is None or not isinstance(signs, Tensor):
        return _by_halves(linear, a, P, signs, nonnegative=nonnegative)
    is_by_channel = linear.per_output is not None and signs.shape[1:2] == (signs.numel(),)
    if a.dtype == torch.float32 and not (is_by_channel and nonnegative):
        share = _by_sizes(linear, a, P, signs, response, bias)
        if share is not None:
            return share
    if linear.per_output is not None and is_by_channel:
        scale = linear.per_output(signs.flatten().sign().to(a.dtype))
        linear, signs = replace(linear, weight=weight * scale), 1
    return _by_halves(linear, a, P, signs, nonnegative=nonnegative)


def _by_halves(linear: LinearMap, a: Tensor, P: Tensor, signs: Signs, *, nonnegative: bool) -> Tensor:
    """Z = W+ a+ + W- a- for s = +1, and W- a+ + W+ a- for s = -1."""
    weight = linear.weight

    @cache
    def half(sign: int) -> LinearMap | None:
        """Of s W, the positive or the negative weights."""
        if weight is None:
            if sign > 0:
                return linear
            return None
        split = weight.clamp(min=0) if sign > 0 else weight.neg().clamp_(min=0)
        return LinearMap(linear.apply, split, back=linear.back)

    parts = [a]
    if not nonnegative:
        positive = a.clamp(min=0)
        parts = [positive, positive - a]
    total: Any = None
    for sign in (1, -1) if isinstance(signs, Tensor) else (signs,):
        halves = map(half, (sign, -sign))  # responses have the sign of what excites them
        pairs = [(part, split) for part, split in zip(parts, halves, strict=False) if split is not None]
        if not pairs:
            continue
        z = add_all([split.exact(part) for part, split in pairs])
        q, factor = quotient(P if isinstance(signs, int) else P.mul(signs * sign > 0), z)
        for part, split in pairs:
            share = part * split.transposed(q, part)
            if factor is not None:
                share = share.float() * factor
            total = share if total is None else total.add_(share)
    if total is None:
        return torch.zeros_like(a)
    return total.to(a.dtype)


def _by_sizes(
    linear: LinearMap, a: Tensor, P: Tensor, signs: Tensor, response: Any, bias: Any
) -> Tensor | None:
    """2 Z = |W| |a| + s W a: two products instead of four; None where that is not exact enough. The 2 cancels."""
    size = a.abs()
    absolute = LinearMap(linear.apply, linear.weight.abs(), back=linear.back)  # type: ignore[union-attr]
    sizes = absolute.exact(size)
    s = signs.sign().to(a.dtype)
    if response is None or bias is None:
        response, bias = linear.exact(a), 0
    minimum = sizes
    if isinstance(bias, Tensor):
        response = response - bias
        minimum = sizes + bias.abs()
    z = torch.addcmul(sizes, s, response)
    if z.numel() and not bool(torch.sub(z, minimum, alpha=2 * _LEAST).amin() >= 0):
        return None
    q = ratio(P, z).mul_(s)
    both = size * absolute.transposed(q * s, size)
    share = torch.addcmul(both, a, linear.transposed(q, size))
    # a share of 0 comes out as rounding, which would be all that there is where a map is blank
    share.masked_fill_(share.abs() <= both.abs_().mul_(_ROUNDING), 0)
    # what is left of it may be negative, but not less than all negative probability, as in contrastive passes
    return torch.maximum(share, P.clamp(max=0).sum())


def _by_blocks(linear: LinearMap, a: Tensor, P: Tensor, signs: Signs, *, nonnegative: bool) -> Tensor:
    """A large matrix (in, out) by blocks of neurons, whose W+ and W- stay in the processor's cache."""
    assert linear.weight is not None
    parts = []
    for at in torch.arange(linear.weight.shape[1]).split(max(1, _BLOCK // len(linear.weight))):
        neurons = ..., slice(int(at[0]), int(at[-1]) + 1)
        block = LinearMap(F.linear, linear.weight[neurons].t(), back=torch.matmul)
        of_block = signs.expand(P.shape)[neurons] if isinstance(signs, Tensor) else signs
        parts.append(_by_halves(block, a, P[neurons], of_block, nonnegative=nonnegative))
    return add_all(parts)


def quotient(P: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
    """P / z, and a factor to multiply its products with: in float16, 1 / z overflows below 1.5e-5."""
    if z.dtype != torch.float16:
        return ratio(P, z), None
    q = ratio(P.float(), z.float())
    scale = q.abs().amax() if q.numel() else q.new_ones(())
    return ratio(q, scale).half(), scale
