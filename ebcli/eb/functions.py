"""The autograd functions that every excitation rule is made of.

Under an :class:`~ebcli.eb.mode.ExcitationMode` what autograd carries down is not a gradient but a probability
P (Zhang et al. 2016, Eq. 4): the marginal winning probability of a neuron, or a signed difference of two such.
`ctx` in a ``torch.autograd.Function`` *is* the ``grad_fn`` of its output, so what a node stores there can be
read from the tensor it made; the rules for batch norm and ReLU fold themselves into a layer that way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

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
    return torch.where(z == 0, 0, P / torch.where(z == 0, 1, z))


class PassThrough(Function):
    """A neuron with one input hands all its probability to it: P(i) = P(n).

    `signal` is that input. Where the value was broadcast from it, the probabilities of the copies add up.
    `compute` makes the value and may overwrite `dirty`, one of the operation's operands.
    """

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], dirty: Tensor | None, signal: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape = signal.shape
        return _value(ctx, compute, dirty)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        with quiet():
            return None, None, None if P is None else P.sum_to_size(ctx.shape)


class Contributions(Protocol):
    """What explains a neuron: the sum of its inputs' excitatory contributions, max(s z, 0).

    A function of the signals, built of differentiable torch operations, never negative, and homogeneous of
    degree one: doubling an input doubles its contribution.
    """

    def __call__(self, *signals: Tensor) -> Tensor: ...


class Excitation(Function):
    """Eq. 4 and 10: a neuron hands its probability to its inputs in proportion to their contributions.

    With Z(a) the sum of contributions, homogeneous of degree one, input i contributes a_i dZ_n/da_i to neuron n,
    hence  P_in = a * (dZ/da)^T (P / Z(a)),  the whole-layer form of Eq. 10.

    `compute` makes the value and may overwrite `dirty`; `saved` holds what the signals were before that, or None
    where the signals themselves stay as they are.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Tensor],
        dirty: Tensor | None,
        contributions: Contributions,
        saved: tuple[Tensor, ...] | None,
        *signals: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(saved or signals))
        ctx.contributions = contributions
        return _value(ctx, compute, dirty)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor | None) -> tuple[Tensor | None, ...]:
        if P is None:
            return None, None, None, None, *(None for _ in ctx.saved_tensors)
        with quiet():
            leaves = [a.detach().requires_grad_() for a in ctx.saved_tensors]
            with torch.enable_grad():
                z = ctx.contributions(*leaves)
            slopes = torch.autograd.grad(z, leaves, ratio(P, z.detach()))
            shares = [a.detach() * slope for a, slope in zip(leaves, slopes, strict=True)]
        return None, None, None, None, *shares


class Unexplained(Function):
    """Marks the value of an operation that has no rule. `refuse` raises unless ordinary gradients are allowed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, in_place: bool, site: str, refuse: Callable[[], None]) -> Tensor:
        ctx.site, ctx.refuse = site, refuse
        if in_place:
            ctx.mark_dirty(value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, P: Tensor) -> tuple[Tensor | None, ...]:
        ctx.refuse()
        return P, None, None, None


def _value(ctx: Any, compute: Callable[[], Tensor], dirty: Tensor | None) -> Tensor:
    """The operation's value; autograd must be told if an operand was overwritten with it."""
    version = None if dirty is None else dirty._version
    value = compute()
    if dirty is not None and dirty._version != version:
        ctx.mark_dirty(dirty)
    return value
