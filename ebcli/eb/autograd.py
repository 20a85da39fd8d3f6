"""The autograd functions that every excitation rule is made of.

Under an :class:`~ebcli.eb.mode.ExcitationMode` what autograd carries down is not a gradient but a probability
P (Zhang et al. 2016, Eq. 4): the marginal winning probability of a neuron, or a signed difference of two such.
`ctx` in a ``torch.autograd.Function`` *is* the ``grad_fn`` of its output, so what a node stores there can be
read from the tensor it made; the rules for batch norm and ReLU fold themselves into a layer that way.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ebcli.errors import EbcliError

_thread = threading.local()


def is_quiet() -> bool:
    """Whether this thread is inside a rule, where operations must reach PyTorch as they are."""
    return getattr(_thread, "quiet", False)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the mode out of the operations that the rules themselves are made of."""
    before = is_quiet()
    _thread.quiet = True
    try:
        yield
    finally:
        _thread.quiet = before


def ratio(P: Tensor, z: Tensor) -> Tensor:
    """P / z, and 0 where z is exactly 0: no epsilon, so nothing leaks and small numbers are safe."""
    return (P / z).masked_fill_(z == 0, 0)


class PassThrough(Function):
    """A neuron with one input hands all its probability to it: P(i) = P(n).

    That input, the signal, is the last of `operands`. Where the value was broadcast from it, the probabilities of
    the copies add up. `compute` makes the value and may overwrite the first operand.
    """

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *operands: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape = operands[-1].shape
        ctx.others = len(operands) - 1
        return _value(ctx, compute, operands[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        with quiet():
            return None, *[None] * ctx.others, None if P is None else P.sum_to_size(ctx.shape)


class Contributions(ABC):
    """What explains the neurons of one layer: Z, the sum of their inputs' excitatory contributions, max(s z, 0).

    Attributes:
        dual: what explains the neurons' duals, whose probability is subtracted (Eq. 8), as for the units of the
            classes; None for all others.
        feeds_inactive: whether probability may arrive at neurons whose value is zero.
        parts, z: what normalizer() found, where it was kept.
    """

    dual: Contributions | None = None
    feeds_inactive = False
    parts: list[Tensor] | None = None
    z: Tensor | None = None

    @abstractmethod
    def of_dual(self) -> Contributions:
        """What explains the neurons' duals, whose weights are the negated weights (Eq. 6)."""

    @abstractmethod
    def normalizer(self, *signals: Tensor) -> tuple[list[Tensor], Tensor]:
        """The signals in parts, none of them ever below zero, and Z."""

    @abstractmethod
    def redistribute(self, parts: list[Tensor], z: Tensor, P: Tensor) -> list[Tensor]:
        """What each signal gets of P."""

    @abstractmethod
    def unexplained(self, z: Tensor) -> Tensor:
        """Whether probability could be lost, as a boolean (): at a neuron to which nothing contributes."""

    @property
    def normalizes_in_backward(self) -> bool:
        """Whether shares() of a single prior finds and keeps Z, too, in less time than prepare() takes."""
        return False

    def prepare(self, *signals: Tensor) -> None:
        """Find and keep Z, for several priors at once or to go down again."""
        self.parts, self.z = self.normalizer(*signals)

    def shares(self, *operands: Tensor) -> list[Tensor]:
        """From the signals and P, what each signal gets."""
        *signals, P = operands
        if self.parts is None or self.z is None:
            return self.redistribute(*self.normalizer(*signals), P)
        return self.redistribute(self.parts, self.z, P)


class Excitation(Function):
    """Eq. 4 and 10: a neuron hands its probability to its inputs in proportion to their contributions.

    The signals are the last of `operands`; `saved` holds what they were where `compute`, which makes the value,
    overwrites the first operand, else it is None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Tensor],
        contributions: Contributions,
        saved: tuple[Tensor, ...] | None,
        others: int,
        *operands: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(saved or operands[others:]))
        ctx.contributions, ctx.others = contributions, others
        return _value(ctx, compute, operands[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        rest = [None] * (4 + ctx.others)
        if P is None:
            return *rest, *[None] * (len(ctx.needs_input_grad) - len(rest))
        contributions, signals = ctx.contributions, _saved(ctx)
        with quiet():
            shares = contributions.shares(*signals, P)
            if contributions.dual is not None:
                duals = contributions.dual.shares(*signals, P)
                shares = [share - dual for share, dual in zip(shares, duals, strict=True)]
        return *rest, *shares


def _value(ctx: Any, compute: Callable[[], Tensor], operand: Tensor) -> Tensor:
    """The operation's value; autograd must be told if the operand was overwritten with it."""
    version = operand._version
    value = compute()
    if operand._version != version:
        ctx.mark_dirty(operand)
        return value
    # an operand returned as it is (dropout, evaluating) would become a view that later may not be overwritten
    return value.detach()


def _saved(ctx: Any) -> tuple[Tensor, ...]:
    try:
        return ctx.saved_tensors
    except RuntimeError as error:  # autograd's own check of versions, which cannot name the layer
        raise EbcliError(
            f"an input of {getattr(ctx, 'site', 'a layer')} was overwritten in place after it had been read; "
            "make that operation out of place"
        ) from error
