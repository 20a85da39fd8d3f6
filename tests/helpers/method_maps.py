"""Maps of a method by its name."""

from functools import partial

from torch import Tensor
from torch.nn import Module

from ebcli.methods.call import MethodCall, class_priors
from ebcli.methods.chance import METHODS
from ebcli.methods.table import find


def method_maps(name: str, net: Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """The maps (K, h, w) of classes (1, K) at a layer."""
    method = METHODS.get(name) or find(name)
    call = MethodCall(net=net, inputs=inputs, priors=partial(class_priors, classes), layers=[layer])
    (result,) = method.compute(call)
    return result.maps[0]
