"""Weighted sums: linear maps with the sign of their weights, and the rule that follows a response's sign."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.errors import EbcliError

_LARGE = 1 << 22  # weights; below, one block is as good as many
_BLOCK = 1 << 19  # weights: 2 MiB in float32


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

    def oriented(self) -> Tensor:
        """W as its neurons see it."""
        assert self.weight is not None
        weight = self.weight.detach()
        return weight if self.orientation is None else weight * self.orientation


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
        if self.sign is not None:
            return self._of_sign(self.sign, signal)
        if (self.rectified and not self.reaches_silent) or self._is_nonnegative():
            return self._of_sign(1, signal)
        response = self._signed_response()
        below = ~(response > 0) if self.rectified else response < 0
        return torch.where(response > 0, self._of_sign(1, signal), torch.where(below, self._of_sign(-1, signal), 0))

    def _of_sign(self, sign: int, signal: Tensor) -> Tensor:
        """The contributions to neurons that have the sign s: W+ a+ + W- a- for s = +1, W- a+ + W+ a- for s = -1."""
        apply, up = self.linear.apply, signal if self.signal_is_nonnegative else signal.clamp(min=0)
        if self.linear.weight is None:  # no weight is negative
            assert sign > 0 or not self.signal_is_nonnegative
            return apply(up if sign > 0 else (-signal).clamp(min=0))
        weight = self.linear.oriented() if sign > 0 else -self.linear.oriented()
        total = apply(up, weight.clamp(min=0))
        if not self.signal_is_nonnegative:
            total = total + apply((-signal).clamp(min=0), (-weight).clamp(min=0))
        return total

    def _is_nonnegative(self) -> bool:
        """Whether no response can be below zero."""
        return self.linear.weight is None and self.signal_is_nonnegative

    def unexplained(self, z: Tensor) -> Tensor:
        nothing = z == 0
        if self.sign is None and not self.reaches_silent:  # where the response is zero, nothing arrives
            nothing &= False if self._is_nonnegative() else self._signed_response() != 0
        return nothing.any()

    def in_blocks(self, P: Tensor) -> Iterator[tuple[WeightedSum, Tensor]]:
        """Rows of a large matrix W a few at a time, so that W+ never leaves the processor's cache.

        Silent neurons have no probability to hand down, so their rows are not even read.
        """
        weight = self.linear.weight
        if self.linear.apply is not F.linear or weight is None or weight.numel() < _LARGE or weight.is_cuda:
            yield self, P
            return
        rows = torch.arange(len(weight))
        if self.sign is None:
            response = self._signed_response()
            if self.rectified and not self.reaches_silent:
                rows = (response > 0).flatten(0, -2).any(0).nonzero().squeeze(1)
        for block in rows.split(max(1, _BLOCK // weight.shape[1])):
            orientation = self.linear.orientation
            linear = LinearMap(
                F.linear, weight.detach()[block], None, None if orientation is None else orientation[block]
            )
            part = copy.copy(self)
            part.linear = linear
            if self.sign is None:
                part.follow(response[..., block], self._site)
            yield part, P[..., block]

    def _signed_response(self) -> Tensor:
        assert self._response is not None
        if self._response._version != self._version:
            raise EbcliError(
                f"the output of {self._site} was overwritten in place after another layer had read it; "
                "make that operation out of place"
            )
        return self._response


class SharedSum:
    """The contributions to y = a_1 + a_2 (a residual): Z = sum_k max(s a_k, 0), s the sign of y.

    Attributes:
        scales: what each operand is multiplied with before the sum, -1 for a subtrahend.
    """

    weight = None
    contrast = False

    def __init__(self, *scales: float) -> None:
        self.scales = scales
        self.reaches_silent = False

    def __call__(self, *signals: Tensor) -> Tensor:
        terms = [a if scale == 1 else a * scale for a, scale in zip(signals, self.scales, strict=True)]
        # recomputed, not kept: the next operation may overwrite y in place
        sign = sum(term.detach() for term in terms).sign()  # type: ignore[union-attr]
        return sum((sign * term).clamp(min=0) for term in terms)  # type: ignore[return-value]

    def of_dual(self) -> SharedSum:
        """A sum has no weights to negate."""
        return self

    def in_blocks(self, P: Tensor) -> Iterator[tuple[SharedSum, Tensor]]:
        yield self, P

    def unexplained(self, z: Tensor) -> Tensor:
        return (z == 0).any() if self.reaches_silent else torch.zeros((), dtype=torch.bool, device=z.device)
