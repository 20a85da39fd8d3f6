"""What rules are written with: pass_through(), weighted_sum() and shared()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from ebcli.eb import graph
from ebcli.eb.functions import Excitation, PassThrough
from ebcli.eb.registry import Call
from ebcli.eb.weighted import LinearMap, SharedSum, WeightedSum


def carries_signal(value: Any) -> bool:
    """Whether probability can come down through a tensor, or any tensor in a list or tuple.

    The signal is what requires grad but is no parameter; what is computed from parameters alone does not count.
    """
    if isinstance(value, Tensor):
        return value.requires_grad and not isinstance(value, Parameter)
    return isinstance(value, (list, tuple)) and any(carries_signal(item) for item in value)


def pass_through(
    call: Call, signal: Tensor, *, nonnegative: bool = False, keeps_zero: bool = False, gate: int = 0
) -> Tensor:
    """One input, one output: the signal gets all of each neuron's probability.

    Args:
        call: the call to answer.
        signal: the operand that carries the signal, of any shape that broadcasts to the value's.
        nonnegative: no value is ever below zero.
        keeps_zero: a zero stays zero, so that a silent neuron stays silent.
        gate: how clearly the values are made to be multiplied with; of two factors the lesser one is the signal.
    """
    if not keeps_zero:
        _let_reach_silent(signal)
    dirty = overwritten(call)
    value = PassThrough.apply(call.compute, dirty, signal)
    node: Any = value.grad_fn
    node.nonnegative, node.keeps_zero, node.gate = nonnegative, keeps_zero, gate
    return value


def weighted_sum(call: Call, signal: Tensor, linear: LinearMap) -> Any:
    """A layer y = W a + b: probability goes to the inputs by contributions of the response's sign (Eq. 4, 10).

    Args:
        call: the call to answer.
        signal: a, of any shape.
        linear: W; the bias takes no share and is not named.
    """
    if carries_signal(linear.weight):
        return NotImplemented  # the rule is for fixed weights
    contributions = WeightedSum(linear, signal_is_nonnegative=graph.is_nonnegative(signal))
    if linear.weight is not None:
        _cover(signal)
    value = Excitation.apply(call.compute, None, contributions, None, signal)
    contributions.follow(value, call.site)
    if linear.weight is None:
        value.grad_fn.nonnegative = contributions.signal_is_nonnegative
    return value


def shared(call: Call, signals: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    """A sum of signals, each times its scale: shared by their contributions of the result's sign."""
    dirty = overwritten(call)
    saved = None if dirty is None else tuple(s.detach().clone() if s is dirty else s for s in signals)
    nonnegative = all(scale > 0 for scale in scales) and all(graph.is_nonnegative(s) for s in signals)
    value = Excitation.apply(call.compute, dirty, SharedSum(*scales), saved, *signals)
    value.grad_fn.nonnegative = nonnegative
    return value


def folded(call: Call, signal: Tensor, *, gamma: Tensor | None = None, rectified: bool = False) -> Tensor | None:
    """Batch norm's scale gamma (C,), or a ReLU, folded into the layer that made `signal`.

    Returns None where something else made it, so that there is nothing to fold into.
    """
    node: Any = signal.grad_fn
    if not graph.is_made_by(node, Excitation) or not isinstance(node.contributions, WeightedSum) or signal._is_view():
        return None
    before = node.contributions
    linear = before.linear
    if before.rectified or linear.weight is None:
        return None
    if gamma is not None:
        if linear.per_output is None or linear.orientation is not None:
            return None
        linear = linear.scaled(gamma)
    contributions = WeightedSum(linear, signal_is_nonnegative=before.signal_is_nonnegative, rectified=rectified)
    contributions.sign = before.sign
    # a folded layer's own node is left out of the way down, so its response may be overwritten
    dirty = signal if call.is_in_place else None
    value = Excitation.apply(call.compute, dirty, contributions, None, *node.saved_tensors)
    contributions.follow(value, call.site)
    value.grad_fn.nonnegative = rectified
    return value


def overwritten(call: Call) -> Tensor | None:
    """The operand that the call may overwrite, or None; the layer that made it keeps the signs of what it was."""
    if not call.is_in_place:
        return None
    operand = call.args[0] if call.args else call.kwargs["input"]
    contributions = getattr(graph.origin(operand), "contributions", None)
    if isinstance(contributions, WeightedSum):
        contributions.freeze()
    return operand


def _cover(signal: Tensor) -> None:
    """A layer reads `signal`: the layers below are no longer the last ones with weights before the output."""
    for node in graph.weighted_below([signal.grad_fn]):
        node.contributions.sign = None


def _let_reach_silent(signal: Tensor) -> None:
    """Probability will arrive even where `signal` is zero: rectified layers below must look at their response."""
    for node in graph.descend([signal.grad_fn], lambda n: graph.is_made_by(n, Excitation)):
        contributions = getattr(node, "contributions", None)
        if isinstance(contributions, WeightedSum) and contributions.rectified:
            contributions.reaches_silent = True
