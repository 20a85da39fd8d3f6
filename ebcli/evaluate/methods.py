"""The methods that are compared: each one's maps of the same network, layer and classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ebcli.eb import excitation_backprop
from ebcli.eb.maps import saliency_map
from ebcli.errors import LayerError
from ebcli.evaluate.names import METHODS
from ebcli.imports import import_optional

# (net, inputs (1, 3, H, W), classes (1, K), layer) -> maps (K, h, w); the layer is None for the input itself
Method = Callable[[nn.Module, Tensor, Tensor, str | None], Tensor]


def class_scores(logits: Tensor) -> Tensor:
    """(B, num_classes) of a network's output, whose mean counts where it has an answer for each place."""
    return logits.flatten(2).mean(2) if logits.ndim > 2 else logits


def contrastive(net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """Contrastive Excitation Backprop (Zhang et al., ECCV 2016, section 3.3)."""
    return excitation_backprop(net, inputs, classes, layer=layer, contrastive=True).maps[0]


def marginal(net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """Excitation Backprop's marginal winning probability (section 3.2)."""
    return excitation_backprop(net, inputs, classes, layer=layer).maps[0]


def gradient(net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """The gradient's magnitude, summed over channels (Simonyan et al., 2014, took the largest)."""
    _, gradients = _activation_and_gradients(net, inputs, classes, layer)
    return saliency_map(gradients.abs(), tuple(inputs.shape), layer=layer)


def gradient_x_input(net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """The gradient times what it is the gradient by: the layer's output, or the pixels (Shrikumar et al., 2016)."""
    activation, gradients = _activation_and_gradients(net, inputs, classes, layer)
    return saliency_map(activation * gradients, tuple(inputs.shape), layer=layer)


def grad_cam(net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) at the layer, by Captum."""
    attribution = import_optional("captum.attr")
    if layer is None:
        raise LayerError("Grad-CAM weighs the channels of a layer, and the input is none: choose a layer")
    explainer = attribution.LayerGradCam(lambda images: class_scores(net(images)), net.get_submodule(layer))
    targets = classes[0]
    maps: Tensor = explainer.attribute(
        inputs.expand(len(targets), -1, -1, -1), target=targets, relu_attributions=True
    ).detach()
    side, other = (size / cells for size, cells in zip(inputs.shape[2:], maps.shape[2:], strict=False))
    if maps.ndim != 4 or not 0.5 < side / other < 2:
        raise LayerError(f"Grad-CAM needs a layer (channels, height, width), and {layer!r} is none: choose another")
    return maps[:, 0]


def random(_net: nn.Module, inputs: Tensor, classes: Tensor, _layer: str | None) -> Tensor:
    """Noise, from 0 to 1; the caller seeds PyTorch's generator."""
    return torch.rand(classes.shape[1], *inputs.shape[2:])


def centre(_net: nn.Module, inputs: Tensor, classes: Tensor, _layer: str | None) -> Tensor:
    """The centre of the image, whatever it shows: 1 there, falling to 0 in the corners."""
    y, x = (torch.linspace(-1, 1, side) for side in inputs.shape[2:])
    return (1 - torch.hypot(y[:, None], x) / 2**0.5).expand(classes.shape[1], -1, -1)


def _activation_and_gradients(
    net: nn.Module, inputs: Tensor, classes: Tensor, layer: str | None
) -> tuple[Tensor, Tensor]:
    """What a layer gives, (1, ...), and the gradient of each class's score by it, (K, ...)."""
    leaves: list[Tensor] = []

    def cut(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()  # what follows may work in place

    handle = net.get_submodule(layer).register_forward_hook(cut) if layer is not None else None
    try:
        with torch.enable_grad():
            entry = cut(net, (), inputs) if layer is None else inputs
            scores = class_scores(net(entry))[0, classes[0]]
    finally:
        if handle is not None:
            handle.remove()
    gradients = [torch.autograd.grad(score, leaves[-1], retain_graph=True)[0] for score in scores]
    return leaves[-1].detach(), torch.cat(gradients)


IMPLEMENTED: dict[str, Method] = dict(
    zip(METHODS, (contrastive, marginal, gradient, gradient_x_input, grad_cam, random, centre), strict=True)
)
