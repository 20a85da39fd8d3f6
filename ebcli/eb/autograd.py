"""The autograd functions that every excitation rule is made of.

In an :class:`~ebcli.eb.mode.ExcitationMode`, autograd propagates probabilities P instead of gradients (Zhang et al.
2016, Eq. 4): marginal winning probabilities, or differences of two. `ctx` in a ``torch.autograd.Function`` *is* the
``grad_fn`` of its output, so the `NodeFacts` stored there can be read from the output.
"""

from __future__ import annotations

import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_thread = threading.local()


def is_quiet() -> bool:
    """Whether this thread is inside a rule, whose own operations the mode must not see."""
    return getattr(_thread, "quiet", False)


class quiet:  # noqa: N801  a context, in lower case as torch.no_grad; entered at every operation, so no generator
    """Hide the operations that rules are made of from the mode."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = is_quiet()
        _thread.quiet = True

    def __exit__(self, *error: object) -> None:
        _thread.quiet = self._before


def ratio(P: Tensor, z: Tensor) -> Tensor:
    """P / z for z >= 0, and 0 where z is exactly 0. No epsilon, so no probability leaks, however small the numbers."""
    return P / F.threshold(z, 0.0, math.inf)  # torch.where takes ten times as long


def vector_jacobian(y: Tensor, inputs: Sequence[Any], vector: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """``torch.autograd.grad(y, inputs, vector)``, with options of its own.

    That imports SymPy to compare two shapes, which takes as long as a first picture should; so while SymPy is not
    imported, the vector comes in another way.
    """
    if "sympy" in sys.modules:
        return torch.autograd.grad(y, inputs, vector, **options)
    with torch.enable_grad(), quiet():
        start = _Start.apply(y, vector)
    return torch.autograd.grad(start, inputs, **options)


class _Start(Function):
    """A scalar whose gradient by y is a given vector."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, vector: Tensor) -> Tensor:
        ctx.vector = vector
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _one: Tensor) -> tuple[Tensor, None]:
        return ctx.vector, None


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


@dataclass
class NodeFacts:
    """What a rule knows about the node it made.

    Attributes:
        skipped: how many of its operands come before the signals.
        contributions: what explains its neurons; None if it passes probability on unchanged.
        site: the operation and its module, for messages.
        keeps_zero: a zero stays zero.
        is_signed: it is an activation whose values may be negative.
        is_above_classifier: probability passes it on the way to the classifier.
        trail: what lies between the output of the layer it was folded into and its own value, see `Layer`.
    """

    skipped: int
    contributions: Contributions | None = None
    site: str = ""
    keeps_zero: bool = False
    is_signed: bool = False
    is_above_classifier: bool = False
    trail: tuple[Any, ...] = ()


class PassThrough(Function):
    """A neuron with a single input passes all its probability to it: P(i) = P(n).

    That input, the signal, is the last of `operands`. If it was broadcast, the probabilities of its copies are
    summed. `compute` returns the value and may overwrite the first operand.
    """

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *operands: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape = operands[-1].shape
        ctx.facts = NodeFacts(len(operands) - 1)
        return value_of(ctx, compute, operands[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        with quiet():
            return None, *[None] * ctx.facts.skipped, None if P is None else P.sum_to_size(ctx.shape)


class Contributions(ABC):
    """What explains the neurons of one layer: the excitatory contributions max(s z, 0) of their inputs.

    Attributes:
        dual: the contributions to the neurons' duals, whose probability is subtracted (Eq. 8). Only the units of the
            classes have duals.
        feeds_inactive: whether probability may arrive at neurons whose value is zero.
        parts, z: the result of normalizer(), if it was kept.
    """

    dual: Contributions | None = None
    feeds_inactive = False
    parts: list[Tensor] | None = None
    z: Tensor | None = None

    @abstractmethod
    def of_dual(self) -> Contributions:
        """The contributions to the neurons' duals, which have negated weights (Eq. 6)."""

    @abstractmethod
    def normalizer(self, *signals: Tensor) -> tuple[list[Tensor], Tensor]:
        """The signals split into non-negative parts, and the normalizer Z, the sum of all contributions."""

    @abstractmethod
    def redistribute(self, parts: list[Tensor], z: Tensor, P: Tensor) -> list[Tensor]:
        """Each signal's share of P."""

    @abstractmethod
    def unexplained(self, z: Tensor) -> Tensor:
        """A boolean (): whether probability may arrive at a neuron to which no input contributes, and be lost."""

    @property
    def normalizes_in_backward(self) -> bool:
        """Whether shares() of a single prior computes and keeps Z faster than prepare() does."""
        return False

    def prepare(self, *signals: Tensor) -> None:
        """Compute and keep Z, for several priors or several backward passes."""
        self.parts, self.z = self.normalizer(*signals)

    def shares(self, *operands: Tensor) -> list[Tensor]:
        """Each signal's share of P, the last operand."""
        *signals, P = operands
        if self.parts is None or self.z is None:
            return self.redistribute(*self.normalizer(*signals), P)
        return self.redistribute(self.parts, self.z, P)


class Excitation(Function):
    """Eq. 4 and 10: a neuron splits its probability among its inputs in proportion to their contributions.

    `operands` ends with the signals; `skipped` operands come before them. If `compute`, which returns the value,
    overwrites the first operand, `saved` holds the signals' earlier values; otherwise it is None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Tensor],
        contributions: Contributions,
        saved: tuple[Tensor, ...] | None,
        skipped: int,
        *operands: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(saved or operands[skipped:]))
        ctx.facts = NodeFacts(skipped, contributions)
        return value_of(ctx, compute, operands[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        rest = [None] * (4 + ctx.facts.skipped)
        if P is None:
            return *rest, *[None] * (len(ctx.needs_input_grad) - len(rest))
        contributions, signals = ctx.facts.contributions, ctx.saved_tensors
        with quiet():
            shares = contributions.shares(*signals, P)
            if contributions.dual is not None:
                duals = contributions.dual.shares(*signals, P)
                shares = [share - dual for share, dual in zip(shares, duals, strict=True)]
        return *rest, *shares


def value_of(ctx: Any, compute: Callable[[], Tensor], operand: Tensor) -> Tensor:
    """The operation's value. Tells autograd if the operand was overwritten with it."""
    version = operand._version
    value = compute()
    if operand._version != version:
        ctx.mark_dirty(operand)
        return value
    # an operand returned unchanged (dropout in evaluation mode) would become a view that must not be overwritten
    return value.detach()
