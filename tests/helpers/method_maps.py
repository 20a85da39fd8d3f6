"""Maps of methods by their names."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.methods.call import MethodCall, MethodMaps, class_priors
from ebcli.methods.chance import CHANCE_METHODS
from ebcli.methods.table import find_method


def maps_of(
    method: str,
    net: Module,
    inputs: Any,
    classes: Sequence[Sequence[int]] | Tensor,
    layers: Sequence[str | None] = (None,),
    **options: Any,
) -> Sequence[MethodMaps]:
    """The maps of a method for the classes (B, K), layer by layer."""
    priors = partial(class_priors, torch.as_tensor(classes))
    entry = CHANCE_METHODS.get(method) or find_method(method)
    return entry.compute(MethodCall(net=net, inputs=inputs, priors=priors, layers=layers, **options))


def method_maps(method: str, net: Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """The maps (K, h, w) of classes (1, K) at a layer."""
    (result,) = maps_of(method, net, inputs, classes, [layer])
    return result.maps[0]
