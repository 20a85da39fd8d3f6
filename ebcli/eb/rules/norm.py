"""Normalization: batch norm is folded into the layer before it; all others pass probability through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebcli.eb.facts import is_nonnegative
from ebcli.eb.primitives import folded, pass_through
from ebcli.eb.registry import Call, overloads, rule, spelled


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
    value = folded(call, input, channels=gamma)
    return pass_through(call, input, gate=0) if value is None else value


def _is_native(call: Call) -> bool:
    return torch.batch_norm in spelled(call.func)


# the paper's rule for local response normalization, which applies to every norm that rescales units by a common factor
@rule(*overloads("local_response_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"))
def norm(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, gate=0)


@rule(*overloads("normalize"))
def normalized(call: Call, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return pass_through(call, input, keeps_zero=True, nonnegative=is_nonnegative(input))
