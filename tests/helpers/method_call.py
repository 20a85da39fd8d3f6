"""Calls of methods for classes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ebcli.methods.call import MethodCall, MethodMaps, class_priors
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
    priors = partial(class_priors, torch.tensor(classes))
    return find(method).compute(MethodCall(net=net, inputs=inputs, priors=priors, layers=layers, **options))
