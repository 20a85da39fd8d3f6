"""The layers of a network: names, shapes and strides; the one whose map is drawn if none is asked for."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.eb import excitation_backprop, layers_on_path
from ebcli.eb.forward import evaluating, in_script, is_scripted, unwrap, without_wrappers
from ebcli.errors import ConfigurationError, EbcliError, LayerError, closest
from ebcli.heads import HeadChoice, heads_of, keep_head
from ebcli.layouts import Layout, Shape
from ebcli.models.checkpoint import Tensors
from ebcli.models.detection import DetectionScores
from ebcli.models.keywords import DETECTION, INPUT, SEGMENTATION, VALUE_MAPS
from ebcli.models.loaded import LoadedModel
from ebcli.models.running import (
    Script,
    blank,
    fitting_first_layer,
    hook_modules,
    probe,
    shallow_copy,
    with_hooks,
)
from ebcli.models.sources.answers import only_answers

# With a batch of two, outputs per image differ from constants such as the position tables of Swin v2, which also pass
# through modules and look like maps
_BATCH = 2

# Stride 16 plus a quarter: unpadded layers lose border cells, so AlexNet's 13 x 13 cells of stride 16 appear to have
# stride 224 / 13 = 17.2. No layer of stride 32 appears that low.
_DENSE = SEGMENTATION, VALUE_MAPS  # tasks with an output for each pixel
MAX_STRIDE = 16 * 1.25

# A side of the map: with fewer cells, the maps of small images would be a few blocks
LEAST_CELLS = 9

InputSize = int | Shape | None
Model = LoadedModel | Module

_WEIGHT_TYPES = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d
_CONTAINERS = nn.Sequential, nn.ModuleList


@dataclass(frozen=True)
class Layer:
    """A module of a network, as seen in one forward pass.

    Attributes:
        name: its name in ``named_modules()``.
        type: its class name.
        shape: output shape without the batch: (C, H, W), (H, W, C), (N, C) or other; for video, with T before H.
        stride: input side divided by output side, in pixels; None if the output has no spatial layout.
        special: how many tokens of the output are no cells, such as a class token and registers.
    """

    name: str
    type: str
    shape: Shape
    stride: float | None
    special: int = 0


class SpatialLayer(NamedTuple):
    """A layer below the classifier that has a spatial layout; the attributes are those of `Layer`."""

    name: str
    stride: float
    shape: Shape
    special: int

    @property
    def has_tokens(self) -> bool:
        """Whether the output is (N, C)."""
        return len(self.shape) == 2

    @property
    def depth(self) -> int:
        """How many modules are around it."""
        return self.name.count(".")


SpatialLayers = list[SpatialLayer]


def layers(model: Model, input_size: InputSize = None, *, head: HeadChoice = None) -> list[Layer]:
    """List the layers of a network in execution order.

    A block follows the modules inside it. A module is listed if it has one map: it is called exactly once, its input
    depends on the image, and it returns a single tensor. Modules that receive no probability, such as those inside a
    squeeze-excitation or those that compute queries and keys, are not listed.

    Args:
        model: the model, or a network that takes images (B, 3, height, width) or clips (B, 3, frames, height, width).
        input_size: side or (height, width) of the input in pixels, or (frames, height, width); None for that of the
            model's preprocessing, or 224 for a network without preprocessing.
        head: of a network with several heads, the one of which the layers are listed; see `load_model`.

    Raises:
        ConfigurationError: the network does not accept images of that size, or has several heads and none is chosen.

    Examples:
        >>> import ebcli, torch
        >>> found = {layer.name: layer for layer in ebcli.layers(ebcli.load_model())}
        >>> found["features.11"].shape, found["features.11"].stride
        ((112, 14, 14), 16.0)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.Flatten())
        >>> ebcli.layers(net, input_size=(32, 64))[0].shape
        (8, 8, 16)
    """
    model = as_loaded(model, input_size, head)
    net = model.net
    batch = 1 if model.one_by_one else _BATCH
    size = model.transforms.shape
    if isinstance(
        net, DetectionScores
    ):  # strides are in pixels of the image that detectors resized themselves
        _, size = net.sizes(*size)
    result = []
    for name, (output, layout) in _outputs(model, batch).items():
        shape = tuple(output.shape[1:])
        special = 0
        stride = None
        if layout is not None:
            special = layout.special
            stride = _stride(layout.grid, size)
        result.append(Layer(name, type(net.get_submodule(name)).__name__, shape, stride, special))
    return result


def resolve_layer(loaded: LoadedModel, name: str) -> str:
    """Return the name if the network has such a module.

    Raises:
        LayerError: it does not; the message gives the closest names.
    """
    names = [module_name for module_name, _ in loaded.net.named_modules() if module_name]
    own_name = without_wrappers(name)
    if name not in names and own_name in names:
        return own_name
    if isinstance(loaded.net, Script):
        raise LayerError(in_script(f"layer {name!r}"))
    if name not in names:
        first_names = ", ".join(names[:3])
        hint = closest(name, names) or f"its first modules are {first_names}; eb-saliency layers lists all"
        raise LayerError(f"{loaded.name} has no layer {name!r}: {hint}")
    return name


def as_loaded(model: Model, input_size: InputSize, head: HeadChoice = None) -> LoadedModel:
    """A model with inputs of that size; a network without preprocessing gets what its first layer takes.

    Raises:
        ConfigurationError: a head is chosen of a loaded model.
    """
    spec = model.transforms if isinstance(model, LoadedModel) else InputSpec(None)
    if isinstance(input_size, int):
        input_size = (input_size, input_size)
    if input_size is not None:
        *counts, height, width = input_size
        spec = replace(spec, size=(height, width))
        for count in counts:
            spec = replace(spec, frames=count) if spec.depth is None else replace(spec, depth=count)
    if isinstance(model, LoadedModel):
        if head is not None:
            raise ConfigurationError(f"{model.name} is loaded already: pass the head to load_model()")
        return replace(model, transforms=spec)
    net = shallow_copy(with_hooks(unwrap(model)))
    net.register_forward_hook(partial(keep_head, head))
    return LoadedModel(type(net).__name__, net, transforms=fitting_first_layer(net, spec))


def _outputs(model: LoadedModel, batch: int) -> dict[str, tuple[Tensor, Layout | None]]:
    """The output of each module that is called once and returns one tensor, with its layout, in execution order.

    The outputs are on the meta device: shapes without data. The network is left unchanged.
    """
    calls: Counter[str] = Counter()
    outputs: Tensors = {}

    def record(module: Module, _inputs: Any, output: Any) -> None:
        name = names[module]
        calls[name] += 1
        tensors = [*heads_of(output).values()]
        if len(tensors) == 1 and tensors[0].ndim > 1 and len(tensors[0]) % batch == 0:
            outputs[name] = tensors[0].to("meta")

    net = model.net
    spec = model.transforms
    names = {module: name for name, module in net.named_modules() if name}
    # training would add the blank images to batch norms' statistics
    with hook_modules(names, record), torch.no_grad(), evaluating(net):
        probe(model.name, net, spec, net, batch)
    candidates = [name for name in calls if calls[name] == 1 and name in outputs]
    layouts = layers_on_path(net, blank(net, spec, batch), candidates)
    return {name: (outputs[name], layout) for name, layout in layouts.items()}


def _stride(grid: Shape, size: Shape) -> float | None:
    """Input side over output side; for video, of the sides of frames. None if the grid is not that of the input."""
    rows, columns = grid[-2:]
    height, width = size[-2:]
    is_grid = rows * columns > 1 and rows <= height and columns <= width
    # rounding at the border can cost the longer side one cell
    if is_grid and abs(columns - width * rows / height) < 1:
        return height / rows
    return None


def default_layer(model: Model, input_size: InputSize = None, *, head: HeadChoice = None) -> str:
    """Choose the layer for maps: the literature's choice, the best one measured, or the deepest of about stride 16.

    Of the layers below the classifier with the largest stride up to ``MAX_STRIDE`` that have ``LEAST_CELLS`` a side, it
    is the last one of the outermost modules: ``features.5`` rather than ``features.6.0.block.0``, which is only part of
    the next stage. For vision transformers, Swin and ConvNeXt, whose blocks mix distant cells, it is what the first
    block reads. Where there are such layers, only those count that all probability passes through: pyramids of features
    read several, and so do residual sums and branches. Layers whose cells no probability reaches do not count.

    Args:
        model: the model, or a network, of which neither literature nor measurements are known.
        input_size: see `layers`.
        head: see `layers`.

    Raises:
        ConfigurationError: the network does not accept images of that size, or has several heads and none is chosen.
        LayerError: no layer below the classifier has a spatial layout.

    Examples:
        >>> import ebcli
        >>> ebcli.default_layer(ebcli.load_model())
        'features.11'
        >>> ebcli.default_layer(ebcli.load_model("resnet18", weights="none"))
        'layer3'
    """
    has_name = isinstance(model, LoadedModel)
    model = as_loaded(model, input_size, head)
    if only_answers(model.net):
        return INPUT
    known_layer = _known_layer(model, has_name)
    if known_layer is not None:
        return known_layer
    all_layers = layers(model)
    candidates = _below_classifier(model.net, all_layers)
    if not candidates and is_scripted(model.net):
        raise LayerError(in_script(f"every layer of {model.name}"))
    if not candidates:
        raise LayerError(f"{model.name} has no layer with a spatial layout below its classifier")
    if model.task == DETECTION:  # tokens may be queries
        candidates = [layer for layer in candidates if not layer.has_tokens] or candidates
    tokens = _first_tokens(model, candidates) or _tokens_before_norms(model.net, all_layers)
    if tokens is not None:
        return tokens
    if model.task in _DENSE:
        candidates = _below_coarsest(candidates) or candidates
    candidates = _with_evidence(model, candidates) or candidates
    deepest = _deepest(model, candidates)
    if _on_path(model, [deepest], only_way=True):
        return deepest
    names = [layer.name for layer in candidates]
    chosen = _on_path(model, names, only_way=True) or _on_path(model, names, only_way=False)
    return _deepest(model, [layer for layer in candidates if layer.name in chosen] or candidates)


def _below_coarsest(candidates: SpatialLayers) -> SpatialLayers:
    """Those below the coarsest features of a segmentation network, above which each cell is explained by itself."""
    coarsest = max(layer.stride for layer in candidates)
    stages = [layer for layer in candidates if layer.stride == coarsest]
    stage = min(stages, key=lambda layer: layer.depth)
    return candidates[: candidates.index(stage)]


def _deepest(model: LoadedModel, candidates: SpatialLayers) -> str:
    """The last of the outermost layers with the largest stride that leaves cells enough."""
    limit = min(MAX_STRIDE, min(model.transforms.shape[-2:]) / LEAST_CELLS)
    strides = [layer.stride for layer in candidates]
    stride = max((stride for stride in strides if stride <= limit), default=min(strides))
    return _last_outermost(model.net, [layer.name for layer in candidates if layer.stride == stride])


def _on_path(model: LoadedModel, names: Sequence[str], *, only_way: bool) -> Collection[str]:
    """Those layers that compute something, or those among them that all probability passes, not just a part of it."""
    find = partial(layers_on_path, model.net, layers=names, only_way=only_way, only_new=True)
    return probe(model.name, model.net, model.transforms, find)


def _known_layer(model: LoadedModel, has_name: bool) -> str | None:
    """The layer that the pyramid of features, the literature or measurements tell; None for other networks."""
    net = model.net
    if isinstance(net, DetectionScores):
        return _below_pyramid(net, "backbone.body")
    if model.task in _DENSE and hasattr(getattr(net, "backbone", None), "return_layers"):
        return _below_pyramid(net, "backbone", model.head)
    for pattern, choose in _DEFAULTS:
        if has_name and re.fullmatch(pattern, model.name):
            return choose(net)
    return None


def layer_per_resolution(loaded: LoadedModel) -> list[str]:
    """Choose one layer per resolution, from the classifier down: near stride 32, near stride 16, ...

    Layers below the classifier are grouped by the power of two nearest to their stride. Each group is represented by
    the last of its outermost modules, or by ``default_layer`` if that is in the group.

    Raises:
        LayerError: no layer below the classifier has a spatial layout.
    """
    default = default_layer(loaded)
    stages: dict[int, list[str]] = {}
    for layer in _below_classifier(loaded.net, layers(loaded)):
        stages.setdefault(round(math.log2(layer.stride)), []).append(layer.name)
    by_stride = [stage for _, stage in sorted(stages.items(), reverse=True)]
    return [default if default in stage else _last_outermost(loaded.net, stage) for stage in by_stride]


def _with_evidence(model: LoadedModel, candidates: SpatialLayers) -> SpatialLayers:
    """Without layers whose cells no probability reaches, such as a last norm if the class token alone is read."""
    tokens = [layer.name for layer in candidates if layer.special]
    if not tokens:
        return candidates

    def find_empty(images: Tensor) -> set[str | None]:
        noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0)).to(images)
        try:
            results = excitation_backprop(model.net, noise, 0, tokens)
        except EbcliError:  # an operation has no rule, or the output has no classes
            return set()
        return {result.layer for result in results if not result.maps.any()}

    empty = probe(model.name, model.net, model.transforms, find_empty)
    return [layer for layer in candidates if layer.name not in empty]


def _below_classifier(net: Module, all_layers: Sequence[Layer]) -> SpatialLayers:
    """The layers below the classifier, which is the last one with weights, that have a spatial layout."""
    end = len(all_layers)
    for index, layer in enumerate(all_layers):
        if isinstance(net.get_submodule(layer.name), _WEIGHT_TYPES):
            end = index
    below = all_layers[:end]
    return [
        SpatialLayer(layer.name, layer.stride, layer.shape, layer.special)
        for layer in below
        if layer.stride is not None
    ]


def _transformer_blocks(net: Module, tokens: SpatialLayers) -> SpatialLayers:
    """The blocks of a vision transformer in order, of the container around most layers; empty for other networks.

    Transformers that reduce their tokens, such as Swin, count as other networks.
    """
    if len({layer.stride for layer in tokens}) != 1:
        return []
    containers: dict[str, SpatialLayers] = {}
    for layer in tokens:
        container = _container_around(net, layer.name)
        if container is not None:
            containers.setdefault(container, []).append(layer)

    def count_layers(container: str) -> int:
        return sum(layer.name.startswith(f"{container}.".lstrip(".")) for layer in tokens)

    # those inside a block, and those that embed patches, are around fewer
    return containers.get(max(containers, key=count_layers, default=""), [])


def _container_around(net: Module, layer: str) -> str | None:
    """The container that a layer is in, or the outermost one if that is in others; None if it is in none."""
    container = None
    while layer:
        layer, _, _ = layer.rpartition(".")
        if not isinstance(net.get_submodule(layer), _CONTAINERS):
            break
        container = layer
    return container


def _first_tokens(model: LoadedModel, candidates: SpatialLayers) -> str | None:
    """The tokens that the first of several blocks reads, with the class token if there is one; else what it returns.

    If only a part of all probability passes there, as in a block without its shortcut, it is what is embedded.
    """
    tokens = [layer for layer in candidates if layer.has_tokens]
    blocks = _transformer_blocks(model.net, tokens)
    if len(blocks) < 2:
        return None
    block = blocks[0]
    before = list(takewhile(lambda layer: not f"{layer.name}.".startswith(f"{block.name}."), candidates))
    alike = [layer for layer in before if layer.shape == block.shape]
    embedded = [layer for layer in before if layer.stride == block.stride and layer not in alike]
    choices = [layer.name for layer in (*reversed(alike), block, *reversed(embedded))]
    chosen = _on_path(model, choices, only_way=True)
    return next((name for name in choices if name in chosen), None)


def _tokens_before_norms(net: Module, all_layers: Sequence[Layer]) -> str | None:
    """What the first norm reads in a vision transformer without containers of blocks, as from a file."""
    if any(isinstance(module, _CONTAINERS) for module in net.modules()):
        return None
    spatial = [layer for layer in all_layers if layer.stride is not None]
    shapes = [layer.shape for layer in spatial if len(layer.shape) == 2]
    if 3 * len(shapes) < len(all_layers):
        return None
    (stream, _count), *_ = Counter(shapes).most_common(1)
    tokens: Layer | None = None
    for layer in all_layers:
        if "Norm" in layer.type:
            break
        if tokens and tokens.shape == stream != layer.shape:  # a norm that is spelled out
            break
        if layer.stride is not None:
            tokens = layer
    return tokens.name if tokens else None


def _last_outermost(net: Module, names: Sequence[str]) -> str:
    if isinstance(net, GraphModule):  # one of operations, of which none is around others
        return names[-1]
    outermost = min(name.count(".") for name in names)
    return next(name for name in reversed(names) if name.count(".") == outermost)


def _below_pyramid(net: Module, body: str, head: str | None = None) -> str:
    """The first features that the heads read: all probability passes through them, but not through later ones.

    A head of a segmentation network has features of its own.
    """
    modules = dict(net.named_modules())
    outputs = getattr(modules.get(body), "return_layers", None)  # of torchvision's IntermediateLayerGetter
    if outputs:
        own_layers = [layer for layer, name in outputs.items() if name == head]
        first = own_layers[0] if own_layers else next(iter(outputs))
        # MobileNet's blocks are numbered; the one that a detector reads first starts the stage of stride 32
        if first.isdecimal() and isinstance(net, DetectionScores):
            first = int(first) - 1
        return f"{body}.{first}"
    features = modules.get("backbone.features")  # of SSD and SSDlite
    if features is None:
        return "backbone"
    if isinstance(features[0], nn.Sequential):
        return "backbone.features.0"
    return "backbone.features"


def _fourth_max_pool(net: Module) -> str:
    return [name for name, module in net.named_modules() if isinstance(module, nn.MaxPool2d)][3]


def _stem(net: Module) -> str:
    """What the first block reads, as torchvision (features.0) and timm (stem, patch_embed) name it."""
    return next(name for name in ("features.0", "stem", "patch_embed") if name in dict(net.named_modules()))


# Publications draw Excitation Backprop at VGG-16's pool4 (features.23) and ResNet's layer3
_DEFAULTS: tuple[tuple[str, Callable[[Module], str]], ...] = (
    (r"(timm/)?vgg\d+[\w.]*", _fourth_max_pool),
    (r"(timm/)?(wide_)?resne(t|xt)\d+[\w.]*", lambda _net: "layer3"),
    # measured on a small trained MC3; later layers blur time
    (r"(r3d|mc3|r2plus1d)_18", lambda _net: "layer2"),
    # on trained networks, later layers have mixed: see docs/evidence.md
    (r"swin3d\w*", lambda _net: "patch_embed"),
    (r"mvit\w*", lambda _net: "pos_encoding"),  # the tokens that the first block reads
    (r"(timm/)?(convnext|swin)(?!v2_cr)[\w.]*", _stem),
)
