"""Calls of methods for classes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.methods.call import MethodCall, MethodMaps
from ebcli.methods.table import find


def maps_of(
    method: str,
    net: nn.Module,
    inputs: Any,
    classes: Sequence[Sequence[int]],
    layers: Sequence[str | None] = (None,),
    **options: Any,
) -> Sequence[MethodMaps]:
    """The maps of a method by its name, for the classes (B, K)."""

    def priors(output: Tensor) -> Tensor:
        return F.one_hot(torch.tensor(classes), output.shape[1]).to(output)

    return find(method).compute(MethodCall(net=net, inputs=inputs, priors=priors, layers=layers, **options))
