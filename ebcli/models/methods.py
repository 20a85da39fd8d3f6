"""The methods to compare: maps of a network for given classes at a given layer."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.eb import excitation_backprop
from ebcli.errors import LayerError, import_optional
from ebcli.layouts import saliency_map
from ebcli.models.keywords import METHODS
from ebcli.models.running import hook_modules

LayerName = str | None  # None for the input
# (net, inputs (1, 3, H, W), classes (1, K), layer) -> maps (K, h, w)
Method = Callable[[Module, Tensor, Tensor, LayerName], Tensor]


def class_scores(logits: Tensor) -> Tensor:
    """Logits (B, num_classes) from an output (B, num_classes, ...), averaged over positions."""
    if logits.ndim <= 2:
        return logits
    return logits.flatten(2).mean(2)


def contrastive(net: Module, inputs: Tensor, classes: Tensor, layer: LayerName) -> Tensor:
    """Contrastive Excitation Backprop (Zhang et al., ECCV 2016, section 3.3)."""
    return excitation_backprop(net, inputs, classes, layer=layer, contrastive=True).maps[0]


def marginal(net: Module, inputs: Tensor, classes: Tensor, layer: LayerName) -> Tensor:
    """Excitation Backprop's marginal winning probability (section 3.2)."""
    return excitation_backprop(net, inputs, classes, layer=layer).maps[0]


def gradient(net: Module, inputs: Tensor, classes: Tensor, layer: LayerName) -> Tensor:
    """Absolute gradient, summed over channels (Simonyan et al., 2014, take the maximum)."""
    _, slopes = _activation_and_slopes(net, inputs, classes, layer)
    return saliency_map(slopes.abs(), tuple(inputs.shape), layer=layer)


def gradient_x_input(net: Module, inputs: Tensor, classes: Tensor, layer: LayerName) -> Tensor:
    """Gradient times the layer's output, or times the pixels (Shrikumar et al., 2016)."""
    activation, slopes = _activation_and_slopes(net, inputs, classes, layer)
    return saliency_map(activation * slopes, tuple(inputs.shape), layer=layer)


def grad_cam(net: Module, inputs: Tensor, classes: Tensor, layer: LayerName) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) at the layer, computed by Captum."""
    attribution = import_optional("captum.attr")
    if layer is None:
        raise LayerError("Grad-CAM needs a layer, not the input: choose a layer with channels")
    explainer = attribution.LayerGradCam(lambda images: class_scores(net(images)), net.get_submodule(layer))
    targets = classes[0]
    images = inputs.expand(len(targets), -1, -1, -1)
    maps: Tensor = explainer.attribute(images, target=targets, relu_attributions=True).detach()
    strides = [size / cells for size, cells in zip(inputs.shape[2:], maps.shape[2:], strict=False)]
    if maps.ndim != 4 or not 0.5 < strides[0] / strides[1] < 2:
        requirement = "Grad-CAM needs a layer with output (channels, height, width)"
        raise LayerError(f"{requirement}, but {layer!r} has none")
    return maps[:, 0]


def random(_net: Module, inputs: Tensor, classes: Tensor, _layer: LayerName) -> Tensor:
    """Uniform noise from 0 to 1; the caller seeds PyTorch's generator."""
    return torch.rand(classes.shape[1], *inputs.shape[2:])


def center(_net: Module, inputs: Tensor, classes: Tensor, _layer: LayerName) -> Tensor:
    """A fixed map: 1 at the center of the image, falling to 0 at the corners."""
    y, x = (torch.linspace(-1, 1, side) for side in inputs.shape[2:])
    distance = torch.hypot(y[:, None], x) / 2**0.5
    return (1 - distance).expand(classes.shape[1], -1, -1)


def _activation_and_slopes(
    net: Module, inputs: Tensor, classes: Tensor, layer: LayerName
) -> tuple[Tensor, Tensor]:
    """A layer's output (1, ...), and the gradient of each class's score with respect to it, (K, ...)."""
    leaves: list[Tensor] = []

    def cut(_module: Module, _args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # later layers may modify it in place

    with ExitStack() as hooks, torch.enable_grad():
        if layer is None:
            inputs = cut(net, (), inputs)
        else:
            hooks.enter_context(hook_modules([net.get_submodule(layer)], cut))
        scores = class_scores(net(inputs))[0, classes[0]]
    slopes = [torch.autograd.grad(score, leaves[-1], retain_graph=True)[0] for score in scores]
    return leaves[-1].detach(), torch.cat(slopes)


_FUNCTIONS = (contrastive, marginal, gradient, gradient_x_input, grad_cam, random, center)
IMPLEMENTED: dict[str, Method] = dict(zip(METHODS, _FUNCTIONS, strict=True))
