"""Eq. 4 for a whole layer, and the products that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

_LARGE = 1 << 22  # weights; smaller matrices gain nothing from blocks
_BLOCK = 3 << 18  # weights: 3 MiB in float32
_LEAST = 1 / 16  # of |W| |a|, for a normalizer that is a difference of products: it loses no more than four bits

Signs = int | Tensor


@dataclass(frozen=True)
class LinearMap:
    """A linear map a -> W a, without bias, whose weights can be split by sign.

    Attributes:
        apply: (signal, weight) -> sum, linear in both; (signal) -> sum if `weight` is None.
        weight: W, as learned; None if the weights are fixed and non-negative, as in average pooling.
        negative: for fixed weights of both signs, as in bicubic interpolation: `apply` is the map with the weights
            max(W, 0), `negative` the one with max(-W, 0).
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
    per_output: Callable[[Tensor], Tensor] | None = None
    negative: Callable[[Tensor], Tensor] | None = None
    back: Callable[..., Tensor] | None = None

    @property
    def is_nonnegative(self) -> bool:
        """Whether all weights are fixed and non-negative."""
        return self.weight is None and self.negative is None

    @property
    def averages(self) -> bool:
        """Whether no weight is learned or negative."""
        if self.weight is None or isinstance(self.weight, Parameter):
            return self.is_nonnegative
        return not self.weight.is_meta and bool((self.weight >= 0).all())

    def exact(self, a: Tensor) -> Tensor:
        """W a."""
        if self.weight is not None:
            return self.apply(a, self.weight)
        return self.apply(a) if self.negative is None else self.apply(a) - self.negative(a)

    def transposed(self, q: Tensor, like: Tensor) -> Tensor:
        """W^T q, shaped like the signal."""
        if self.back is not None:
            return self.back(q) if self.weight is None else self.back(q, self.weight)
        return vjp(self.exact, like, q)

    def halves(self, turned: Tensor | None) -> tuple[Half, Callable[[], Half]]:
        """The map with max(W, 0), and a function that makes the one with max(-W, 0).

        Args:
            turned: -1 or +1 for each weight, broadcastable: the sign of a norm's scale. None means +1 everywhere.
        """
        if self.weight is None:
            return Half(self.apply, self.back), lambda: Half(self.negative or self.apply, None)
        weight = self.weight if turned is None else self.weight * turned
        positive = weight.clamp(min=0)

        def half(w: Tensor) -> Half:
            back = None if self.back is None else (lambda q: self.back(q, w))  # type: ignore[misc]
            return Half(lambda a: self.apply(a, w), back)

        return half(positive), lambda: half(positive - weight)  # exact, because one of the two is zero


@dataclass(frozen=True)
class Half:
    """A map with non-negative weights."""

    apply: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor] | None

    def transposed(self, q: Tensor, like: Tensor) -> Tensor:
        return vjp(self.apply, like, q) if self.back is None else self.back(q)


def vjp(function: Callable[[Tensor], Tensor], like: Tensor, vector: Tensor) -> Tensor:
    """M^T v of a linear function a -> M a; `like` has the shape of a."""
    return gradients(function, [torch.zeros_like(like)], [vector])[0]


def gradients(function: Callable[..., Any], inputs: Sequence[Tensor], vectors: Sequence[Tensor | None]) -> list[Tensor]:
    """What arrives at each input of a function, if vectors arrive at its results, but for those that are None."""

    def chosen(*inputs: Tensor) -> tuple[Tensor, ...]:
        result = function(*inputs)
        results = (result,) if isinstance(result, Tensor) else result
        return tuple(r for r, v in zip(results, vectors, strict=False) if v is not None)

    arrived = [v for v in vectors if v is not None]
    if torch._C._functorch.maybe_current_level() is not None:  # in vmap
        with torch.enable_grad():
            return list(torch.func.vjp(chosen, *inputs)[1](tuple(arrived)))
    with torch.enable_grad():
        leaves = [a.detach().requires_grad_() for a in inputs]
        results = chosen(*(a.view_as(a) for a in leaves))
    pairs = [(r, v) for r, v in zip(results, arrived, strict=True) if r.requires_grad]
    if not pairs:
        return [torch.zeros_like(a) for a in inputs]
    outputs, vectors = zip(*pairs, strict=True)
    return list(torch.autograd.grad(outputs, leaves, vectors, materialize_grads=True))


def ratio(P: Tensor, z: Tensor) -> Tensor:
    """P / z for z >= 0, and 0 where z is exactly 0. No epsilon, so no probability leaks, however small the numbers."""
    return P / F.threshold(z, 0.0, math.inf)  # torch.where takes ten times as long


def added(terms: Sequence[Any]) -> Any:
    """Their sum. The built-in starts from 0, which costs another pass over a tensor."""
    return sum(terms[1:], terms[0])


class Neurons:
    """The neurons of a layer y = W a + b, with the signs s of what they explain: Z_n = sum_k max(s_n a_k w_kn, 0).

    Args:
        linear: W.
        a: the signal.
        nonnegative: whether no a_k is negative.
        signs: s, of all neurons or, as a tensor with these signs, of each.
        product: W a, if it is known: the response without its bias.
        bias: that bias.
    """

    def __init__(
        self,
        linear: LinearMap,
        a: Tensor,
        *,
        nonnegative: bool,
        signs: Signs,
        product: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        self._linear, self._a, self._signs = linear, a, signs
        self._parts = parts_of(a, nonnegative=nonnegative)
        self._found: list[tuple[Any, list[tuple[Tensor, Half]], Tensor]] = []
        if isinstance(signs, Tensor) and not nonnegative and linear.weight is not None and a.dtype == torch.float32:
            self._by_sizes(signs, product, bias)
        if not self._found:
            self._by_halves()

    def _by_halves(self) -> None:
        """Z = W+ a+ + W- a- for s = +1, and W- a+ + W+ a- for s = -1."""
        signs, linear, turned = self._signs, self._linear, None
        if isinstance(signs, Tensor) and linear.per_output is not None and (scale := by_channel(signs)) is not None:
            turned, signs = linear.per_output(scale.sign().to(self._a.dtype)), 1
        positive, negative = linear.halves(turned)
        if linear.is_nonnegative:  # responses have the sign of what excites them
            halves: dict[int, list[Any]] = {1: [positive], -1: [None, positive]}
        else:
            both = len(self._parts) > 1 or isinstance(signs, Tensor) or signs != 1
            other = negative() if both else None
            halves = {1: [positive, other], -1: [other, positive]}
        for sign in (1, -1) if isinstance(signs, Tensor) else (signs,):
            pairs = [(a, half) for a, half in zip(self._parts, halves[sign], strict=False) if half is not None]
            if pairs:
                takes = True if isinstance(signs, int) else (signs * sign > 0).to(self._a.dtype)
                self._found.append((takes, pairs, added([half.apply(a) for a, half in pairs])))

    def _by_sizes(self, signs: Tensor, product: Tensor | None, bias: Tensor | None) -> None:
        """2 Z = |W| |a| + s W a: two products instead of four, where that is exact enough. The factor 2 cancels."""
        linear, weight = self._linear, self._linear.weight
        assert weight is not None
        size = linear.apply(self._a.abs(), weight.abs())
        exact = linear.exact(self._a) if product is None else product
        s = signs.sign().to(exact.dtype)
        z = torch.addcmul(size, s, exact)
        rounded = size if product is None or bias is None else size + bias.abs()
        if not z.numel() or bool(torch.sub(z, rounded, alpha=2 * _LEAST).amin() >= 0):
            self._found = [(s, [], z)]

    @property
    def normalizer(self) -> Tensor:
        """Z, or 2 Z; 0 where s = 0."""
        return added([z if takes is True else z * (takes != 0) for takes, _, z in self._found])

    def shares(self, P: Tensor) -> Tensor:
        """The signal's share of their probabilities."""
        total, scale = None, None
        for takes, pairs, z in self._found:
            if not pairs:
                return self._by_difference(P, takes, z)
            q, scale = quotient(P if takes is True else P * takes, z)
            for a, half in pairs:
                share = a * half.transposed(q, a) if scale is None else (a * half.transposed(q, a).float() * scale)
                total = share if total is None else total.add_(share)
        if total is None:  # nothing excites them
            return torch.zeros_like(self._a)
        return total.to(self._a.dtype)

    def _by_difference(self, P: Tensor, s: Tensor, z: Tensor) -> Tensor:
        q = ratio(P * s.abs(), z)
        size = self._a.abs()
        weight = self._linear.weight
        assert weight is not None
        absolute = LinearMap(self._linear.apply, weight.abs(), back=self._linear.back)
        share = size * absolute.transposed(q, size) + self._a * self._linear.transposed(q * s, size)
        # a share of 0 may come out negative, but none is less than all negative probability, as in contrastive passes
        return torch.maximum(share, P.clamp(max=0).sum())


def quotient(P: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
    """P / z, and a factor to multiply its products with: in float16, 1 / z overflows below 1.5e-5."""
    if z.dtype != torch.float16:
        return ratio(P, z), None
    q = ratio(P.float(), z.float())
    scale = q.abs().amax() if q.numel() else q.new_ones(())
    return ratio(q, scale).half(), scale


def parts_of(a: Tensor, *, nonnegative: bool) -> list[Tensor]:
    """a+, and a- unless the signal is non-negative."""
    if nonnegative:
        return [a]
    positive = a.clamp(min=0)
    return [positive, positive - a]


def by_channel(signs: Tensor) -> Tensor | None:
    """Signs (C,) that depend on the channel alone; None if they do not."""
    shape, stride = signs.shape, signs.stride()
    if signs.ndim > 1 and all(
        n == 1 or step == 0 for i, (n, step) in enumerate(zip(shape, stride, strict=True)) if i != 1
    ):
        return signs[(0, slice(None), *[0] * (signs.ndim - 2))]
    return None


class Blocks:
    """The neurons of a layer whose matrix takes longer to read than to multiply with.

    The matrix is processed in blocks of rows, whose W+ and W- stay in the processor's cache.

    Args:
        weight: W (out, in).
        a: the signal (..., in).
        nonnegative: whether no a_k is negative.
        signs: s, of all neurons or of each.
    """

    def __init__(self, weight: Tensor, a: Tensor, *, nonnegative: bool, signs: Signs) -> None:
        self._weight, self._signs, self._parts = weight, signs, parts_of(a, nonnegative=nonnegative)

    @staticmethod
    def suit(weight: Tensor | None) -> bool:
        """Whether the matrix is so large."""
        return weight is not None and weight.numel() >= _LARGE and not (weight.is_cuda or weight.dtype == torch.float16)

    @property
    def normalizer(self) -> Tensor:
        """Z; 0 where s = 0."""
        return self._walk(None)[0]

    def shares(self, P: Tensor) -> Tensor:
        """The signal's share of their probabilities (..., out), reading W once."""
        return self._walk(P)[1]

    def _walk(self, P: Tensor | None) -> tuple[Tensor, Any]:
        slopes: list[Any] = [0] * len(self._parts)
        totals = []
        both = len(self._parts) > 1 or isinstance(self._signs, Tensor) or self._signs < 0
        width = max(1, _BLOCK // self._weight.shape[1])
        buffers = [self._weight.new_empty(0) for _ in range(2)]
        for start in range(0, len(self._weight), width):
            block = slice(start, start + width)
            w = self._weight[block]
            halves = [torch.clamp(w, min=0, out=buffers[0].resize_(w.shape))]
            if both:
                halves.append(torch.sub(halves[0], w, out=buffers[1].resize_(w.shape)))
            z: Any = 0
            for sign in (1, -1) if isinstance(self._signs, Tensor) else (self._signs,):
                takes: Any = self._signs[..., block] * sign > 0 if isinstance(self._signs, Tensor) else True
                total = added([F.linear(up, half) for up, half in zip(self._parts, halves[::sign], strict=False)])
                z = z + total * takes
                if P is not None:
                    q = ratio(P[..., block] * takes, total)
                    slopes = [slope + q @ half for slope, half in zip(slopes, halves[::sign], strict=False)]
            totals.append(z)
        return torch.cat(totals, -1), added([part * slope for part, slope in zip(self._parts, slopes, strict=True)])
