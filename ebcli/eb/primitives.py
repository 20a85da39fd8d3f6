"""The building blocks of rules: pass_through(), weighted_sum() and shared()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ebcli.eb import graph, joint
from ebcli.eb.autograd import Excitation, NodeFacts, PassThrough
from ebcli.eb.contributions import LinearMap, WeightedSum
from ebcli.eb.facts import (
    MIXED,
    SWITCH,
    Layer,
    ValueFacts,
    carries_signal,
    facts_of,
    gate_of,
    is_nonnegative,
    is_read_once,
    note,
    note_depth,
    root_of,
)
from ebcli.eb.kept import keep_saved, preserve
from ebcli.eb.registry import RULES, Call
from ebcli.eb.residual import SharedSum

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
    if not keeps_zero:
        let_feed_inactive(signal)
    facts = ValueFacts(nonnegative, gate_of(signal) if gate is None else gate, root=root_of(signal))
    dirty = overwritten(call)
    graph.mark_routing(signal)  # a rule may rearrange its operands first
    is_signed = not (affine or nonnegative)
    if not call.joint:
        value = PassThrough.apply(call.compute, *_skipped(dirty, signal), signal)
    elif affine:
        value = joint.affine(call, signal, None if affine is True else affine)
    else:
        value = joint.Unit.apply(call.compute, *_skipped(dirty, signal), signal)
    if value.shape != signal.shape:
        facts = replace(facts, root=None)
    _note(value, facts, keeps_zero=keeps_zero, is_signed=is_signed)
    return value


def copied(signal: Tensor) -> Tensor:
    """A copy with all facts about the signal and a node of its own, which only the copy's readers reach."""
    facts = facts_of(signal)
    value = PassThrough.apply(lambda: cloned(signal), signal)
    trail: tuple[Any, ...] = ()
    if facts.layer is not None:
        trail = (*facts.layer.trail, object())
        facts = replace(facts, layer=replace(facts.layer, trail=trail))
    _note(value, facts, trail=trail)
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


def unchanged(call: Call, signal: Tensor) -> Tensor:
    """The signal itself, its values in other memory, or a positive multiple: every fact about it stays."""
    root_of(signal)  # notes it, so that x * sigmoid(1.702 * x) is known as an activation
    facts = facts_of(signal)
    dirty = overwritten(call)
    if call.joint:
        value = joint.affine(call, signal)
        note(value, facts)
        return value
    value = PassThrough.apply(call.compute, *_skipped(dirty, signal), signal)
    _note(value, facts, keeps_zero=True)
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
    contributions = WeightedSum(linear, signal_is_nonnegative=is_nonnegative(signal))
    graph.mark_routing(signal)
    if call.joint:
        value = joint.affine(call, signal, None if joint.reads_once(call, signal) else linear.exact)
        if linear.weight is not None:
            graph.mark_weighted(value)
        elif linear.is_nonnegative:
            graph.mark_average(value)
        note(value, ValueFacts(linear.is_nonnegative and is_nonnegative(signal), _gate_of_sum(signal)))
        return value
    if linear.weight is not None:
        clear_classifier_sign(signal)
    with keep_saved():
        value = Excitation.apply(call.compute, contributions, None, 0, signal)
    contributions.follow(value, call.site)
    if linear.is_nonnegative:
        graph.mark_average(value)
    facts = ValueFacts(linear.is_nonnegative and contributions.signal_is_nonnegative, _gate_of_sum(signal))
    _note_layer(value, facts, (object(),), site=call.site, can_fold=linear.weight is not None)
    return value


def _gate_of_sum(signal: Tensor) -> int:
    """How clearly a weighted sum is meant to be a factor."""
    return MIXED if gate_of(signal) in (MIXED, SWITCH) else 0


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
    for signal in signals:
        graph.mark_routing(signal)
    roots = {id(root_of(signal)) for signal in signals}
    nonnegative = all(scale > 0 for scale in scales) and all(map(is_nonnegative, signals))
    facts = ValueFacts(nonnegative, min(map(gate_of, signals)), root=root_of(signals[0]) if len(roots) == 1 else None)
    dirty = overwritten(call)
    saved = tuple(a.detach().clone() if a is dirty else a for a in signals)
    skipped = _skipped(dirty, signals[0])
    if call.joint:
        value = joint.Sum.apply(call.compute, tuple(scales), len(skipped), *skipped, *signals)
    else:
        with keep_saved():
            value = Excitation.apply(call.compute, SharedSum(*scales), saved, len(skipped), *skipped, *signals)
    _note(value, facts, site=call.site)
    return value


def by_rule(call: Call, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Answer one step of `call` by the rule for `func`."""
    return RULES[func](replace(call, func=func, args=args, kwargs=kwargs), *args, **kwargs)


def with_value(call: Call, value: Tensor, signal: Tensor, *, keeps_zero: bool = True) -> Tensor:
    """`signal`, computed in several steps, with the network's own value, which is equal up to rounding."""
    moved = replace(call, func=lambda: value, args=(), kwargs={})
    return pass_through(moved, signal, keeps_zero=keeps_zero, affine=lambda a: a)


def folded(
    call: Call,
    signal: Tensor,
    *,
    scale: Tensor | float = 1.0,
    channels: Tensor | None = None,
    rectified: bool = False,
    gate: int | None = None,
) -> Tensor | None:
    """Fold a scale and a shift, or a ReLU, into the layer that made `signal`.

    Args:
        call: the call to answer.
        signal: the layer's output, possibly rearranged.
        scale: the factor of `signal`, a number or a tensor that broadcasts to it; only its sign matters.
        channels: the factors (C,) along axis 1, instead of `scale`.
        rectified: the operation is a ReLU.
        gate: see `pass_through`.

    Returns:
        The value; None if no layer with weights made `signal`.
    """
    layer = facts_of(signal).layer
    if layer is None or call.joint or (call.is_in_place and signal._is_view()):
        return None
    node, before = layer.node, layer.node.facts.contributions
    moves = layer.moves_since(node.facts.trail[-1])
    linear, turn = before.linear, before.turn
    if turn is not None:
        turn = turn.expand(before.shape)  # the layout in which it was made
    for move in moves:
        linear, turn = linear.moved(move), None if turn is None else move(turn)
    if channels is not None and linear.per_output is not None:
        linear = linear.scaled(channels)
    elif channels is not None:
        turn = _turned(turn, channels.detach().sign().reshape(1, -1, *(1 for _ in signal.shape[2:])))
    elif isinstance(scale, Tensor) or scale < 0:
        turn = _turned(turn, torch.as_tensor(scale, dtype=signal.dtype, device=signal.device).detach().sign())
    contributions = WeightedSum(linear, signal_is_nonnegative=before.signal_is_nonnegative, rectified=rectified)
    contributions.sign, contributions.turn = before.sign, turn
    gate = gate_of(signal) if gate is None else gate
    if call.is_in_place and layer.trail == node.facts.trail and is_read_once(signal):
        before.follow(None)  # no probability passes through the layer's own node, so its response may be overwritten
    dirty = overwritten(call)
    skipped = [] if dirty is None else [dirty]
    with keep_saved():
        value = Excitation.apply(call.compute, contributions, None, len(skipped), *skipped, *node.saved_tensors)
    contributions.follow(value, node.facts.site)
    trail = layer.trail
    if value.shape != signal.shape:  # broadcast by a bias or a scale
        copies = partial(torch.broadcast_to, size=value.shape)
        contributions.linear, trail = linear.moved(copies), (*trail, copies)
    facts = ValueFacts(rectified, gate, root=None)
    _note_layer(value, facts, (*trail, object()), site=node.facts.site, can_fold=not rectified)
    return value


def _turned(turn: Tensor | None, sign: Tensor) -> Tensor:
    return sign if turn is None else turn * sign


def overwritten(call: Call) -> Tensor | None:
    """The operand that the call may overwrite, or None. Preserves what the backward pass needs of it."""
    if not call.is_in_place:
        return None
    operand = call.args[0] if call.args else call.kwargs["input"]
    preserve(operand)
    return operand


def _skipped(dirty: Tensor | None, signal: Tensor) -> list[Tensor]:
    """The operand about to be overwritten, which must come first, unless it is the first signal anyway."""
    return [] if dirty is None or dirty is signal else [dirty]


def _note(value: Tensor, facts: ValueFacts, **node_facts: Any) -> NodeFacts | None:
    """Store facts about a value and about the node that made it, which is returned."""
    note(value, facts)
    known = graph.facts(value.grad_fn)
    if known is not None:  # None without a signal, and after an in-place change of a view
        for name, fact in node_facts.items():
            setattr(known, name, fact)
    return known


def _note_layer(value: Tensor, facts: ValueFacts, trail: tuple[Any, ...], *, site: str, can_fold: bool) -> None:
    if _note(value, facts, site=site, trail=trail) is not None and can_fold:
        note(value, replace(facts, layer=Layer(value.grad_fn, trail)))


def clear_classifier_sign(signal: Tensor) -> None:
    """A layer reads `signal`, so the layers below it are not the classifier."""
    for node in graph.weighted_below([signal.grad_fn]):
        node.facts.contributions.sign = None


def let_feed_inactive(signal: Tensor) -> None:
    """Tell the layers that made `signal` that probability also arrives at their inactive neurons."""
    for node in graph.descend([signal.grad_fn], lambda node: graph.contributions_of(node) is not None):
        contributions = graph.contributions_of(node)
        if contributions is not None:
            contributions.feeds_inactive = True
