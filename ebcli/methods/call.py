"""What a method gets, and what it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from ebcli.eb.arguments import is_finite, priors
from ebcli.eb.forward import LayerCells, cells_of_layers, evaluating, label_of, removing, unwrap
from ebcli.eb.inputs import Inputs, NetworkInputs
from ebcli.eb.torch_private import tree_map_only
from ebcli.errors import LayerError, NonFiniteError
from ebcli.heads import HeadChoice, head_of, single_tensor
from ebcli.layouts import OF_INPUT, Layout, is_input, saliency_map, without_map

LayerName = str | None  # None for the input
Priors = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]

_PICTURES = 5  # axes of the relevance of pictures (B, K, C, H, W)
# of networks by what they were asked, as finding it takes a recorded pass
_KNOWN_CELLS: WeakKeyDictionary[Module, dict[tuple[Any, ...], list[LayerCells]]] = WeakKeyDictionary()


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
        joint: whether EB explained winning neurons jointly; None of other methods.
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
    joint: bool | None = None
    special_tokens: int = 0


def has_own_shape(layer: LayerName, relevance: Tensor) -> bool:
    """Whether a layer is an input beside the picture whose relevance (B, K, ...) is no picture's, as a table's."""
    return layer is not None and is_input(layer) and relevance.ndim != _PICTURES


def maps_at(cells: LayerCells, relevance: Tensor, *, positive: bool = False) -> MethodMaps:
    """The maps that relevance (B, K, ...) at a layer sums to over channels; of a table, its own elements.

    Args:
        cells: where the layer's output holds the cells of its map.
        relevance: of each element of the output, with the images first.
        positive: make negative cells 0.

    Raises:
        LayerError: the layer has no map.
    """
    maps = relevance
    if not has_own_shape(cells.layer, relevance):
        flat = saliency_map(
            relevance.flatten(0, 1), layer=cells.layer, channel_axis=cells.channel_axis, layout=cells.layout
        )
        maps = flat.unflatten(0, relevance.shape[:2])
    if positive:
        maps = maps.clamp(min=0)
    special_tokens = cells.layout.special if cells.layout else 0
    return MethodMaps(layer=cells.layer, maps=maps, relevance=relevance, special_tokens=special_tokens)


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerGradients:
    """A layer's output, and the gradients of scores with respect to it.

    Attributes:
        cells: where the output holds the cells of the map.
        activation: (B, ...).
        gradients: (B, K, ...).
    """

    cells: LayerCells
    activation: Tensor
    gradients: Tensor

    @property
    def layout(self) -> Layout:
        """Where the activation holds the cells of the map. Raises LayerError if it has none."""
        if self.cells.layout is None:
            raise without_map(tuple(self.activation.shape), self.cells.layer)
        return self.cells.layout

    def maps_of(self, relevance: Tensor, *, positive: bool = False) -> MethodMaps:
        """The maps that relevance (B, K, ...) sums to over channels.

        Args:
            relevance: of each element of the layer's output, or (B, ...) for all K.
            positive: make negative cells 0.
        """
        if relevance.ndim == self.activation.ndim:
            relevance = relevance[:, None].expand_as(self.gradients)
        return maps_at(self.cells, relevance, positive=positive)


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

    @cached_property
    def network_inputs(self) -> NetworkInputs:
        """The arguments of a call of the network."""
        return NetworkInputs(self.inputs)

    @property
    def picture(self) -> Tensor:
        """The input that maps are drawn over, (B, C, ...)."""
        return self.network_inputs.main

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
        inputs = self.network_inputs
        count = len(picture)
        tensors = {}
        for name, tensor in inputs.tensors.items():
            if name == inputs.picture:
                tensors[name] = picture
            elif tensor.ndim and len(tensor) == 1:
                tensors[name] = tensor.expand(count, *tensor.shape[1:])
            else:
                tensors[name] = tensor
        return self._output(tensors)

    def _output(self, tensors: dict[str, Tensor]) -> Tensor:
        return head_of(self.network_inputs.call(self.net, tensors), self.head).tensor

    def scores_of(self, picture: Tensor, priors: Tensor) -> Tensor:
        """The scores (B, K) of the subjects for another picture.

        Args:
            picture: (B, C, ...).
            priors: (B, K, num_classes, ...), or (1, K, num_classes, ...) for all.
        """
        with torch.no_grad():
            return _weighted(self.output_of(picture), priors)

    def layers_with_gradients(self) -> list[LayerGradients]:
        """Each layer's output, and the gradients of the scores, from one forward pass and K backward passes.

        Raises:
            LayerError: a layer does not exist, is not called exactly once or does not return a single tensor.
            NonFiniteError: a gradient is not finite.
        """
        cells = self._cells()
        hooks = _Hooks()
        scores = self._scores_with_graph(hooks, [at_layer.layer for at_layer in cells])
        tensors = [hooks.tensors[at_layer.layer] for at_layer in cells]
        gradients = [
            torch.autograd.grad(score, tensors, retain_graph=True, allow_unused=True) for score in scores
        ]
        results = []
        for at_layer, tensor, *of_layer in zip(cells, tensors, *gradients, strict=True):
            images = at_layer.image_axis or 0
            results.append(
                LayerGradients(
                    cells=at_layer,
                    activation=tensor.detach().movedim(images, 0),
                    gradients=_checked(of_layer, at_layer.layer).movedim(images + 1, 0),
                )
            )
        return results

    def _scores_with_graph(self, hooks: "_Hooks", layers: Sequence[LayerName]) -> Tensor:
        """The scores (K,) of all images, with what autograd needs to go from the layers' outputs to them."""
        net = unwrap(self.net)
        with (
            evaluating(self.net),
            torch.inference_mode(False),
            torch.no_grad(),  # until the first layer
            removing(hooks.handles),
        ):
            tensors = {name: tensor.detach().clone() for name, tensor in self.network_inputs.tensors.items()}
            for layer in layers:
                if layer is not None and not is_input(layer):
                    hooks.add(layer, net.get_submodule(layer))
                    continue
                name = self.network_inputs.picture
                if layer is not None:
                    name = layer.removeprefix(OF_INPUT)
                tensors[name] = hooks.note(layer, tensors[name])
            output = self._output(tensors)
            priors = self.priors(output.detach()).to(output)
            return _weighted(output, priors).sum(0)

    def _cells(self) -> list[LayerCells]:
        """Where the layers' outputs hold cells, from a recorded pass, or from that of an earlier call like this one.

        The recorded pass also checks the layers.
        """
        shapes = [tuple(tensor.shape) for tensor in self.network_inputs.tensors.values()]
        key = (*self.layers, self.head, *shapes)
        known = _KNOWN_CELLS.setdefault(self.net, {})
        if key not in known:
            known[key] = cells_of_layers(self.net, self.inputs, self.layers, self.head)
        return known[key]


def _weighted(output: Tensor, priors: Tensor) -> Tensor:
    """The sums (B, K) of an output (B, ...), weighted by priors (B, K, ...), or (1, K, ...) for all."""
    return torch.einsum("bki,bi->bk", priors.flatten(2).expand(len(output), -1, -1), output.flatten(1))


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

    Attributes:
        tensors: the outputs, by the names of the layers.
        handles: of the hooks, to be removed.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self.tensors: dict[LayerName, Tensor] = {}
        self.handles: list[RemovableHandle] = []

    def add(self, layer: str, module: Module) -> None:
        """Note what a layer returns when it is called."""
        self.handles.append(module.register_forward_hook(partial(self._output, layer), prepend=True))

    def note(self, layer: LayerName, tensor: Tensor) -> Tensor:
        """Take a tensor as the output of a layer, and return what the network continues with."""
        torch.set_grad_enabled(True)
        self.tensors[layer] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return self.tensors[layer].clone()  # later layers may modify it in place

    def _output(self, layer: str, _module: Module, _args: Any, output: Any) -> Any:
        if get_ident() != self._thread:
            return None
        tensor = single_tensor(output, f"the output of layer {layer!r}")
        noted = self.note(layer, tensor)
        return tree_map_only(Tensor, lambda item: noted if item is tensor else item, output)
