"""Comparisons, and elementwise choices between two operands, of which some are activations written out."""

from __future__ import annotations

from typing import Any

from ebcli.eb.facts import Source, ValueFacts, common_source, has_share, note, tensors_in
from ebcli.eb.gates import ACTIVATED, gate_of
from ebcli.eb.primitives import activated
from ebcli.eb.registry import Call, name_of, overloads, rule
from ebcli.eb.rules.routing import routed


@rule(
    *overloads("gt", "ge", "lt", "le", "eq", "ne"),
    *overloads("greater", "greater_equal", "less", "less_equal", "not_equal"),
)
def comparison(call: Call, input: Any, other: Any) -> Any:
    value = call.compute()
    signals = [operand for operand in (input, other) if has_share(operand)]
    if len(signals) == 1 and value.shape == signals[0].shape:
        note(value, ValueFacts(source=Source(signals[0], signals[0]._version, is_affine=False)))
    return value


@rule(*overloads("where", "maximum", "minimum", "fmax", "fmin", "max", "min"))
def choice(call: Call, *args: Any, **kwargs: Any) -> Any:
    """max(x, 0) and where(x > 0, x, x / 5) are activations; a choice between different signals moves values."""
    operands = tensors_in((args, kwargs))
    signals = [operand for operand in operands if has_share(operand)]
    if len(args) + len(kwargs) < 2:  # max(x) is one of its elements, and where(x) are indices
        return routed(call)
    # where(constant, x, y) and max(x, axis) only move values
    depends = has_share(operands[0]) if name_of(call.func) == "where" else len(operands) > 1
    common = common_source(*signals) if depends else None
    if common is None or any(operand.numel() > common[0].numel() for operand in operands):
        return routed(call)
    return activated(call, common[0], gate=max(ACTIVATED, gate_of(common[0])))
