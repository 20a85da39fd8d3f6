"""The layers of a network: what they give, at which stride, and which one to draw a map at."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.eb import layers_on_path
from ebcli.eb.maps import token_grid
from ebcli.errors import LayerError, closest
from ebcli.models.checkpoint import first_line
from ebcli.models.loading import LoadedModel

# Stride 16, and up to a quarter more: unpadded layers lose border cells, so that AlexNet's 13 x 13 cells of
# stride 16 seem to have stride 224 / 13 = 17.2. Nothing of stride 32 comes that low.
MAX_STRIDE = 16 * 1.25

# Two blank images tell an image's outputs from what is the same for all: the position tables of Swin v2
# go through modules too, and look like maps
BATCH = 2


@dataclass(frozen=True)
class Layer:
    """One module of a network, as one forward pass found it.

    Attributes:
        name: its name in ``named_modules()``.
        type: its class.
        shape: its output's shape without the batch: (C, H, W), (H, W, C), (N, C) or other.
        stride: input side over output side, in pixels a cell; None where the output has no spatial layout.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    stride: float | None


def layers(loaded: LoadedModel, input_size: int | tuple[int, int] | None = None) -> list[Layer]:
    """The layers of a network in the order in which their outputs come to be.

    A block stands after the modules inside it. Only modules that are called exactly once, on something of the
    image, and return a single tensor are listed: no others have one map. What makes gates, or queries and keys, such
    as the inside of a squeeze-excitation, is left out: it gets no probability.

    Args:
        loaded: the network.
        input_size: side or (height, width) of the input in pixels; None for its preprocessing's crop.

    Raises:
        LayerError: the network takes no input of that size.

    Examples:
        >>> import ebcli
        >>> found = {layer.name: layer for layer in ebcli.layers(ebcli.load_model())}
        >>> found["features.11"].shape, found["features.11"].stride
        ((112, 14, 14), 16.0)
    """
    if input_size is None:
        input_size = loaded.transforms.crop_size[0]
    height, width = (input_size, input_size) if isinstance(input_size, int) else input_size
    found = []
    for name, module, output in _forward(loaded, height, width):
        shape, stride = tuple(output.shape[1:]), None
        if len(output) == BATCH:  # windows of an image stacked along the batch are no map of it
            stride = _stride(shape, height, width)
        found.append(Layer(name, type(module).__name__, shape, stride))
    return found


def default_layer(loaded: LoadedModel) -> str:
    """The layer whose map says most: the literature's choice, or the deepest of stride 16 or so.

    Among the layers below the classifier it takes those of the largest stride up to ``MAX_STRIDE``, of these
    the outermost modules (``features.5`` rather than ``features.6.0.block.0``, which is only a part of the
    next stage), and of these the last. Of a vision transformer, whose tokens keep one resolution, it takes the last
    block but one.

    Raises:
        LayerError: no layer below the classifier has a spatial layout.

    Examples:
        >>> import ebcli
        >>> ebcli.default_layer(ebcli.load_model())
        'features.11'
        >>> ebcli.default_layer(ebcli.load_model("resnet18", weights="none"))
        'layer3'
    """
    for pattern, choose in _SETTLED:
        if pattern.fullmatch(loaded.name):
            return choose(loaded.net)
    below = _with_stride(loaded)
    if not below:
        raise LayerError(f"{loaded.name} has no layer with a spatial layout below its classifier")
    blocks = _transformer_blocks(loaded.net, below)
    if len(blocks) > 1:
        # after the last one only the class token counts; one before, attention still spreads it
        return blocks[-2]
    strides = [stride for _, stride, _ in below]
    # Where every layer is coarser, the finest will have to do
    chosen = max((stride for stride in strides if stride <= MAX_STRIDE), default=min(strides))
    return _last_outermost([name for name, stride, _ in below if stride == chosen])


def layer_per_resolution(loaded: LoadedModel) -> list[str]:
    """One layer for each resolution, from the classifier's side down: of all near stride 32, of those near 16, ...

    Of the layers below the classifier whose strides are nearest to the same power of two, it takes the last of the
    outermost modules; ``default_layer`` stands for its own resolution.

    Raises:
        LayerError: no layer below the classifier has a spatial layout.
    """
    default = default_layer(loaded)
    stages: dict[int, list[str]] = {}
    for name, stride, _ in _with_stride(loaded):
        stages.setdefault(round(math.log2(stride)), []).append(name)
    return [
        default if default in stage else _last_outermost(stage) for _, stage in sorted(stages.items(), reverse=True)
    ]


def resolve_layer(loaded: LoadedModel, name: str) -> str:
    """The name itself, if the network has such a module.

    Raises:
        LayerError: it has none; the message gives the closest names.
    """
    names = [known for known, _ in loaded.net.named_modules() if known]
    if name not in names:
        hint = closest(name, names) or f"its modules start with {', '.join(names[:3])}, and --list-layers lists all"
        raise LayerError(f"{loaded.name} has no layer {name!r}: {hint}")
    return name


def _forward(loaded: LoadedModel, height: int, width: int) -> list[tuple[str, nn.Module, Tensor]]:
    """Name, module and output of each module called once with one tensor as its result, in order of result.

    The outputs are on the meta device: shapes without data. The network is left as it was found.
    """
    net = loaded.net
    outputs: list[tuple[str, nn.Module, Any]] = []
    calls: dict[str, int] = {}

    def record(name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        calls[name] = calls.get(name, 0) + 1
        outputs.append((name, module, output.to("meta") if isinstance(output, Tensor) else None))

    parameter = next(net.parameters())
    images = torch.zeros(BATCH, 3, height, width, device=parameter.device, dtype=parameter.dtype)
    training = [(module, module.training) for module in net.modules()]
    handles = [module.register_forward_hook(partial(record, name)) for name, module in net.named_modules() if name]
    try:
        net.eval()  # or batch normalisation would take the blank images into its statistics
        with torch.no_grad():
            net(images)
    except (RuntimeError, AssertionError) as error:
        raise LayerError(f"{loaded.name} takes no input of {height} x {width} pixels: {first_line(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
        for module, flag in training:
            module.training = flag
    found = [
        (name, module, output)
        for name, module, output in outputs
        if calls[name] == 1 and output is not None and output.ndim > 1 and len(output) % BATCH == 0
    ]
    carrying = set(layers_on_path(net, images, [name for name, _, _ in found]))
    return [(name, module, output) for name, module, output in found if name in carrying]


def _stride(shape: tuple[int, ...], height: int, width: int) -> float | None:
    """Input side over output side for (C, H, W), (H, W, C) and (N, C) with or without special tokens."""
    grids: list[tuple[int, ...]]
    if len(shape) == 3:
        grids = [shape[1:], shape[:2]]
    elif len(shape) == 2:
        _, grid = token_grid(shape[0], (height, width))
        grids = [] if grid is None else [grid[-2:]]
    else:
        return None
    for rows, columns in grids:
        if rows * columns == 1 or rows > height or columns > width:
            continue  # one cell has no place
        # Rounding at the border can cost the longer side a cell
        if abs(columns - width * rows / height) < 1:
            return height / rows
    return None


def _with_stride(loaded: LoadedModel) -> list[tuple[str, float, tuple[int, ...]]]:
    """Names, strides and shapes of the layers below the classifier that have a spatial layout."""
    modules = dict(loaded.net.named_modules())
    listed = layers(loaded)
    weighted = [i for i, layer in enumerate(listed) if _is_weighted(modules[layer.name])]
    below = listed[: weighted[-1]] if weighted else listed
    return [(layer.name, layer.stride, layer.shape) for layer in below if layer.stride is not None]


def _transformer_blocks(net: nn.Module, below: Sequence[tuple[str, float, tuple[int, ...]]]) -> list[str]:
    """The blocks of a vision transformer, in order: what is listed one after the other in its outermost container.

    None for other networks, those whose tokens become fewer among them, such as Swin.
    """
    tokens = [(name, stride) for name, stride, shape in below if len(shape) == 2]
    if len({stride for _, stride in tokens}) != 1:
        return []
    containers: dict[str, list[str]] = {}
    for name, _ in tokens:
        parent = name.rpartition(".")[0]
        if isinstance(net.get_submodule(parent), (nn.Sequential, nn.ModuleList)):
            containers.setdefault(parent, []).append(name)
    return min(containers.values(), key=lambda blocks: blocks[0].count("."), default=[])


def _last_outermost(names: Sequence[str]) -> str:
    outermost = min(name.count(".") for name in names)
    return next(name for name in reversed(names) if name.count(".") == outermost)


def _is_weighted(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def _fourth_max_pool(net: nn.Module) -> str:
    return [name for name, module in net.named_modules() if isinstance(module, nn.MaxPool2d)][3]


# VGG-16's pool4 (features.23) and ResNet's layer3 are where Excitation Backprop is usually drawn
_SETTLED: tuple[tuple[re.Pattern[str], Callable[[nn.Module], str]], ...] = (
    (re.compile(r"(timm/)?vgg\d+[\w.]*"), _fourth_max_pool),
    (re.compile(r"(timm/)?(wide_)?resne(t|xt)\d+[\w.]*"), lambda _net: "layer3"),
)
