"""Joint excitation: Eq. 4 for networks whose neurons are signed and whose linear layers follow one another.

Step by step, each neuron explains itself by its own inputs (Eq. 4 and 10). Between GELUs, SiLUs or hard swishes, most
values are sums of such neurons, projected, normalized and added to a residual stream, and no coordinate of them wins
or loses. There, all winners n are taken as one joint neuron with the response sum_n P(n) / u_n * u_n. It is linear in
whatever lies below, up to the next activated units, and so are its weights G:

    G = M^T G                                     below linear maps M
    P(n) = max(h_n G_n, 0), G = P(n) / u_n        at activated units h_n = f(u_n)
    P(i) = max(a_i G_i, 0) / sum_k max(a_k G_k, 0)    at the layer

The last line is Eq. 4 for the joint neuron. With one winner it is Eq. 4 itself. Attention weights, gates, and the
deviations of norms are constants, as they are step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ebcli.eb import graph
from ebcli.eb.autograd import NodeFacts, quiet, value_of
from ebcli.eb.facts import tensors_in
from ebcli.eb.kept import keep_saved
from ebcli.eb.registry import Call


class Unit(Function):
    """An activated unit h = f(u): its share P = max(h G, 0) of the joint neuron becomes the weight P / u of u.

    `operands` ends with u; `compute` returns h and may overwrite the first operand.
    """

    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Tensor], *operands: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.facts = operands[-1].shape, NodeFacts(len(operands) - 1)
        if not ctx.needs_input_grad[-1]:  # below the layer
            return value_of(ctx, compute, operands[0])
        size, sign = operands[-1].abs(), operands[-1].sign()
        h = value_of(ctx, compute, operands[0])
        # h / |u|; where u is 0, its sign stops the weight, so that this number only tells whether h is 0 too
        ctx.save_for_backward((h / size).nan_to_num_(0.0, 1.0, -1.0), sign)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        if G is None:
            return None, *[None] * (ctx.facts.skipped + 1)
        slope, sign = ctx.saved_tensors
        with quiet():
            if ctx.facts.is_above_classifier:  # the dual of a class is a unit of the classifier, not of what follows it
                weight = torch.where(slope == 0, 0, G)
            else:
                weight = (G * slope).clamp_(min=0).mul_(sign)  # torch.where takes ten times as long
            return None, *[None] * ctx.facts.skipped, weight.sum_to_size(ctx.shape)


class Sum(Function):
    """A sum of scaled operands: their weights are its weight times their scales."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[[], Tensor], scales: tuple[float, ...], skipped: int, *operands: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.scales, ctx.shapes = scales, [operand.shape for operand in operands[skipped:]]
        ctx.facts = NodeFacts(skipped)
        return value_of(ctx, compute, operands[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        with quiet():
            slopes = [
                None if G is None else (G * scale).sum_to_size(shape)
                for scale, shape in zip(ctx.scales, ctx.shapes, strict=True)
            ]
        return None, None, None, *[None] * ctx.facts.skipped, *slopes


def affine(call: Call, signal: Tensor, compute: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The value of a call that is affine in the signal, with the slope that it has if all else is constant.

    Args:
        call: the call.
        signal: the operand that carries the signal.
        compute: a function from the signal to the value in which all else is constant; None if the call itself is
            one, once its other operands are detached.
    """
    before = [] if signal.grad_fn is None else [signal.grad_fn]
    with keep_saved():
        if compute is None:
            value = _repeated(call, signal)
        else:
            slope = compute(signal)
            value = call.compute().detach() + (slope - slope.detach())  # to the bit, because the difference is 0
    graph.mark_routing(value, before)
    return value


def reads_once(call: Call, signal: Tensor) -> bool:
    """Whether the signal is one of a call's operands, and only one."""
    return sum(operand is signal for operand in tensors_in((call.args, call.kwargs))) == 1


def _repeated(call: Call, signal: Tensor) -> Tensor:
    def constant(operand: Any) -> Any:
        if isinstance(operand, (list, tuple)):
            return type(operand)(map(constant, operand))
        return operand.detach() if isinstance(operand, Tensor) and operand is not signal else operand

    args = [constant(operand) for operand in call.args]
    value: Tensor = call.func(*args, **{name: constant(operand) for name, operand in call.kwargs.items()})
    return value
