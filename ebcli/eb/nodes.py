"""The nodes that the mode makes: every operation on the signal's path is one, and answers for both rules.

`ctx` in a ``torch.autograd.Function`` *is* the ``grad_fn`` of its output. In the backward pass, what arrives there is a
probability P (step by step) or the weight G of the joint neuron (jointly): the explanation that runs the backward pass
decides, and asks the node's `Step`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ebcli.eb.recording import Step
from ebcli.eb.registry import Call
from ebcli.eb.saved_values import keep_saved

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


class loud(quiet):  # noqa: N801
    """Show the operations of a rule to the mode."""

    __slots__ = ()

    def __enter__(self) -> None:
        super().__enter__()
        _thread.quiet = False


class Recorded(Function):
    """The node of a step. `operands` ends with its signals; the first one may be overwritten by `compute`.

    If `saved` is None, the step needs no signals in the backward pass; otherwise it is what the signals were before.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Tensor],
        step: Step,
        saved: tuple[Tensor, ...] | None,
        skipped: int,
        *operands: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.step, ctx.skipped = step, skipped
        if saved is not None:
            ctx.save_for_backward(*saved)
        operand = operands[0]
        version = operand._version
        value = compute()
        if operand._version != version:
            ctx.mark_dirty(operand)
            return value
        # an operand returned unchanged (dropout in evaluation mode) would become a view that must not be overwritten
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arrived: Tensor | None) -> tuple[Tensor | None, ...]:
        rest = [None] * (4 + ctx.skipped)
        if arrived is None:
            return *rest, *[None] * (len(ctx.needs_input_grad) - len(rest))
        with quiet():
            return *rest, *ctx.step.recording.walk.answer(ctx.step, arrived, ctx.saved_tensors)


def recorded(
    call: Call, step: Step, signals: tuple[Tensor, ...], dirty: Tensor | None, *, saves: bool = False
) -> Tensor:
    """The value of an operation, with a node that answers for it.

    Args:
        call: the operation, which may overwrite `dirty`.
        step: the answers.
        signals: the operands that carry the signal.
        dirty: the operand about to be overwritten, or None.
        saves: whether the answers need the signals.
    """
    step.recording = call.recording
    operands = signals if dirty is None or dirty is signals[0] else (dirty, *signals)
    skipped = len(operands) - len(signals)
    if not (torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)):
        value: Tensor = call.compute()
        return value if value is dirty else value.detach()
    if not saves:
        return Recorded.apply(call.compute, step, None, skipped, *operands)
    # an operand about to be overwritten cannot be saved, but a copy can
    saved = signals if dirty is None else tuple(a.detach().clone() if a is dirty else a for a in signals)
    with keep_saved():
        return Recorded.apply(call.compute, step, saved, skipped, *operands)
