"""Contributions to weighted sums, with the sign of the response they explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.eb.autograd import Choice, Contributions, ratio, vector_jacobian
from ebcli.eb.kept import Kept

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

    def oriented(self, *block: slice) -> Tensor:
        """W times its orientation, or a block of its rows and columns."""
        assert self.weight is not None
        weight = self.weight.detach()[block]
        return weight if self.orientation is None else weight * self.orientation[block[:1]]

    def halves(self, *, both: bool) -> tuple[Tensor, ...]:
        """max(W, 0) and, if `both`, max(-W, 0)."""
        weight = self.oriented()
        positive = weight.clamp(min=0)
        return (positive, positive - weight) if both else (positive,)  # exact, because one of the two is zero


class WeightedSum(Contributions):
    """The contributions to the neurons of one layer y = W a + b: Z_n = sum_k max(s_n z_kn, 0), z_kn = a_k w_kn.

    Attributes:
        linear: the map W.
        signal_is_nonnegative: no a_k is negative.
        rectified: a ReLU follows, so neurons with a response of 0 or less are inactive. They get no probability, and
            s = +1 holds for all others, unless `feeds_inactive`.
        feeds_inactive: a later operation passes probability to inactive neurons too (batch norm's shift).
        sign: s of all neurons, whatever their response: +1 for the unit of a class, -1 for its dual (Eq. 6).
            None, for every layer below the classifier: s is the sign of the neuron's response.
        turn: the sign of a factor folded in behind the layer, which multiplies s; broadcasts to the response.
        shape: the response's.
    """

    shape: torch.Size

    def __init__(self, linear: LinearMap, *, signal_is_nonnegative: bool, rectified: bool = False) -> None:
        self.linear = linear
        self.signal_is_nonnegative = signal_is_nonnegative
        self.rectified = rectified
        self.sign: int | None = None if linear.weight is None else 1
        self.turn: Tensor | None = None
        self._response: Kept | None = None
        self._is_difference = False  # whether Z is a difference, so that a share of 0 may come out negative
        self._site = ""
        self._autocast = _autocast()

    @property
    def weight(self) -> Tensor | None:
        return self.linear.weight

    def of_dual(self) -> WeightedSum:
        """The same layer with the sign of the dual units."""
        dual = WeightedSum(self.linear, signal_is_nonnegative=self.signal_is_nonnegative)
        dual.sign, dual.turn, dual.shape, dual._autocast = -1, self.turn, self.shape, self._autocast
        return dual

    def follow(self, response: Tensor | None, site: str = "") -> None:
        """Set the response y, or None if it is not needed anymore. `site` names the layer in errors."""
        self._response, self._site = None if response is None else Kept(response, signs_only=True), site
        if response is not None:
            self.shape = response.shape

    def normalizer(self, *signals: Tensor) -> tuple[list[Tensor], Tensor]:
        (signal,) = signals
        with torch.enable_grad(), self._autocast():
            signs = self._signs()
            found = None if isinstance(signs, int) else self._by_sizes(signs, signal)
            self._is_difference = found is not None
            if found is not None:
                return found
            parts = [part.detach().requires_grad_() for part in self._parts(signal.detach())]
            return parts, self._total(signs, parts)

    def redistribute(self, parts: list[Tensor], z: Tensor, P: Tensor) -> list[Tensor]:
        """P_in = a * (dZ/da)^T (P / Z), Eq. 10 for a whole layer; Z is linear in each part of a."""

        def slopes(quotient: Tensor) -> tuple[Tensor, ...]:
            return vector_jacobian(z, parts, quotient, retain_graph=self.z is not None)

        if z.dtype != torch.float16:
            share = _of_parts(parts, slopes(ratio(P, z.detach())))
            # rounding aside, no share is less than all negative probability, which only contrastive passes have
            return [torch.maximum(share, P.clamp(max=0).sum()) if self._is_difference else share]
        quotient = ratio(P.float(), z.detach().float())
        scale = quotient.abs().amax()  # 1 / z overflows below 1.5e-5
        return [(_of_parts(parts, [s.float() for s in slopes(ratio(quotient, scale).half())]) * scale).half()]

    def _total(self, signs: int | Tensor, parts: list[Tensor]) -> Tensor:
        """Z, from the parts of the signal."""
        if self.linear.is_nonnegative:

            def of(sign: int) -> Tensor:
                return self.linear.apply(parts[0 if sign > 0 else 1])

        else:
            halves = self._halves(both=_takes_both(signs, parts))

            def of(sign: int) -> Tensor:  # W+ a+ + W- a- for s = +1, W- a+ + W+ a- for s = -1
                return added([apply(a) for a, apply in zip(parts, halves[::sign], strict=False)])

        if isinstance(signs, int):
            return of(signs)
        return Choice.apply(signs, of(1), of(-1))

    def _by_sizes(self, signs: Tensor, signal: Tensor) -> tuple[list[Tensor], Tensor] | None:
        """|a| and a, and 2 Z = |W| |a| + s W a, two products instead of four; None where this is not exact enough.

        The factor 2 cancels, as shares are slopes of Z divided by Z.
        """
        is_plain = self.linear.weight is not None and self._autocast is nullcontext
        if not is_plain or self.signal_is_nonnegative or signal.dtype != torch.float32:
            return None
        sign, weight = signs.sign().to(signal.dtype), self.linear.oriented()
        parts = [part.detach().requires_grad_() for part in (signal.detach().abs(), signal)]
        size, response = (self.linear.apply(*operands) for operands in zip(parts, (weight.abs(), weight), strict=True))
        z = torch.addcmul(response, sign, size) * sign  # 0 where s = 0
        is_exact = torch.sub(z.detach(), size.detach(), alpha=2 * _LEAST).amin() >= 0
        return (parts, z) if is_exact else None

    def _halves(self, *, both: bool) -> list[Callable[[Tensor], Tensor]]:
        """The maps a -> W+ a and, if `both`, a -> W- a."""
        if self.linear.negative is not None:
            return [self.linear.apply, self.linear.negative]
        return [partial(_applied, self.linear.apply, half) for half in self.linear.halves(both=both)]

    def _parts(self, signal: Tensor) -> list[Tensor]:
        """a+, and a- unless the signal is non-negative."""
        if self.signal_is_nonnegative:
            return [signal]
        positive = signal.clamp(min=0)
        return [positive, positive - signal]

    def _signs(self) -> int | Tensor:
        """s of all neurons, or a tensor whose signs are s."""
        if self.sign is not None:
            signs: int | Tensor = self.sign
        elif (self.rectified and not self.feeds_inactive) or self._is_nonnegative():
            signs = 1
        else:
            response = self._signed_response()
            signs = torch.where(response > 0, 1, -1) if self.rectified else response
        if self.turn is None:
            return signs
        return (self.turn * (signs if isinstance(signs, int) else signs.sign())).expand(self.shape)

    def _is_nonnegative(self) -> bool:
        """Whether all responses are non-negative."""
        return self.linear.is_nonnegative and self.signal_is_nonnegative

    def unexplained(self, z: Tensor) -> Tensor:
        nothing = z == 0
        if self.sign is None and not self.feeds_inactive:  # no probability arrives at zeros
            nothing &= False if self._is_nonnegative() else self._signed_response() != 0
        return nothing.any()

    def prepare(self, *signals: Tensor) -> None:
        if self._is_large():
            self._share_by_rows(*signals)
        else:
            super().prepare(*signals)

    @property
    def normalizes_in_backward(self) -> bool:
        return self._is_large()

    def shares(self, *operands: Tensor) -> list[Tensor]:
        if not self._is_large():
            return super().shares(*operands)
        signal, P = operands
        return [self._share_by_rows(signal, P) if self.z is None else self._share_by_columns(signal, P, self.z)]

    def _is_large(self) -> bool:
        """Whether W is a matrix that takes longer to read than to multiply with.

        It is then processed in blocks, whose W+ and W- stay in the processor's cache.
        """
        weight = self.linear.weight
        if self.linear.apply is not F.linear or weight is None or weight.is_cuda or weight.dtype == torch.float16:
            return False
        return self._autocast is nullcontext and weight.numel() >= _LARGE

    def _share_by_rows(self, signal: Tensor, P: Tensor | None = None) -> Tensor:
        """The signal's share of P (..., out), reading W once. Also computes and keeps Z."""
        signs, ups = self._signs(), self._parts(signal)
        slopes: list[Any] = [0] * len(ups)
        totals = []
        for block, halves in self._blocks(0, both=_takes_both(signs, ups)):
            z: Any = 0
            for sign, applies in _each(signs, block):
                total = added([F.linear(up, half) for up, half in zip(ups, halves[::sign], strict=False)])
                z = z + total * applies
                if P is not None:
                    q = ratio(P[..., block] * applies, total)
                    slopes = [slope + q @ half for slope, half in zip(slopes, halves[::sign], strict=False)]
            totals.append(z)
        self.z = torch.cat(totals, -1)
        return _of_parts(ups, slopes)

    def _share_by_columns(self, signal: Tensor, P: Tensor, z: Tensor) -> Tensor:
        """The signal's share of P (..., out) if Z is known, reading W once."""
        signs, ups = self._signs(), self._parts(signal)
        q = ratio(P, z)
        by_sign = [(sign, q * applies) for sign, applies in _each(signs)]
        shares = []
        for block, halves in self._blocks(1, both=_takes_both(signs, ups)):
            slopes: list[Any] = [0] * len(ups)
            for sign, q in by_sign:
                slopes = [slope + q @ half for slope, half in zip(slopes, halves[::sign], strict=False)]
            shares.append(_of_parts([up[..., block] for up in ups], slopes))
        return torch.cat(shares, -1)

    def _blocks(self, axis: int, *, both: bool) -> Iterator[tuple[slice, list[Tensor]]]:
        """Slices of the rows (axis 0) or columns (1) of W with W+ and, if `both`, W-, each valid until the next one."""
        weight = self.linear.weight
        assert weight is not None
        size, width = weight.shape[axis], max(1, _BLOCK // weight.shape[1 - axis])
        buffers = [weight.new_empty(0) for _ in range(1 + both)]
        for start in range(0, size, width):
            block = slice(start, start + width)
            w = self.linear.oriented(*[slice(None)] * axis, block)
            positive = torch.clamp(w, min=0, out=buffers[0].resize_(w.shape))
            halves = [positive]
            if both:
                halves.append(torch.sub(positive, w, out=buffers[1].resize_(w.shape)))
            yield block, halves

    def _signed_response(self) -> Tensor:
        assert self._response is not None
        return self._response.get(self._site)


def _applied(apply: Callable[..., Tensor], weight: Tensor, signal: Tensor) -> Tensor:
    return apply(signal, weight)


def _autocast() -> Callable[[], AbstractContextManager[Any]]:
    """The autocast that is active now, to be entered again in the backward pass."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            return partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind))
    return nullcontext


def _takes_both(signs: int | Tensor, parts: list[Tensor]) -> bool:
    """Whether W- is needed as well as W+."""
    return len(parts) > 1 or not isinstance(signs, int) or signs < 0


def _each(signs: int | Tensor, block: slice = slice(None)) -> list[tuple[int, Any]]:
    """Each sign that occurs, with a mask of a block's neurons that have it, or True for all."""
    if isinstance(signs, int):
        return [(signs, True)]
    return [(1, signs[..., block] > 0), (-1, signs[..., block] < 0)]


def _of_parts(parts: Sequence[Tensor], slopes: Sequence[Any]) -> Any:
    """The sum of the shares of a+ and a-."""
    return added([part.detach() * slope for part, slope in zip(parts, slopes, strict=True)])


def added(terms: Sequence[Any]) -> Any:
    """Their sum. The built-in starts from 0, which costs another pass over a tensor."""
    return sum(terms[1:], terms[0])
