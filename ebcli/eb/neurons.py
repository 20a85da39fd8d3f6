"""The neurons of a layer, and how Eq. 4 splits their probability among their inputs."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ebcli.eb.products import (
    Blocks,
    LinearMap,
    Start,
    autocast,
    normalizer,
    normalizer_by_sizes,
    of_parts,
    parts_of,
    ratio,
    vector_jacobian,
)
from ebcli.eb.recording import Step, Walk
from ebcli.eb.saved_values import Saved


def split(P: Tensor, parts: list[Tensor], z: Tensor, **options: Any) -> Tensor:
    """Eq. 4 for a whole layer: P_in = a * W+^T (P / W+ a).

    Args:
        P: the probabilities of its neurons.
        parts: a, split by sign into parts of which each makes only contributions that excite.
        z: W+ a, the neurons' excitation, as a function of the parts.
    """
    q = ratio(P, z.detach())
    slopes = vector_jacobian(z, parts, q, **options)  # W+^T q
    return of_parts(parts, slopes)


class Fold(Protocol):
    """An operation folded into a layer; see `ebcli.eb.folding`."""

    def back(self, arrived: Tensor, *, jointly: bool) -> Tensor:
        """What arrives at its operand, if something arrives at its value."""


class WeightedSum(Step):
    """The neurons of a layer y = W a + b: Z_n = sum_k max(s_n z_kn, 0), z_kn = a_k w_kn.

    Attributes:
        linear: the map W.
        signal_is_nonnegative: no a_k is negative.
        rectified: a ReLU follows, so neurons with a response of 0 or less are inactive. They get no probability, and
            s = +1 holds for all others, unless `feeds_inactive`.
        feeds_inactive: a later operation passes probability to inactive neurons too (batch norm's shift).
        is_classifier: no other layer with weights reads the neurons. Then s = +1, whatever the response: these are the
            units of the classes (Eq. 6). Below, s is the sign of the response.
        fold_sign: the sign of a factor folded in behind the layer, which multiplies s; broadcasts to the response.
        trail: what was folded in, in order; each node has an entry of its own, the last one.
    """

    _is_dual = False
    _layer: WeightedSum | None = None
    _bounded: Saved | None = None
    _response: Saved | None = None
    shape: torch.Size

    def __init__(self, operation: str, linear: LinearMap, *, signal_is_nonnegative: bool) -> None:
        self.operation, self.linear = operation, linear
        self.signal_is_nonnegative = signal_is_nonnegative
        self.rectified = self.feeds_inactive = False
        self.is_classifier = linear.weight is not None
        self.fold_sign: Tensor | None = None
        self.trail: tuple[Fold, ...] = ()
        self._native: tuple[Tensor, Tensor] | None = None
        self._autocast = autocast()

    def folded(self, linear: LinearMap, fold_sign: Tensor | None, trail: tuple[Fold, ...]) -> WeightedSum:
        """These neurons with something folded in."""
        step = WeightedSum(self.operation, linear, signal_is_nonnegative=self.signal_is_nonnegative)
        step.is_classifier, step.fold_sign, step.trail, step._layer = self.is_classifier, fold_sign, trail, self.layer
        return step

    @property
    def layer(self) -> WeightedSum:
        """The step of the layer itself, without what was folded in."""
        return self._layer or self

    def as_dual(self) -> WeightedSum:
        """The neurons' duals, which have negated weights (Eq. 6)."""
        dual = copy.copy(self)
        dual._layer = self.layer
        dual._is_dual = True
        return dual

    def follow(self, response: Tensor | None, bounded: Saved | None = None) -> None:
        """Set the response y, or None if it is not needed anymore; `bounded` is y before it was cut off above."""
        self._bounded = bounded
        signs_only = bounded is None
        self._response = None if response is None else Saved(response, self.operation, signs_only=signs_only)
        if response is not None:
            self.shape = response.shape

    def remember(self, value: Tensor, signal: Tensor) -> Tensor:
        """Keep how PyTorch computed the value from the signal, a leaf; returns it without that."""
        if value.grad_fn is not None:
            self._native = Start.apply(value, None), signal
        return value.detach()

    # Step by step

    def shares(self, P: Tensor, walk: Walk, *signals: Tensor) -> list[Tensor]:
        (signal,) = signals
        if not self.is_large:
            return [self._split(P, *walk.once(self, partial(self.normalizer, signal)))]
        z, share = self._blocks(signal).shares(P)
        walk.once(self, lambda: ([], z, False))
        return [share]

    def normalizer(self, signal: Tensor) -> tuple[list[Tensor], Tensor, bool]:
        """The signal in parts that excite; Z, a function of them, but for large layers; if Z is a difference."""
        if self.is_large:
            return [], self._blocks(signal).shares()[0], False
        signs = self._signs()
        with torch.enable_grad(), self._autocast():
            if isinstance(signs, Tensor) and self._may_subtract(signal):
                found = normalizer_by_sizes(self.linear, signs, signal, self._known_response)
                if found is not None:
                    return *found, True
            parts = parts_of(signal.detach(), nonnegative=self.signal_is_nonnegative)
            parts = [part.detach().requires_grad_() for part in parts]
            return parts, normalizer(self.linear, signs, parts), False

    def _blocks(self, signal: Tensor) -> Blocks:
        return Blocks(self.linear, self._signs(), signal, nonnegative=self.signal_is_nonnegative)

    @property
    def _known_response(self) -> Tensor | None:
        """The response of a linear layer with a known bias, unless something is folded in."""
        if self.linear.bias is None or self.layer is not self or self._response is None:
            return None
        response = self._response.get()
        return response if response.is_floating_point() else None  # not only its signs

    def _may_subtract(self, signal: Tensor) -> bool:
        is_plain = self.linear.weight is not None and self._autocast is nullcontext
        return is_plain and not self.signal_is_nonnegative and signal.dtype == torch.float32

    def _split(self, P: Tensor, parts: list[Tensor], z: Tensor, is_difference: bool) -> Tensor:
        if z.dtype == torch.float16:  # 1 / z overflows below 1.5e-5
            quotient = ratio(P.float(), z.detach().float())
            scale = quotient.abs().amax() if quotient.numel() else quotient.new_ones(())
            slopes = vector_jacobian(z, parts, ratio(quotient, scale).half(), retain_graph=True)
            return (of_parts(parts, [slope.float() for slope in slopes]) * scale).half()
        share = split(P, parts, z, retain_graph=True)
        # a share of 0 may come out negative, but none is less than all negative probability, as in contrastive passes
        return torch.maximum(share, P.clamp(max=0).sum()) if is_difference else share

    def _signs(self) -> int | Tensor:
        """s of all neurons, or a tensor whose signs are s."""
        if self._is_dual or self.is_classifier:
            signs: int | Tensor = -1 if self._is_dual else 1
        elif (self.rectified and not self.feeds_inactive) or self._is_nonnegative:
            signs = 1
        else:
            assert self._response is not None
            response = self._response.get()
            signs = torch.where(response > 0, 1, -1) if self.rectified else response
        if self.fold_sign is None:
            return signs
        return (self.fold_sign * (signs if isinstance(signs, int) else signs.sign())).expand(self.shape)

    @property
    def _is_nonnegative(self) -> bool:
        """Whether all responses are non-negative."""
        return self.linear.is_nonnegative and self.signal_is_nonnegative

    @property
    def is_large(self) -> bool:
        """Whether the layer's matrix is split in blocks, by rows and by columns."""
        return self._autocast is nullcontext and Blocks.suit(self.linear)

    def loses(self, z: Tensor) -> bool:
        """Whether probability may arrive at a neuron to which no input contributes, and be lost."""
        nothing = z.detach() == 0
        if not (self.is_classifier or self.feeds_inactive):  # no probability arrives at zeros
            if self._is_nonnegative:
                return False
            assert self._response is not None
            nothing &= self._response.get() != 0
        return bool(nothing.any())

    # Jointly

    def slopes(self, G: Tensor, _walk: Walk, *signals: Tensor) -> list[Tensor]:
        (signal,) = signals
        G = self.back_to(None, G, jointly=True)
        if self.layer._native is not None:
            start, leaf = self.layer._native
            start.grad_fn.vector = G  # type: ignore[union-attr]
            return list(torch.autograd.grad(start, leaf, retain_graph=True))
        with self._autocast():
            return list(torch.func.vjp(self.layer.linear.exact, torch.zeros_like(signal))[1](G))

    def back_to(self, entry: Fold | None, arrived: Tensor, *, jointly: bool) -> Tensor:
        """What arrives at the value that `entry` of the trail stands for, or at the layer's own, for None."""
        if jointly and self.rectified:
            arrived = self._through_relu(arrived)
        start = 0 if entry is None else self.trail.index(entry) + 1
        for fold in reversed(self.trail[start:]):
            arrived = fold.back(arrived, jointly=jointly)
        return arrived

    def _through_relu(self, G: Tensor) -> Tensor:
        assert self._response is not None
        h = self._response.get()
        slope: Any = h > 0
        if self._bounded is not None:  # P / u where u was cut off
            slope = (h / self._bounded.get()).where(slope, 0)
        # the dual of a class is a unit of the classifier, not of the ReLU behind it
        return (G if self.is_classifier else G.clamp(min=0)) * slope
