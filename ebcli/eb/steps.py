"""Steps other than layers: one input and one output, and sums of signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from ebcli.eb.products import added, ratio
from ebcli.eb.recording import Step, Walk
from ebcli.eb.saved_values import Saved

Slope = float | Callable[[Tensor], Tensor]


class OneInput(Step):
    """One input, one output: P(i) = P(n). If the signal was broadcast, the probabilities of its copies are added."""

    def __init__(self, operation: str, signal: Tensor, *, keeps_zero: bool) -> None:
        self.operation, self.keeps_zero = operation, keeps_zero
        self.shape = signal.shape

    def shares(self, P: Tensor, _walk: Walk, *_signals: Tensor) -> list[Tensor]:
        return [P.sum_to_size(self.shape)]


class Rescaled(OneInput):
    """h = c u + d. Jointly, the weight of u is c G.

    Args:
        slope: c, or the function G -> c G.
    """

    def __init__(self, operation: str, signal: Tensor, *, keeps_zero: bool, slope: Slope) -> None:
        super().__init__(operation, signal, keeps_zero=keeps_zero)
        self._slope = slope

    def slopes(self, G: Tensor, _walk: Walk, *_signals: Tensor) -> list[Tensor]:
        return [scaled(G, self._slope).sum_to_size(self.shape)]


class Activation(OneInput):
    """An activated unit h = f(u). Jointly, it wins P = max(h G, 0), and the weight of u is P / u.

    Attributes:
        is_above_classifier: probability passes the unit before it reaches the classifier. There, the dual of a class
            is a unit of the classifier, not of what follows it, so nothing competes.
    """

    is_above_classifier = False

    def __init__(self, operation: str, signal: Tensor, *, keeps_zero: bool, is_relu: bool) -> None:
        super().__init__(operation, signal, keeps_zero=keeps_zero)
        self._u = None if is_relu else Saved(signal, operation)  # the sign of its value tells all about a ReLU
        self._h: Saved | None = None

    def follow(self, value: Tensor) -> None:
        """Set the value."""
        self._h = Saved(value, self.operation, signs_only=self._u is None)

    @property
    def is_signed(self) -> bool:
        """Whether its values have both signs."""
        if self._u is None or self._h is None:
            return False
        h = self._h.get()
        return bool(h.numel()) and not h.is_meta and bool(h.amin() < 0) and bool(h.amax() > 0)

    def slopes(self, G: Tensor, walk: Walk, *_signals: Tensor) -> list[Tensor]:
        size, sign = walk.once(self, self._slope)
        if self.is_above_classifier:
            G = G.where(size != 0, 0)
        else:
            G = (G * size).clamp_(min=0)  # torch.where takes ten times as long
            G = G if sign is None else G.mul_(sign)
        return [G.sum_to_size(self.shape)]

    def _slope(self) -> tuple[Tensor, Tensor | None]:
        """h / |u|, and the sign of u, which stops the weight where u is 0; the former then tells if h is 0 too."""
        assert self._h is not None
        h = self._h.get()
        if self._u is None:
            return h > 0, None
        u = self._u.get()
        return (h / u.abs()).nan_to_num_(0.0, 1.0, -1.0), u.sign()


class ResidualSum(Step):
    """A sum y = c_1 a_1 + c_2 a_2: Z = sum_k max(s c_k a_k, 0), s the sign of y.

    Args:
        scales: c.
    """

    feeds_inactive = False

    def __init__(self, operation: str, signals: Sequence[Tensor], scales: Sequence[float]) -> None:
        self.operation, self._scales = operation, scales
        self._shapes = [signal.shape for signal in signals]

    def normalizer(self, *signals: Tensor) -> tuple[list[Tensor], Tensor]:
        """Each operand's contribution, and their sum Z."""
        terms = [a.detach() if c == 1 else a.detach() * c for a, c in zip(signals, self._scales, strict=True)]
        # recomputed, because the next operation may overwrite y in place
        sign = added(terms).sign()
        parts = [(sign * term).clamp_(min=0) for term in terms]
        return parts, added(parts)

    def shares(self, P: Tensor, walk: Walk, *signals: Tensor) -> list[Tensor]:
        parts, z = walk.once(self, lambda: self.normalizer(*signals))
        quotient = ratio(P, z)
        return [(part * quotient).sum_to_size(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def slopes(self, G: Tensor, _walk: Walk, *_signals: Tensor) -> list[Tensor]:
        return [scaled(G, c).sum_to_size(shape) for c, shape in zip(self._scales, self._shapes, strict=True)]

    def loses(self, z: Tensor) -> bool:
        """Whether probability may arrive at a sum to which no operand contributes, and be lost."""
        return self.feeds_inactive and bool((z == 0).any())


def times(factor: Tensor | float, *, divides: bool = False) -> Slope:
    """The slope of a product with a constant factor, or of a quotient by it."""
    if isinstance(factor, Tensor):
        saved = Saved(factor)
        return lambda G: G / saved.get() if divides else G * saved.get()
    return (1 / factor if factor else math.inf) if divides else factor


def scaled(G: Tensor, slope: Slope) -> Tensor:
    """c G."""
    if callable(slope):
        return slope(G)
    return G if slope == 1 else G * slope
