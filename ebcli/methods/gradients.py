"""Methods of one layer's output and the gradient of the score with respect to it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ebcli.methods.call import LayerGradients, MethodCall, MethodMaps


def gradient(call: MethodCall) -> list[MethodMaps]:
    """Absolute gradient, summed over channels (Simonyan et al., 2014, take the maximum)."""
    return [layer.maps_of(layer.gradients.abs()) for layer in call.layers_with_gradients()]


def gradient_x_input(call: MethodCall) -> list[MethodMaps]:
    """Gradient times the layer's output, or times the pixels (Shrikumar et al., 2016)."""
    return [
        layer.maps_of(layer.gradients * layer.activation[:, None]) for layer in call.layers_with_gradients()
    ]


def grad_cam(call: MethodCall) -> list[MethodMaps]:
    """Channels weighted by their mean gradient over the cells (Selvaraju et al., ICCV 2017, Equations 1 and 2)."""
    return _cam(call, _mean_over_cells)


def hires_cam(call: MethodCall) -> list[MethodMaps]:
    """Channels weighted by their gradient at each cell (Draelos and Carin, 2020, Equation 3)."""
    return _cam(call, lambda layer: layer.gradients)


def layer_cam(call: MethodCall) -> list[MethodMaps]:
    """Channels weighted by their positive gradient at each cell (Jiang et al., IEEE TIP 2021, Equations 5 and 6)."""
    return _cam(call, lambda layer: F.relu(layer.gradients))


def _cam(call: MethodCall, weights: Callable[[LayerGradients], Tensor]) -> list[MethodMaps]:
    """The positive part of the weighted sum of channels."""
    maps = []
    for layer in call.layers_with_gradients():
        relevance = weights(layer) * layer.activation[:, None]
        maps.append(layer.maps_of(relevance, positive=True))
    return maps


def _mean_over_cells(layer: LayerGradients) -> Tensor:
    """The gradients (B, K, ...), each averaged over the cells; tokens that are no cells are left out."""
    layout = layer.layout
    axes = [axis + 1 for axis in layout.axes]  # after the classes
    gradients = layer.gradients
    if layout.tokens is not None:
        cells = torch.tensor(layout.tokens, device=gradients.device)
        gradients = gradients.index_select(axes[0], cells)
    return gradients.mean(axes, keepdim=True)
