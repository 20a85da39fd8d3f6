"""Normalization: batch norm is folded into the layer before it; all others pass probability through."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ebcli.eb.primitives import folded, pass_through
from ebcli.eb.registry import Call, overloads, rule


@rule(*overloads("batch_norm"))
def batch_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    # torch.batch_norm has (weight, bias) where F.batch_norm has (running_mean, running_var)
    gamma = running_mean if _is_native(call) else weight
    value = folded(call, input, gamma=gamma) if gamma is not None else folded(call, input)
    return pass_through(call, input) if value is None else value


def _is_native(call: Call) -> bool:
    import torch

    return call.func is torch.batch_norm


# the paper's rule for local response normalization, which applies to every norm that rescales units by a common factor
@rule(*overloads("local_response_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize"))
def norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input)
