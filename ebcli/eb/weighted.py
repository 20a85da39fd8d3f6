"""Weighted sums: linear maps with the sign of their weights, and the rule that follows a response's sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ebcli.errors import EbcliError

_Part = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearMap:
    """A linear map a -> W a, without bias, whose weights can be told apart by sign.

    Attributes:
        apply: (signal, weight) -> sum, linear in both; (signal) -> sum where there is no weight.
        weight: W; None where the weights are fixed and never negative, as in average pooling.
        per_output: (C,) -> a tensor that multiplies W, output channel by output channel; None where outputs have
            no channels, so that batch norm cannot be folded in.
        orientation: -1, 0 or +1 for each weight, broadcast: the sign of the scale in a batch norm that follows.
            None means +1 everywhere.
    """

    apply: Callable[..., Tensor]
    weight: Tensor | None = None
    per_output: Callable[[Tensor], Tensor] | None = None
    orientation: Tensor | None = None

    def scaled(self, gamma: Tensor) -> LinearMap:
        """This map followed by a scale for each output channel, gamma (C,), of which only the sign matters."""
        assert self.per_output is not None
        return replace(self, orientation=self.per_output(gamma.detach().sign()))

    def parts(self) -> tuple[_Part, _Part | None]:
        """a -> W+ a and a -> |W-| a; None for the second where no weight is negative."""
        if self.weight is None:
            return self.apply, None
        weight = self.weight.detach()
        if self.orientation is not None:
            weight = weight * self.orientation
        positive, negative = weight.clamp(min=0), (-weight).clamp(min=0)
        return partial(self._apply_to, positive), partial(self._apply_to, negative)

    def _apply_to(self, weight: Tensor, signal: Tensor) -> Tensor:
        return self.apply(signal, weight)


class WeightedSum:
    """The contributions to the neurons of one layer y = W a + b: Z_n = sum_k max(s_n z_kn, 0), z_kn = a_k w_kn.

    Attributes:
        linear: the map W.
        signal_is_nonnegative: no a_k is ever below zero.
        rectified: a ReLU follows, so a positive response is an active neuron and any other a silent one. Silent
            neurons get no probability, and s = +1 serves for all, unless `reaches_silent`.
        reaches_silent: something above hands probability to neurons whatever their value (batch norm's shift).
        sign: s for all neurons, whatever their response: +1 for the unit of a class, -1 for its dual (Eq. 6).
            None, as for every layer below the classifier, follows the sign of each response.
        contrast: see Contributions.
    """

    def __init__(self, linear: LinearMap, *, signal_is_nonnegative: bool, rectified: bool = False) -> None:
        self.linear = linear
        self.signal_is_nonnegative = signal_is_nonnegative
        self.rectified = rectified
        self.reaches_silent = False
        self.sign: int | None = None if linear.weight is None else 1
        self.contrast = False
        self.is_turned = False  # the response followed is a batch norm's, its sign turned back
        self._response: Tensor | None = None
        self._version = 0
        self._site = ""

    @property
    def weight(self) -> Tensor | None:
        return self.linear.weight

    def of_dual(self) -> WeightedSum:
        """The same layer with the sign of the dual units."""
        dual = WeightedSum(self.linear, signal_is_nonnegative=self.signal_is_nonnegative)
        dual.sign = -1
        return dual

    def follow(self, response: Tensor, site: str) -> None:
        """Set y, whose sign is followed; `site` names the layer in an error."""
        self._response, self._version, self._site = response.detach(), response._version, site

    def freeze(self) -> None:
        """Keep the signs as they are now, because y is about to be overwritten."""
        if self._response is not None and self._response.is_floating_point():
            self.follow(self._response.sign().to(torch.int8), self._site)

    def __call__(self, *signals: Tensor) -> Tensor:
        (signal,) = signals
        positive, negative = self.linear.parts()
        up = signal if self.signal_is_nonnegative else signal.clamp(min=0)
        down = None if self.signal_is_nonnegative else (-signal).clamp(min=0)

        def excitation() -> Tensor:  # of neurons with s = +1
            return _total((positive, up), (negative, down))

        def inhibition() -> Tensor:  # of neurons with s = -1
            return _total((negative, up), (positive, down))

        if self.sign is not None:
            return excitation() if self.sign > 0 else inhibition()
        if (self.rectified and not self.reaches_silent) or (negative is None and down is None):
            return excitation()
        response = self._signed_response()
        below = ~(response > 0) if self.rectified else response < 0
        return torch.where(response > 0, excitation(), torch.where(below, inhibition(), 0))

    def _signed_response(self) -> Tensor:
        assert self._response is not None
        if self._response._version != self._version:
            raise EbcliError(
                f"the output of {self._site} was overwritten in place after another layer had read it; "
                "make that operation out of place"
            )
        return self._response


def _total(*terms: tuple[_Part | None, Tensor | None]) -> Tensor:
    """The sum of part(a) over those terms that have both."""
    first, *rest = [part(a) for part, a in terms if part is not None and a is not None]
    return sum(rest, start=first)


class SharedSum:
    """The contributions to y = a_1 + a_2 (a residual): Z = sum_k max(s a_k, 0), s the sign of y.

    Attributes:
        scales: what each operand is multiplied with before the sum, -1 for a subtrahend.
    """

    weight = None
    contrast = False

    def __init__(self, *scales: float) -> None:
        self.scales = scales

    def __call__(self, *signals: Tensor) -> Tensor:
        terms = [a if scale == 1 else a * scale for a, scale in zip(signals, self.scales, strict=True)]
        # recomputed, not kept: the next operation may overwrite y in place
        sign = sum(term.detach() for term in terms).sign()  # type: ignore[union-attr]
        return sum((sign * term).clamp(min=0) for term in terms)  # type: ignore[return-value]

    def of_dual(self) -> SharedSum:
        """A sum has no weights to negate."""
        return self
