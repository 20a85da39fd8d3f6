"""The layers of a network: names, output shapes and strides."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.eb import layers_on_path
from ebcli.eb.capture import evaluating
from ebcli.eb.result import token_grid
from ebcli.errors import LayerError, closest
from ebcli.models.detection import DetectionScores
from ebcli.models.loaded import LoadedModel
from ebcli.models.probe import blank, fitting_first_layer, hooked, probe
from ebcli.nouns.input_spec import InputSpec

# With a batch of two, outputs per image differ from constants such as the position tables of Swin v2, which also pass
# through modules and look like maps
_BATCH = 2


@dataclass(frozen=True)
class Layer:
    """A module of a network, as seen in one forward pass.

    Attributes:
        name: its name in ``named_modules()``.
        type: its class name.
        shape: output shape without the batch: (C, H, W), (H, W, C), (N, C) or other; for video, with T before H.
        stride: input side divided by output side, in pixels; None if the output has no spatial layout.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    stride: float | None


def layers(model: LoadedModel | nn.Module, input_size: int | tuple[int, ...] | None = None) -> list[Layer]:
    """List the layers of a network in execution order.

    A block follows the modules inside it. A module is listed if it has one map: it is called exactly once, its input
    depends on the image, and it returns a single tensor. Modules that receive no probability, such as those inside a
    squeeze-excitation or those that compute queries and keys, are not listed.

    Args:
        model: the model, or a network that takes images (B, 3, height, width) or clips (B, 3, frames, height, width).
        input_size: side or (height, width) of the input in pixels, or (frames, height, width); None for that of the
            model's preprocessing, or 224 for a network without preprocessing.

    Raises:
        ConfigurationError: the network does not accept images of that size.

    Examples:
        >>> import ebcli, torch
        >>> found = {layer.name: layer for layer in ebcli.layers(ebcli.load_model())}
        >>> found["features.11"].shape, found["features.11"].stride
        ((112, 14, 14), 16.0)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.Flatten())
        >>> ebcli.layers(net, input_size=(32, 64))[0].shape
        (8, 8, 16)
    """
    model = as_loaded(model, input_size)
    batch = 1 if model.one_by_one else _BATCH
    outputs, size = _outputs(model, batch), model.transforms.shape
    if isinstance(model.net, DetectionScores):  # strides are in pixels of the image that detectors resized themselves
        _, size = model.net.sizes(*size)
    found = []
    for layer, output in outputs.items():
        shape = tuple(output.shape[1:])
        # none if windows of an image are stacked along the batch
        stride = _stride(shape, size) if len(output) == batch else None
        found.append(Layer(layer, type(model.net.get_submodule(layer)).__name__, shape, stride))
    return found


def resolve_layer(loaded: LoadedModel, name: str) -> str:
    """Return the name if the network has such a module.

    Raises:
        LayerError: it does not; the message gives the closest names.
    """
    names = [known for known, _ in loaded.net.named_modules() if known]
    if name not in names:
        hint = closest(name, names) or f"its first modules are {', '.join(names[:3])}; eb-saliency layers lists all"
        raise LayerError(f"{loaded.name} has no layer {name!r}: {hint}")
    return name


def as_loaded(model: LoadedModel | nn.Module, input_size: int | tuple[int, ...] | None) -> LoadedModel:
    """A model with inputs of that size; a network without preprocessing gets what its first layer takes."""
    spec = model.transforms if isinstance(model, LoadedModel) else InputSpec(None)
    if input_size is not None:
        *first, height, width = (input_size, input_size) if isinstance(input_size, int) else input_size
        spec = replace(spec, size=(height, width))
        if first:
            spec = replace(spec, frames=first[0]) if spec.depth is None else replace(spec, depth=first[0])
    if isinstance(model, LoadedModel):
        return replace(model, transforms=spec)
    return LoadedModel(type(model).__name__, model, transforms=fitting_first_layer(model, spec))


def _outputs(model: LoadedModel, batch: int) -> dict[str, Tensor]:
    """The output of each module that is called once and returns one tensor, in execution order.

    The outputs are on the meta device: shapes without data. The network is left unchanged.
    """
    calls: dict[str, list[Tensor | None]] = {}

    def record(module: nn.Module, _inputs: Any, output: Any) -> None:
        one = output[0] if isinstance(output, tuple) and len(output) == 1 else output
        is_mapped = isinstance(one, Tensor) and one.ndim > 1 and len(one) % batch == 0 and one.is_floating_point()
        calls.setdefault(names[module], []).append(one.to("meta") if is_mapped else None)

    net, spec = model.net, model.transforms
    names = {module: layer for layer, module in net.named_modules() if layer}
    # training would add the blank images to batch norms' statistics
    with hooked(names, record), torch.no_grad(), evaluating(net):
        probe(model.name, net, spec, net, batch)
    mapped = {layer: one for layer, (one, *others) in calls.items() if one is not None and not others}
    return {layer: mapped[layer] for layer in layers_on_path(net, blank(net, spec, batch), [*mapped])}


def _stride(shape: tuple[int, ...], size: tuple[int, ...]) -> float | None:
    """Input side over output side for (C, H, W), (H, W, C) and (N, C) with or without special tokens.

    For video, T comes before H, and the stride is that of the sides.
    """
    grids: list[tuple[int, ...]] = []
    height, width = size[-2:]
    if len(shape) == 1 + len(size):
        grids = [shape[-2:], shape[-3:-1]]
    elif len(shape) == 2 and shape[1] > 1:  # a single number each would be pooled channels, no tokens
        _, grid = token_grid(shape[0], size)
        grids = [] if grid is None else [grid[-2:]]
    for rows, columns in grids:
        # rounding at the border can cost the longer side one cell
        if rows * columns > 1 and rows <= height and columns <= width and abs(columns - width * rows / height) < 1:
            return height / rows
    return None
