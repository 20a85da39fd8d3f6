"""The building blocks of rules: pass_through(), weighted_sum() and shared()."""

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
    """Whether a tensor, or any tensor in a list or tuple, carries the signal.

    The signal is every tensor that requires grad and is not a parameter or computed from parameters only.
    """
    if isinstance(value, Tensor):
        # a view of a parameter requires grad even if it was made under no_grad
        return value.requires_grad and not isinstance(value, Parameter) and not isinstance(value._base, Parameter)
    return isinstance(value, (list, tuple)) and any(carries_signal(item) for item in value)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a tensor, or in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def bypasses(value: Any) -> bool:
    """Whether a tensor, or any in a list or tuple, depends on the network's input but not on the layer.

    Such a tensor carries no signal, but it takes its share of probability, which bypasses the layer.
    """
    if isinstance(value, Tensor):
        return hasattr(value, _BYPASS)
    return isinstance(value, (list, tuple)) and any(map(bypasses, value))


def mark_bypass(value: Any) -> Any:
    """Mark every tensor in a value that carries no signal as dependent on the input. Returns the value."""
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
        signal: the operand that carries the signal. Its shape must broadcast to the value's.
        nonnegative: the value is never negative.
        keeps_zero: zero maps to zero, so inactive neurons stay inactive.
        gate: how clearly the value is meant to be a factor: in a product, the factor with the lower number is the
            signal.

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
    value = PassThrough.apply(call.compute, *_skipped(dirty, signal), signal)
    _note(value, nonnegative=nonnegative, gate=gate, keeps_zero=keeps_zero)
    return value


def weighted_sum(call: Call, signal: Tensor, linear: LinearMap) -> Any:
    """A layer y = W a + b: splits probability by the contributions with the sign of the response (Eq. 4, 10).

    Args:
        call: the call to answer.
        signal: a, of any shape.
        linear: W. The bias takes no share, so it is not passed.

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
    """A sum of scaled signals: splits probability by the contributions with the sign of the result.

    Args:
        call: the call to answer.
        signals: the operands that carry the signal; parameters and constants are biases.
        scales: the factor of each signal.

    Raises:
        ValueError: the numbers of signals and scales differ.

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
        raise ValueError(f"{call.site}: got {len(signals)} signals but {len(scales)} scales")
    dirty = overwritten(call)
    # copies of views, so that later writes to their base (y[:, 1:] = y[:, 1:] + z) do not change them
    saved = tuple(a.detach().clone() if a is dirty or a._is_view() else a for a in signals)
    nonnegative = all(scale > 0 for scale in scales) and all(graph.is_nonnegative(s) for s in signals)
    skipped = _skipped(dirty, signals[0])
    value = Excitation.apply(call.compute, SharedSum(*scales), saved, len(skipped), *skipped, *signals)
    _note(value, nonnegative=nonnegative, site=call.site)
    return value


def by_rule(call: Call, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Answer one step of `call` by the rule for `func`."""
    return RULES[func](Call(func, args, kwargs, call.site), *args, **kwargs)


def folded(
    call: Call, signal: Tensor, *, gamma: Tensor | None = None, rectified: bool = False, gate: int = 0
) -> Tensor | None:
    """Fold batch norm's scale gamma (C,), or a ReLU, into the layer whose output `signal` is.

    Returns None if `signal` is not the output of a layer with weights.
    """
    node: Any = signal.grad_fn
    before = graph.contributions_of(node)
    if not isinstance(before, WeightedSum) or signal._is_view():
        return None
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
    # no probability passes through the layer's own node anymore, so its response may be overwritten
    skipped = [signal] if call.is_in_place else []
    value = Excitation.apply(call.compute, contributions, None, len(skipped), *skipped, *node.saved_tensors)
    contributions.is_turned, site = turned, node.facts.site
    if turned and gamma is not None:  # gamma scales another axis than the layer's outputs, so it flips responses
        sign = gamma.detach().sign().reshape(1, -1, *(1 for _ in value.shape[2:]))
        contributions.follow(value.detach() * sign, site)
    else:
        contributions.follow(value, site)
    node.facts.lineage = node.facts.lineage or (object(),)
    # objects, because references to nodes would keep their responses in memory
    _note(value, nonnegative=rectified, gate=gate, site=site, lineage=(*node.facts.lineage, object()))
    return value


def overwritten(call: Call) -> Tensor | None:
    """The operand that the call may overwrite, or None. The layer that made it saves the signs of its response."""
    if not call.is_in_place:
        return None
    operand = call.args[0] if call.args else call.kwargs["input"]
    contributions = graph.contributions_of(graph.origin(operand))
    if isinstance(contributions, WeightedSum):
        contributions.freeze()
    return operand


def _skipped(dirty: Tensor | None, signal: Tensor) -> list[Tensor]:
    """The operand about to be overwritten, which must come first, unless it is the first signal anyway."""
    return [] if dirty is None or dirty is signal else [dirty]


def _note(value: Tensor, **facts: Any) -> None:
    """Store facts about a value on the node that made it."""
    known = graph.facts(value.grad_fn)
    if known is not None:  # None after an in-place change of a view
        for name, fact in facts.items():
            setattr(known, name, fact)


def clear_classifier_sign(signal: Tensor) -> None:
    """A layer reads `signal`, so the layers below it are not the classifier."""
    for node in graph.weighted_below([signal.grad_fn]):
        node.facts.contributions.sign = None


def _let_feed_inactive(signal: Tensor) -> None:
    """Tell the layers that made `signal` that probability also arrives at their inactive neurons."""
    for node in graph.descend([signal.grad_fn], lambda node: graph.contributions_of(node) is not None):
        contributions = graph.contributions_of(node)
        if contributions is not None:
            contributions.feeds_inactive = True
