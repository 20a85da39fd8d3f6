"""What a method gets, and what it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from ebcli.eb.arguments import is_finite, priors
from ebcli.eb.forward import RecordedLayouts, evaluating, label_of, recorded_layouts, removing
from ebcli.eb.inputs import Inputs, NetworkInputs
from ebcli.eb.torch_private import tree_map_only
from ebcli.errors import LayerError, NonFiniteError, UnsupportedOpError
from ebcli.heads import HeadChoice, head_of, single_tensor
from ebcli.layouts import Layout, extent_of, layout_by_shape, saliency_map, without_map

LayerName = str | None  # None for the input
Priors = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]


def class_priors(classes: Tensor, output: Tensor) -> Tensor:
    """The priors (B, K, num_classes, ...) of classes (B, K): of a dense output, spread over all positions."""
    by_class, _ = priors(classes, output)
    return by_class.transpose(0, 1)


def positive_sums(maps: Tensor) -> Tensor:
    """The sum of the positive cells of each of the maps (B, K, ...), which broadcasts; 1 if there are none."""
    sums = maps.clamp(min=0).flatten(2).sum(2)
    return sums.where(sums > 0, 1).reshape(*sums.shape, *[1] * (maps.ndim - 2))


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodMaps:
    """The maps of a method at one layer.

    Attributes:
        layer: the layer; None for the picture.
        maps: (B, K, h, w), or (B, K, t, h, w) of videos and volumes.
        relevance: (B, K, ...), what `maps` sums over channels; None if there is no such thing.
        mass: (B, K), the probability that reached the layer; None of methods that know none.
        lost_mass: (B, K), the probability that was lost at each operation; None if it was not tracked.
        joint: EB explained winning neurons jointly.
        special_tokens: how many tokens of the layer's output are no cells of the maps.

    Examples:
        >>> import ebcli, torch
        >>> ebcli.MethodMaps(layer=None, maps=torch.rand(2, 1, 14, 14)).maps.shape  # of two pictures, one class each
        torch.Size([2, 1, 14, 14])
    """

    layer: LayerName
    maps: Tensor
    relevance: Tensor | None = None
    mass: Tensor | None = None
    lost_mass: Mapping[str, Tensor] | None = None
    joint: bool = False
    special_tokens: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerGradients:
    """A layer's output, and the gradients of scores with respect to it.

    Attributes:
        layer: the layer; None for the input.
        activation: (B, ...).
        gradients: (B, K, ...).
        layout: where the output holds the cells of the map; None if only its shape tells.
        input_shape: of the network's picture.
        channel_axis: the picture's axis of channels.
    """

    layer: LayerName
    activation: Tensor
    gradients: Tensor
    layout: Layout | None
    input_shape: tuple[int, ...]
    channel_axis: int | None

    @property
    def cells(self) -> Layout:
        """Where the activation holds the cells of the map. Raises LayerError if it has none."""
        if self.layout is None:
            raise without_map(tuple(self.activation.shape), self.layer)
        return self.layout

    def maps_of(self, relevance: Tensor, *, positive: bool = False) -> MethodMaps:
        """The maps that relevance (B, K, ...) sums to over channels.

        Args:
            relevance: of each element of the layer's output, or (B, ...) for all K.
            positive: make negative cells 0.
        """
        if relevance.ndim == self.activation.ndim:
            relevance = relevance[:, None].expand_as(self.gradients)
        flat = relevance.flatten(0, 1)
        if self.layer is None:
            flat = saliency_map(flat, self.input_shape, channel_axis=self.channel_axis)
        else:
            flat = self.cells.sum_channels(flat)
        maps = flat.unflatten(0, relevance.shape[:2])
        if positive:
            maps = maps.clamp(min=0)
        return MethodMaps(layer=self.layer, maps=maps, relevance=relevance)


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodCall:
    """What a method is asked.

    The score of a subject is the sum of the output, weighted by its prior: a logit, a candidate's score, or the mean of
    logits over a mask.

    Attributes:
        net: the network, in evaluation mode.
        inputs: (B, C, ...), or all inputs of a network that has several.
        priors: the priors (B, K, num_classes, ...) of an output (B, num_classes, ...).
        layers: the layers; None for the input.
        against: classes to contrast with; None for the class's own dual.
        joint: whether EB explains winning neurons jointly; None if it decides.
        head: the head to explain, if there are several.
        allow_unsupported: use gradients where an operation has no rule.
        track_lost_mass: also find where probability is lost.
        batch_size: how many pictures the network gets at a time, of methods that take many passes.
        progress: gets the number of pictures that passed the network, and of all that will, after each batch of such a
            method; what it raises ends the call.

    Examples:
        >>> import ebcli, torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
        >>> call = ebcli.MethodCall(net=net, inputs=torch.rand(2, 3, 8, 8), priors=lambda output: output[:, None] * 0,
        ...                         layers=[None])
        >>> (pixels,) = call.layers_with_gradients()
        >>> pixels.activation.shape, pixels.gradients.shape, pixels.maps_of(pixels.gradients).maps.shape
        (torch.Size([2, 3, 8, 8]), torch.Size([2, 1, 3, 8, 8]), torch.Size([2, 1, 8, 8]))
    """

    net: Module
    inputs: Inputs
    priors: Priors
    layers: Sequence[LayerName]
    against: Sequence[int] | None = None
    joint: bool | None = None
    head: HeadChoice = None
    allow_unsupported: bool = False
    track_lost_mass: bool = False
    batch_size: int = 8
    progress: Progress | None = None

    @property
    def picture(self) -> Tensor:
        """The input that maps are drawn over, (B, C, ...)."""
        return NetworkInputs(self.inputs).main

    def of_images(self, first: int, end: int) -> "MethodCall":
        """The call for some images of the batch."""
        count = len(self.picture)

        def rows(tensor: Tensor) -> Tensor:
            if tensor.ndim and len(tensor) == count:
                return tensor[first:end]
            return tensor

        return replace(self, inputs=tree_map_only(Tensor, rows, self.inputs))

    def output_of(self, picture: Tensor) -> Tensor:
        """The output (B, num_classes, ...) for another picture, or for several of a single image.

        Other inputs stay as they are; those of a single image are repeated for each picture.
        """
        inputs = NetworkInputs(self.inputs)
        count = len(picture)
        tensors = {}
        for name, tensor in inputs.tensors.items():
            if name == inputs.picture:
                tensors[name] = picture
            elif tensor.ndim and len(tensor) == 1:
                tensors[name] = tensor.expand(count, *tensor.shape[1:])
            else:
                tensors[name] = tensor
        return head_of(inputs.call(self.net, tensors), self.head).tensor

    def scores_of(self, picture: Tensor, priors: Tensor) -> Tensor:
        """The scores (B, K) of the subjects for another picture.

        Args:
            picture: (B, C, ...).
            priors: (B, K, num_classes, ...), or (1, K, num_classes, ...) for all.
        """
        with torch.no_grad():
            output = self.output_of(picture)
        return torch.einsum("bki,bi->bk", priors.flatten(2), output.flatten(1))

    def layers_with_gradients(self) -> list[LayerGradients]:
        """Each layer's output, and the gradients of the scores, from one forward pass and K backward passes.

        Raises:
            LayerError: a layer does not exist, is not called exactly once or does not return a single tensor.
            NonFiniteError: a gradient is not finite.
        """
        tensors, scores = self._scores_with_graph()
        gradients = [
            torch.autograd.grad(score, tensors, retain_graph=True, allow_unused=True) for score in scores
        ]
        layouts = self._layouts(tensors)
        shape = tuple(self.picture.shape)
        results = []
        for layer, tensor, *of_layer in zip(self.layers, tensors, *gradients, strict=True):
            images = layouts.image_axes[layer] or 0
            results.append(
                LayerGradients(
                    layer=layer,
                    activation=tensor.detach().movedim(images, 0),
                    gradients=_checked(of_layer, layer).movedim(images + 1, 0),
                    layout=layouts.of_layers.get(layer),
                    input_shape=shape,
                    channel_axis=layouts.channel_axis,
                )
            )
        return results

    def _scores_with_graph(self) -> tuple[list[Tensor], Tensor]:
        """The layers' outputs, and the scores (K,) of all images, with a graph of autograd between them."""
        hooks = _Hooks(self.net)
        with (
            evaluating(self.net),
            torch.inference_mode(False),
            torch.no_grad(),  # until the first layer
            removing(hooks.handles),
        ):
            for layer in filter(None, self.layers):
                hooks.add(layer)
            picture = self.picture.detach().clone()
            if None in self.layers:
                picture = hooks.note(None, picture)
            output = self.output_of(picture)
            priors = self.priors(output.detach()).to(output)
            scores = (priors * output[:, None]).flatten(2).sum((0, 2))
            return hooks.tensors(self.layers), scores

    def _layouts(self, tensors: Sequence[Tensor]) -> RecordedLayouts:
        """Where the layers' outputs hold cells, from a recorded pass, or from that of an earlier call like this one."""
        inputs = NetworkInputs(self.inputs)
        shapes = [tensor.shape for tensor in (*inputs.tensors.values(), *tensors)]
        key = (*self.layers, *map(tuple, shapes))
        known = _LAYOUTS.setdefault(self.net, {})
        if key not in known:
            try:
                known[key] = recorded_layouts(self.net, self.inputs, self.layers, self.head)
            except UnsupportedOpError:  # what it computes cannot be recorded, so the shapes tell
                extent = extent_of(tuple(self.picture.shape), 1)
                by_shape: dict[LayerName, Layout | None] = {
                    layer: layout_by_shape(tuple(tensor.shape), extent)
                    for layer, tensor in zip(self.layers, tensors, strict=True)
                    if layer is not None
                }
                known[key] = RecordedLayouts(by_shape, 1, dict.fromkeys(self.layers, 0))
        return known[key]


def _checked(gradients: Sequence[Tensor | None], layer: LayerName) -> Tensor:
    """Gradients (K, ...). Raises LayerError if one does not exist, and NonFiniteError if one is not finite."""
    existing = [gradient for gradient in gradients if gradient is not None]
    if len(existing) < len(gradients):
        raise LayerError(f"the output does not depend on {label_of(layer)}: choose a later one")
    stacked = torch.stack(existing)
    if not is_finite(stacked):
        raise NonFiniteError(
            f"gradients at {label_of(layer)} are not finite: check the weights and the dtype"
        )
    return stacked


class _Hooks:
    """The outputs of layers in a forward pass of this thread, each a leaf unless it depends on another one.

    Args:
        net: the network.
    """

    def __init__(self, net: Module) -> None:
        self._net = net
        self._thread = get_ident()
        self._tensors: dict[LayerName, Tensor] = {}
        self.handles: list[RemovableHandle] = []

    def add(self, layer: str) -> None:
        """Note a layer's output when it is called. Raises LayerError if there is no such layer."""
        try:
            module = self._net.get_submodule(layer)
        except AttributeError as error:
            raise LayerError(f"the network has no layer {layer!r}") from error
        self.handles.append(module.register_forward_hook(partial(self._output, layer), prepend=True))

    def note(self, layer: LayerName, tensor: Tensor) -> Tensor:
        """Take a tensor as the output of a layer, and return what the network continues with."""
        if layer in self._tensors:
            raise LayerError(
                f"{label_of(layer)} is called more than once during the forward pass: choose another layer"
            )
        torch.set_grad_enabled(True)
        self._tensors[layer] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return self._tensors[layer].clone()  # later layers may modify it in place

    def tensors(self, layers: Sequence[LayerName]) -> list[Tensor]:
        """The outputs of layers. Raises LayerError if one was not called."""
        for layer in layers:
            if layer not in self._tensors:
                raise LayerError(f"{label_of(layer)} was not called during the forward pass")
        return [self._tensors[layer] for layer in layers]

    def _output(self, layer: str, _module: Module, _args: Any, output: Any) -> Any:
        if get_ident() != self._thread:
            return None
        tensor = single_tensor(output, f"the output of layer {layer!r}")
        noted = self.note(layer, tensor)
        return tree_map_only(Tensor, lambda item: noted if item is tensor else item, output)


_LAYOUTS: WeakKeyDictionary[Module, dict[tuple[Any, ...], RecordedLayouts]] = WeakKeyDictionary()
