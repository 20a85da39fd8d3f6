"""What rules are written with: pass_through(), weighted_sum() and shared()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from ebcli.eb import graph
from ebcli.eb.autograd import Excitation, PassThrough
from ebcli.eb.contributions import LinearMap, SharedSum, WeightedSum
from ebcli.eb.registry import RULES, Call


def carries_signal(value: Any) -> bool:
    """Whether probability can come down through a tensor, or any tensor in a list or tuple.

    The signal is what requires grad but is no parameter; what is computed from parameters alone does not count.
    """
    if isinstance(value, Tensor):
        # a view of a parameter says that it requires grad even if it was made where grad is off
        return value.requires_grad and not isinstance(value, Parameter) and not isinstance(value._base, Parameter)
    return isinstance(value, (list, tuple)) and any(carries_signal(item) for item in value)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, which may be a tensor, or a tuple, list or dict of values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def bypasses(value: Any) -> bool:
    """Whether a tensor, or one in a list or tuple, comes from the network's input other than through the layer.

    It carries no signal, because its share of probability does not come down to the layer, but it has a share.
    """
    if isinstance(value, Tensor):
        return hasattr(value, _BYPASS)
    return isinstance(value, (list, tuple)) and any(map(bypasses, value))


def mark_bypass(value: Any) -> Any:
    """Note on every tensor in a value that carries no signal that it comes from the input; returns the value."""
    for tensor in tensors_in(value):
        if not carries_signal(tensor):
            setattr(tensor, _BYPASS, True)
    return value


_BYPASS = "_from_the_input_of_an_excited_network"


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

    Examples:
        >>> import ebcli, torch
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a: (a,))
        ... def squared(a):
        ...     return a * a
        >>> @ebcli.rule(squared)
        ... def squared_rule(call, a):
        ...     return ebcli.pass_through(call, a, nonnegative=True, keeps_zero=True)
        >>> ebcli.check_rule(squared, torch.randn(2, 3, requires_grad=True))
        True
    """
    if not keeps_zero:
        _let_feed_inactive(signal)
    dirty = overwritten(call)
    value = PassThrough.apply(call.compute, *_others(dirty, signal), signal)
    _note(value, nonnegative=nonnegative, gate=gate, keeps_zero=keeps_zero)
    return value


def weighted_sum(call: Call, signal: Tensor, linear: LinearMap) -> Any:
    """A layer y = W a + b: probability goes to the inputs by contributions of the response's sign (Eq. 4, 10).

    Args:
        call: the call to answer.
        signal: a, of any shape.
        linear: W; the bias takes no share and is not named.

    Examples:
        >>> import ebcli, torch
        >>> from torch.nn import functional as F
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a, weight: (a, weight))
        ... def scores(a, weight):
        ...     return a @ weight.T
        >>> @ebcli.rule(scores)
        ... def scores_rule(call, a, weight):
        ...     return ebcli.weighted_sum(call, a, ebcli.LinearMap(F.linear, weight))
        >>> ebcli.check_rule(scores, (torch.randn(2, 4, requires_grad=True), torch.randn(3, 4)))
        True
    """
    if carries_signal(linear.weight):
        return NotImplemented  # the rule is for fixed weights
    contributions = WeightedSum(linear, signal_is_nonnegative=graph.is_nonnegative(signal))
    if linear.weight is not None:
        clear_classifier_sign(signal)
    value = Excitation.apply(call.compute, contributions, None, 0, signal)
    contributions.follow(value, call.site)
    _note(value, nonnegative=linear.weight is None and contributions.signal_is_nonnegative, site=call.site)
    return value


def shared(call: Call, signals: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    """A sum of signals, each times its scale: shared by their contributions of the result's sign.

    Args:
        call: the call to answer.
        signals: the operands that carry the signal; what comes from parameters and constants alone is a bias.
        scales: what each of them is multiplied by.

    Raises:
        ValueError: there are not as many scales as signals.

    Examples:
        >>> import ebcli, torch
        >>> from torch.overrides import wrap_torch_function
        >>> @wrap_torch_function(lambda a, b: (a, b))
        ... def difference(a, b):
        ...     return a - 2 * b
        >>> @ebcli.rule(difference)
        ... def difference_rule(call, a, b):
        ...     return ebcli.shared(call, (a, b), (1, -2))
        >>> ebcli.check_rule(difference, (torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)))
        True
    """
    if len(signals) != len(scales):
        raise ValueError(f"{call.site}: there are {len(signals)} signals and {len(scales)} scales")
    dirty = overwritten(call)
    # views are kept by value: what is written to their base later (y[:, 1:] = y[:, 1:] + z) must not reach them
    saved = tuple(a.detach().clone() if a is dirty or a._is_view() else a for a in signals)
    nonnegative = all(scale > 0 for scale in scales) and all(graph.is_nonnegative(s) for s in signals)
    others = _others(dirty, signals[0])
    value = Excitation.apply(call.compute, SharedSum(*scales), saved, len(others), *others, *signals)
    _note(value, nonnegative=nonnegative, site=call.site)
    return value


def by_rule(call: Call, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Answer a part of `call` that is itself a call of `func`, by func's own rule."""
    return RULES[func](Call(func, args, kwargs, call.site), *args, **kwargs)


def folded(
    call: Call, signal: Tensor, *, gamma: Tensor | None = None, rectified: bool = False, gate: int = 0
) -> Tensor | None:
    """Batch norm's scale gamma (C,), or a ReLU, folded into the layer that made `signal`.

    Returns None where something else made it, so that there is nothing to fold into.
    """
    node: Any = signal.grad_fn
    if not graph.is_made_by(node, Excitation) or not isinstance(node.contributions, WeightedSum) or signal._is_view():
        return None
    before = node.contributions
    linear = before.linear
    if before.rectified or before.is_turned or linear.weight is None:
        return None
    turned = gamma is not None and linear.per_output is None
    if gamma is not None and not turned:
        if linear.orientation is not None:
            return None
        linear = linear.scaled(gamma)
    contributions = WeightedSum(linear, signal_is_nonnegative=before.signal_is_nonnegative, rectified=rectified)
    contributions.sign = before.sign
    # a folded layer's own node is left out of the way down, so its response may be overwritten
    others = [signal] if call.is_in_place else []
    value = Excitation.apply(call.compute, contributions, None, len(others), *others, *node.saved_tensors)
    contributions.is_turned, site = turned, node.site
    if turned and gamma is not None:  # gamma belongs to another axis than the outputs: it turns their responses
        sign = gamma.detach().sign().reshape(1, -1, *(1 for _ in value.shape[2:]))
        contributions.follow(value.detach() * sign, site)
    else:
        contributions.follow(value, site)
    if not hasattr(node, "lineage"):
        node.lineage = (object(),)
    # no reference to the node itself, which would keep its response in memory
    _note(value, nonnegative=rectified, gate=gate, site=site, lineage=(*node.lineage, object()))
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


def _others(dirty: Tensor | None, signal: Tensor) -> list[Tensor]:
    """The operand about to be overwritten, which autograd wants first, unless it is the first signal anyway."""
    return [] if dirty is None or dirty is signal else [dirty]


def _note(value: Tensor, **facts: Any) -> None:
    """Write what is known of a value on the node that made it."""
    node = value.grad_fn
    if graph.is_made_by(node, PassThrough) or graph.is_made_by(node, Excitation):  # else a view changed in place
        for name, fact in facts.items():
            setattr(node, name, fact)


def clear_classifier_sign(signal: Tensor) -> None:
    """A layer reads `signal`: the layers below are no longer the last ones with weights before the output."""
    for node in graph.weighted_below([signal.grad_fn]):
        node.contributions.sign = None


def _let_feed_inactive(signal: Tensor) -> None:
    """Probability will arrive even where `signal` is zero: what made it must look at more than active neurons."""
    for node in graph.descend([signal.grad_fn], lambda n: graph.is_made_by(n, Excitation)):
        if graph.is_made_by(node, Excitation):
            node.contributions.feeds_inactive = True
