"""The building blocks of rules: pass_through(), weighted_sum() and residual_sum()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ebcli.eb import graph
from ebcli.eb.facts import (
    Source,
    ValueFacts,
    carries_signal,
    common_source,
    facts_about,
    facts_of,
    is_nonnegative,
    note,
    note_depth,
    tensors_in,
    unit_of,
)
from ebcli.eb.folding import Folded, note_layer, overwritten
from ebcli.eb.gates import gate_of, gate_of_sum
from ebcli.eb.neurons import WeightedSum
from ebcli.eb.nodes import recorded
from ebcli.eb.products import LinearMap
from ebcli.eb.registry import Call
from ebcli.eb.saved_values import keep_saved
from ebcli.eb.steps import Activation, OneInput, Rescaled, ResidualSum, Slope
from ebcli.errors import ConfigurationError

_ALIGNMENT = 64  # bytes, of memory that PyTorch allocates


def pass_through(
    call: Call,
    signal: Tensor,
    *,
    nonnegative: bool = False,
    keeps_zero: bool = False,
    gate: int | None = None,
    affine: bool | Callable[[Tensor], Tensor] = False,
) -> Tensor:
    """One input, one output: the signal gets all of each neuron's probability.

    Args:
        call: the call to answer.
        signal: the operand that carries the signal. Its shape must broadcast to the value's.
        nonnegative: the value is never negative.
        keeps_zero: zero maps to zero, so inactive neurons stay inactive.
        gate: how clearly the value is meant to be a factor, 0 to 5: in a product, the factor with the lower number is
            the signal. None: as clearly as `signal`.
        affine: the value is the signal times a constant, plus a constant, and no activation; or, if other operands
            of the call are not constant, a function from the signal to the value in which they are.

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
    if affine is False:
        return activated(call, signal, nonnegative=nonnegative, keeps_zero=keeps_zero, gate=gate)
    function, shape = partial(_repeated, call, signal) if affine is True else affine, signal.shape

    def slope(G: Tensor) -> Tensor:
        arrived: Tensor = torch.func.vjp(function, G.new_zeros(shape))[1](G)[0]
        return arrived

    return rescaled(call, signal, slope, nonnegative=nonnegative, keeps_zero=keeps_zero, gate=gate)


def activated(
    call: Call,
    signal: Tensor,
    *,
    nonnegative: bool = False,
    keeps_zero: bool = False,
    gate: int | None = None,
    is_relu: bool = False,
) -> Tensor:
    """An activation; see `pass_through`. `is_relu`: where its value is not 0, it is the signal."""
    unit = unit_of(signal)
    if unit is not signal:
        gate = gate_of(signal) if gate is None else gate
        signal, keeps_zero, is_relu = unit, False, False
    step = Activation(call.operation, signal, keeps_zero=keeps_zero, is_relu=is_relu)
    value = _one_input(call, signal, step, nonnegative=nonnegative, gate=gate)
    step.follow(value)
    return value


def rescaled(
    call: Call,
    signal: Tensor,
    slope: Slope = 1.0,
    *,
    nonnegative: bool = False,
    keeps_zero: bool = False,
    gate: int | None = None,
) -> Tensor:
    """A value c u + d, which is no activation; see `pass_through`. `slope`: c, or a function from G to c G."""
    step = Rescaled(call.operation, signal, keeps_zero=keeps_zero, slope=slope)
    return _one_input(call, signal, step, nonnegative=nonnegative, gate=gate)


def _one_input(call: Call, signal: Tensor, step: OneInput, *, nonnegative: bool, gate: int | None) -> Tensor:
    if not step.keeps_zero:
        let_feed_inactive(signal)
    gate = gate_of(signal) if gate is None else gate
    source = Source(signal, signal._version, isinstance(step, Rescaled))
    dirty = overwritten(call)
    graph.mark_routing(signal)  # a rule may rearrange its operands first
    value = recorded(call, step, (signal,), dirty)
    is_elementwise = value.shape == signal.shape and value is not signal
    note(value, ValueFacts(nonnegative, gate, source=source if is_elementwise else None))
    return value


def mixed(value: Tensor) -> Tensor:
    """Note that each element of a value depends on many of the signal's, as in a norm. Returns it."""
    note(value, replace(facts_of(value), source=None))
    return value


def unchanged(call: Call, signal: Tensor, slope: Slope = 1.0) -> Tensor:
    """The signal itself, its values in other memory, or a positive multiple: what follows can still be folded."""
    facts = facts_of(signal)
    value = rescaled(call, signal, slope, keeps_zero=True)
    layer = facts.layer and facts.layer.behind(Folded(signal.shape, slope))
    note(value, replace(facts, source=facts_of(value).source, layer=layer))
    return value


def copied(call: Call, signal: Tensor) -> Tensor:
    """A copy with all facts about the signal and a node of its own, which only the copy's readers reach."""
    value = unchanged(replace(call, func=cloned, args=(signal,), kwargs={}), signal)
    layer, step = facts_of(value).layer, value.grad_fn.step  # type: ignore[union-attr]
    if layer is not None:
        step.layer, step.trail = layer.node.step.layer, layer.trail
    return note_depth(value, [signal])


def cloned(value: Tensor) -> Tensor:
    """A copy with the same strides, gaps and alignment: matrix products of other layouts round differently.

    `Tensor.clone` makes a part of a tensor contiguous.
    """
    if value.is_meta or not value.numel():
        return value.clone()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    start = value.data_ptr() % _ALIGNMENT // value.element_size()
    if extent == value.numel() and not start:
        return value.clone()
    memory = value.new_empty(start + extent)
    memory[start:] = value.detach().as_strided((extent,), (1,))
    return value.new_empty(0).set_(memory.untyped_storage(), start, value.shape, value.stride())


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
    step = WeightedSum(call.operation, linear, signal_is_nonnegative=is_nonnegative(signal))
    graph.mark_routing(signal)
    has_weight = linear.weight is not None
    if has_weight:
        clear_classifier(signal)

    def compute() -> Any:
        if not carries_signal(signal) or not reads_once(call, signal):
            return call.compute()
        with torch.enable_grad(), keep_saved():
            leaf = signal.detach().requires_grad_()
            return step.remember(_repeated(call, signal, leaf), leaf)

    value = recorded(replace(call, func=compute, args=(), kwargs={}), step, (signal,), None, saves=True)
    step.follow(value)
    if value.grad_fn is not None and value.numel() < signal.numel() and linear.averages:
        facts_about(value.grad_fn).is_average = True
    facts = ValueFacts(linear.is_nonnegative and step.signal_is_nonnegative, gate_of_sum(signal))
    note_layer(value, facts, step, can_fold=has_weight)
    return value


def reads_once(call: Call, signal: Tensor) -> bool:
    """Whether the signal is one of a call's operands, and only one."""
    return sum(operand is signal for operand in tensors_in((call.args, call.kwargs))) == 1


def _repeated(call: Call, signal: Tensor, other: Tensor) -> Tensor:
    """The value of a call with `other` in place of the signal, and every other signal constant."""

    def replaced(operand: Any) -> Any:
        if operand is signal:
            return other
        return (
            operand.detach() if carries_signal(operand) else operand
        )  # parameters as they are: they decide on kernels

    args, kwargs = tree_map(replaced, (call.args, call.kwargs))
    value: Tensor = call.func(*args, **kwargs)
    return value


def residual_sum(call: Call, signals: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
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
        ...     return ebcli.residual_sum(call, (a, b), (1, -2))
        >>> ebcli.check_rule(difference, (torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)))
        True
    """
    if len(signals) != len(scales):
        raise ConfigurationError(f"{call.operation}: got {len(signals)} signals but {len(scales)} scales")
    common = common_source(*signals)
    if common is not None and not common[1]:
        return activated(call, common[0], gate=min(map(gate_of, signals)))  # such as x + tanh(x)
    for signal in signals:
        graph.mark_routing(signal)
    nonnegative = all(scale > 0 for scale in scales) and all(map(is_nonnegative, signals))
    source = None if common is None else Source(common[0], common[0]._version, True)
    gate, step = min(map(gate_of, signals)), ResidualSum(call.operation, signals, scales)
    value = recorded(call, step, tuple(signals), overwritten(call), saves=True)
    note(value, ValueFacts(nonnegative, gate, source=source if source and source.tensor is not value else None))
    return value


def by_parts(call: Call, function: Callable[[], Any], value: Any = None) -> Any:
    """Answer a call by the rules for the operations of an equal function, with the network's own value."""
    if value is None:
        with torch.no_grad():
            value = call.compute()
    with call.recording.answering():
        parts = function()
    if isinstance(parts, Tensor):
        return with_value(call, value, parts)
    return tuple(with_value(call, *pair) for pair in zip(value, parts, strict=True))


def with_value(call: Call, value: Tensor, signal: Tensor) -> Tensor:
    """`signal`, computed in several steps, with the network's own value, which is equal up to rounding."""
    return rescaled(replace(call, func=lambda: value, args=(), kwargs={}), signal, keeps_zero=True)


def clear_classifier(signal: Tensor) -> None:
    """A layer with weights reads `signal`, so the layers below it are not the classifier."""
    for node in graph.weighted_below([signal.grad_fn]):
        node.step.is_classifier = False


def let_feed_inactive(signal: Tensor) -> None:
    """Tell the layers that made `signal` that probability also arrives at their inactive neurons."""
    for node in graph.descend([signal.grad_fn], graph.neurons_of):
        step = graph.neurons_of(node)
        if step is not None:
            step.feeds_inactive = True
