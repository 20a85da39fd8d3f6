"""The products that Eq. 4 needs for a whole layer, and faster ways to them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Parameter
from torch.nn import functional as F

from ebcli.eb.nodes import quiet

_LARGE = 1 << 22  # weights; smaller matrices gain nothing from blocks
_BLOCK = 3 << 18  # weights: 3 MiB in float32
_LEAST = 1 / 16  # of |W| |a|, for a normalizer that is a difference of products: it loses no more than four bits


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
        bias: for ``F.linear``: b (out,), or 0 where there is none; None if unknown.
        orientation: -1, 0 or +1 for each weight, broadcastable: the sign of the scale in a folded batch norm.
            None means +1 everywhere.

    Examples:
        >>> import ebcli, torch
        >>> from torch.nn import functional as F
        >>> linear = ebcli.LinearMap(F.linear, torch.tensor([[1.0, -2.0]]))
        >>> linear.halves(both=True)
        (tensor([[1., 0.]]), tensor([[0., 2.]]))
    """

    apply: Callable[..., Tensor]
    weight: Tensor | None = None
    per_output: Callable[[Tensor], Tensor] | None = None
    bias: Tensor | float | None = None
    orientation: Tensor | None = None
    negative: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def fixed(cls, weight: Tensor, apply: Callable[[Tensor, Tensor], Tensor], *, nonnegative: bool) -> LinearMap:
        """The map with weights that are fixed for this input, such as attention weights."""
        if nonnegative:
            return cls(lambda a: apply(a, weight))
        positive, negative = weight.clamp(min=0), (-weight).clamp(min=0)
        return cls(lambda a: apply(a, positive), negative=lambda a: apply(a, negative))

    @property
    def is_nonnegative(self) -> bool:
        """Whether all weights are fixed and non-negative."""
        return self.weight is None and self.negative is None

    @property
    def averages(self) -> bool:
        """Whether no weight is learned or negative."""
        weight = self.weight
        if weight is None or isinstance(weight, Parameter):
            return self.is_nonnegative
        return not weight.is_meta and bool((weight >= 0).all())

    def exact(self, a: Tensor) -> Tensor:
        """W a."""
        if self.weight is not None:
            return self.apply(a, self.weight.detach())
        return self.apply(a) if self.negative is None else self.apply(a) - self.negative(a)

    def moved(self, move: Callable[[Tensor], Tensor]) -> LinearMap:
        """This map with its outputs rearranged."""

        def after(apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
            return lambda *operands: move(apply(*operands))

        negative = None if self.negative is None else after(self.negative)
        return replace(self, apply=after(self.apply), negative=negative, per_output=None)

    def scaled(self, gamma: Tensor) -> LinearMap:
        """This map with its output channels scaled by gamma (C,), of which only the sign matters."""
        assert self.per_output is not None
        sign = self.per_output(gamma.detach().sign())
        return replace(self, orientation=sign if self.orientation is None else self.orientation * sign)

    def oriented(self, block: slice = slice(None)) -> Tensor:
        """W times its orientation, or a block of its rows."""
        assert self.weight is not None
        weight = self.weight.detach()[block]
        return weight if self.orientation is None else weight * self.orientation[block]

    def halves(self, *, both: bool) -> tuple[Tensor, ...]:
        """max(W, 0) and, if `both`, max(-W, 0)."""
        weight = self.oriented()
        positive = weight.clamp(min=0)
        return (positive, positive - weight) if both else (positive,)  # exact, because one of the two is zero

    def split(self, *, both: bool) -> list[Callable[[Tensor], Tensor]]:
        """The maps a -> W+ a and, if `both`, a -> W- a."""
        if self.weight is None:
            return [self.apply] if self.negative is None else [self.apply, self.negative]
        return [partial(_applied, self.apply, half) for half in self.halves(both=both)]


def _applied(apply: Callable[..., Tensor], weight: Tensor, signal: Tensor) -> Tensor:
    return apply(signal, weight)


def ratio(P: Tensor, z: Tensor) -> Tensor:
    """P / z for z >= 0, and 0 where z is exactly 0. No epsilon, so no probability leaks, however small the numbers."""
    return P / F.threshold(z, 0.0, math.inf)  # torch.where takes ten times as long


def parts_of(signal: Tensor, *, nonnegative: bool) -> list[Tensor]:
    """a+, and a- unless the signal is non-negative."""
    if nonnegative:
        return [signal]
    positive = signal.clamp(min=0)
    return [positive, positive - signal]


def normalizer(linear: LinearMap, signs: int | Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Z = W+ a+ + W- a- for s = +1, W- a+ + W+ a- for s = -1, and 0 for s = 0.

    Args:
        linear: W.
        signs: s, of all neurons or of each.
        parts: a+, and a- unless that is zero.
    """
    halves = linear.split(both=takes_both(signs, parts))

    def of(sign: int) -> Tensor:
        if linear.is_nonnegative:
            return linear.apply(parts[0 if sign > 0 else 1])
        return added([apply(a) for a, apply in zip(parts, halves[::sign], strict=False)])

    return of(signs) if isinstance(signs, int) else Choice.apply(signs, of(1), of(-1))


def normalizer_by_sizes(
    linear: LinearMap, signs: Tensor, signal: Tensor, response: Tensor | None
) -> tuple[list[Tensor], Tensor] | None:
    """|a| and a, and 2 Z = |W| |a| + s W a, two products instead of four; None where this is not exact enough.

    The factor 2 cancels, as shares are slopes of Z divided by Z. If the response y = W a + b is known, so is W a.
    """
    sign, weight = signs.sign().to(signal.dtype), linear.oriented()
    parts = [part.detach().requires_grad_() for part in (signal.detach().abs(), signal)]
    size, bias = linear.apply(parts[0], weight.abs()), linear.bias
    if response is None or bias is None:
        exact, bias = linear.apply(parts[1], weight), None
    else:
        exact = _Known.apply(parts[1], weight, response - bias)
    z = torch.addcmul(exact, sign, size) * sign  # 0 where s = 0
    rounded = size.detach()
    if isinstance(bias, Tensor):
        rounded = rounded + bias.detach().abs()
    is_exact = torch.sub(z.detach(), rounded, alpha=2 * _LEAST).amin() >= 0 if z.numel() else True
    return (parts, z) if is_exact else None


class _Known(Function):
    """``F.linear(a, weight)``, whose value is known."""

    @staticmethod
    def forward(ctx: Any, _a: Tensor, weight: Tensor, value: Tensor) -> Tensor:
        ctx.weight = weight
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vector: Tensor) -> tuple[Tensor, None, None]:
        return vector @ ctx.weight, None, None


def takes_both(signs: int | Tensor, parts: Sequence[Tensor]) -> bool:
    """Whether W- is needed as well as W+."""
    return len(parts) > 1 or not isinstance(signs, int) or signs < 0


class Choice(Function):
    """One of two non-negative tensors for each sign, 0 where the sign is 0. `torch.where` takes ten times as long."""

    @staticmethod
    def forward(ctx: Any, signs: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        sign = signs.sign().to(positive.dtype)
        positives = sign.clamp(min=0)
        ctx.takes = takes = positives, positives - sign
        # the other one may be infinite, and infinity times 0 is NaN, which fmax ignores
        return torch.fmax(positive * takes[0], negative * takes[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vector: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, vector * ctx.takes[0], vector * ctx.takes[1]


class Blocks:
    """The shares of a layer whose matrix takes longer to read than to multiply with.

    The matrix is processed in blocks, whose W+ and W- stay in the processor's cache.

    Args:
        linear: W.
        signs: s, of all neurons or of each.
        signal: a.
        nonnegative: whether no a_k is negative.
    """

    def __init__(self, linear: LinearMap, signs: int | Tensor, signal: Tensor, *, nonnegative: bool) -> None:
        self._linear, self._signs = linear, signs
        self._parts = parts_of(signal, nonnegative=nonnegative)

    @staticmethod
    def suit(linear: LinearMap) -> bool:
        """Whether the layer's matrix is so large."""
        weight = linear.weight
        if linear.apply is not F.linear or weight is None or weight.is_cuda or weight.dtype == torch.float16:
            return False
        return weight.numel() >= _LARGE

    def shares(self, P: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Z, and the signal's share of P (..., out), reading W once."""
        slopes: list[Any] = [0] * len(self._parts)
        totals = []
        for block, halves in self._each():
            z: Any = 0
            for sign, applies in self._of_signs(block):
                total = added([F.linear(up, half) for up, half in zip(self._parts, halves[::sign], strict=False)])
                z = z + total * applies
                if P is not None:
                    q = ratio(P[..., block] * applies, total)
                    slopes = [slope + q @ half for slope, half in zip(slopes, halves[::sign], strict=False)]
            totals.append(z)
        return torch.cat(totals, -1), of_parts(self._parts, slopes)

    def _of_signs(self, block: slice) -> list[tuple[int, Any]]:
        """Each sign that occurs, with a mask of a block's neurons that have it, or True for all."""
        if isinstance(self._signs, int):
            return [(self._signs, True)]
        return [(1, self._signs[..., block] > 0), (-1, self._signs[..., block] < 0)]

    def _each(self) -> Iterator[tuple[slice, list[Tensor]]]:
        """Slices of the rows of W with W+ and, if needed, W-, each valid until the next one."""
        weight, both = self._linear.weight, takes_both(self._signs, self._parts)
        assert weight is not None
        width = max(1, _BLOCK // weight.shape[1])
        buffers = [weight.new_empty(0) for _ in range(1 + both)]
        for start in range(0, len(weight), width):
            block = slice(start, start + width)
            w = self._linear.oriented(block)
            positive = torch.clamp(w, min=0, out=buffers[0].resize_(w.shape))
            halves = [positive]
            if both:
                halves.append(torch.sub(positive, w, out=buffers[1].resize_(w.shape)))
            yield block, halves


def of_parts(parts: Sequence[Tensor], slopes: Sequence[Any]) -> Any:
    """The sum of the shares of a+ and a-."""
    return added([part.detach() * slope for part, slope in zip(parts, slopes, strict=True)])


def added(terms: Sequence[Any]) -> Any:
    """Their sum. The built-in starts from 0, which costs another pass over a tensor."""
    return sum(terms[1:], terms[0])


def vector_jacobian(y: Tensor, inputs: Sequence[Any], vector: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """``torch.autograd.grad(y, inputs, vector)``, with options of its own.

    That imports SymPy to compare two shapes, which takes as long as a first picture should; so while SymPy is not
    imported, the vector comes in another way.
    """
    if "sympy" in sys.modules:
        return torch.autograd.grad(y, inputs, vector, **options)
    with torch.enable_grad(), quiet():
        start = Start.apply(y, vector)
    return torch.autograd.grad(start, inputs, **options)


class Start(Function):
    """A scalar whose gradient by y is a vector, which may be set later. It keeps nothing of y but its graph."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, vector: Tensor | None) -> Tensor:
        ctx.vector = vector
        return y.new_empty(())

    @staticmethod
    def backward(ctx: Any, _one: Tensor) -> tuple[Tensor, None]:
        return ctx.vector, None


def autocast() -> Callable[[], AbstractContextManager[Any]]:
    """The autocast that is active now, to be entered again in the backward pass."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            return partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind))
    return nullcontext
