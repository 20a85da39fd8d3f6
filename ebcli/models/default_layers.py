"""The layer whose map is drawn if none is asked for, and one layer per resolution."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from torch import nn
from torch.fx import GraphModule

from ebcli.eb import layers_on_path
from ebcli.errors import LayerError
from ebcli.models.detection import DetectionScores
from ebcli.models.keywords import DETECTION, SEGMENTATION
from ebcli.models.layer_listing import Layer, as_loaded, layers
from ebcli.models.loaded import LoadedModel
from ebcli.models.probe import probe

# Stride 16 plus a quarter: unpadded layers lose border cells, so AlexNet's 13 x 13 cells of stride 16 appear to have
# stride 224 / 13 = 17.2. No layer of stride 32 appears that low.
MAX_STRIDE = 16 * 1.25

# A side of the map: with fewer cells, the maps of small images would be a few blocks
LEAST_CELLS = 9

_WEIGHTED = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d


def default_layer(model: LoadedModel | nn.Module, input_size: int | tuple[int, ...] | None = None) -> str:
    """Choose the layer for maps: the literature's choice, the best one measured, or the deepest of about stride 16.

    Of the layers below the classifier with the largest stride up to ``MAX_STRIDE`` that have ``LEAST_CELLS`` a side, it
    is the last one of the outermost modules: ``features.5`` rather than ``features.6.0.block.0``, which is only part of
    the next stage. For vision transformers, Swin and ConvNeXt, whose blocks mix distant cells, it is what the first
    block reads. Of detectors, segmentation networks and ONNX files, only layers count that all probability passes
    through: pyramids of features read several, and so do residual sums.

    Args:
        model: the model, or a network, of which neither literature nor measurements are known.
        input_size: see `layers`.

    Raises:
        ConfigurationError: the network does not accept images of that size.
        LayerError: no layer below the classifier has a spatial layout.

    Examples:
        >>> import ebcli
        >>> ebcli.default_layer(ebcli.load_model())
        'features.11'
        >>> ebcli.default_layer(ebcli.load_model("resnet18", weights="none"))
        'layer3'
    """
    is_loaded, model = isinstance(model, LoadedModel), as_loaded(model, input_size)
    net, task, spec = model.net, model.task, model.transforms
    if isinstance(net, DetectionScores):
        return _below_pyramid(net, "backbone.body")
    if task == SEGMENTATION and hasattr(getattr(net, "backbone", None), "return_layers"):
        return _below_pyramid(net, "backbone")
    for pattern, choose in _SETTLED:
        if is_loaded and pattern.fullmatch(model.name):
            return choose(net)
    listed = layers(model)
    below = _below_classifier(net, listed)
    if not below:
        raise LayerError(f"{model.name} has no layer with a spatial layout below its classifier")
    if task == DETECTION:  # tokens may be queries
        below = [layer for layer in below if len(layer[2]) > 2] or below
    blocks = _transformer_blocks(net, below)
    if len(blocks) > 1:
        return _first_tokens(blocks[0], below)
    is_flat = not any(isinstance(one, (nn.Sequential, nn.ModuleList)) for one in net.modules())
    if is_flat and (tokens := _tokens_before_norms(listed)):
        return tokens
    side = min(spec.shape[-2:])
    if task == SEGMENTATION:  # above the coarsest features, each cell is explained by itself
        coarsest = max(stride for _, stride, _ in below)
        stage = min((layer for layer, stride, _ in below if stride == coarsest), key=lambda layer: layer.count("."))
        below = list(takewhile(lambda layer: layer[0] != stage, below)) or below
    if task in (DETECTION, SEGMENTATION) or isinstance(net, GraphModule):
        only = partial(layers_on_path, net, layers=[name for name, *_ in below], only_way=True)
        shared = probe(model.name, net, spec, only)
        below = [layer for layer in below if layer[0] in shared] or below
    strides = [stride for _, stride, _ in below]
    chosen = max((one for one in strides if one <= min(MAX_STRIDE, side / LEAST_CELLS)), default=min(strides))
    return _last_outermost(net, [name for name, stride, _ in below if stride == chosen])


def layer_per_resolution(loaded: LoadedModel) -> list[str]:
    """Choose one layer per resolution, from the classifier down: near stride 32, near stride 16, ...

    Layers below the classifier are grouped by the power of two nearest to their stride. Each group is represented by
    the last of its outermost modules, or by ``default_layer`` if that is in the group.

    Raises:
        LayerError: no layer below the classifier has a spatial layout.
    """
    default = default_layer(loaded)
    stages: dict[int, list[str]] = {}
    for name, stride, _ in _below_classifier(loaded.net, layers(loaded)):
        stages.setdefault(round(math.log2(stride)), []).append(name)
    return [
        default if default in stage else _last_outermost(loaded.net, stage)
        for _, stage in sorted(stages.items(), reverse=True)
    ]


def _below_classifier(net: nn.Module, listed: Sequence[Layer]) -> list[tuple[str, float, tuple[int, ...]]]:
    """Names, strides and shapes of the layers below the classifier that have a spatial layout."""
    weighted = [i for i, layer in enumerate(listed) if isinstance(net.get_submodule(layer.name), _WEIGHTED)]
    below = listed[: weighted[-1]] if weighted else listed
    return [(layer.name, layer.stride, layer.shape) for layer in below if layer.stride is not None]


def _transformer_blocks(net: nn.Module, below: Sequence[tuple[str, float, tuple[int, ...]]]) -> list[str]:
    """The blocks of a vision transformer in order, taken from its outermost container; empty for other networks.

    Transformers that reduce their tokens, such as Swin, count as other networks.
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


def _first_tokens(block: str, below: Sequence[tuple[str, float, tuple[int, ...]]]) -> str:
    """The tokens that the first block reads, with the class token if there is one; else what the block returns."""
    tokens = [(name, shape) for name, _, shape in below if len(shape) == 2]
    start = next(i for i, (name, _) in enumerate(tokens) if name == block or name.startswith(f"{block}."))
    (shape,) = {shape for name, shape in tokens if name == block}
    before = [name for name, found in tokens[:start] if found == shape]
    return before[-1] if before else block


def _tokens_before_norms(listed: Sequence[Layer]) -> str | None:
    """What the first norm reads in a vision transformer without containers of blocks, as from a file."""
    tokens = Counter(layer.shape for layer in listed if len(layer.shape) == 2 and layer.stride is not None)
    if 3 * sum(tokens.values()) < len(listed):
        return None
    stream = max(tokens, key=lambda shape: tokens[shape])
    last: Layer | None = None
    for layer in listed:
        if "Norm" in layer.type or (last and last.shape == stream != layer.shape):  # norms may be spelled out
            break
        if layer.stride is not None:
            last = layer
    return last.name if last else None


def _last_outermost(net: nn.Module, names: Sequence[str]) -> str:
    if isinstance(net, GraphModule):  # one of operations, of which none is around others
        return names[-1]
    outermost = min(name.count(".") for name in names)
    return next(name for name in reversed(names) if name.count(".") == outermost)


def _below_pyramid(net: nn.Module, body: str) -> str:
    """The first features that the heads read: all probability passes through them, but not through later ones."""
    modules = dict(net.named_modules())
    returned = getattr(modules.get(body), "return_layers", None)  # of torchvision's IntermediateLayerGetter
    if returned:
        first = next(iter(returned))
        # MobileNet's blocks are numbered; the one that a detector reads first starts the stage of stride 32
        is_coarse = first.isdecimal() and isinstance(net, DetectionScores)
        return f"{body}.{int(first) - 1 if is_coarse else first}"
    features = modules.get("backbone.features")  # of SSD and SSDlite
    if features is None:
        return "backbone"
    return "backbone.features.0" if isinstance(features[0], nn.Sequential) else "backbone.features"


def _fourth_max_pool(net: nn.Module) -> str:
    return [name for name, module in net.named_modules() if isinstance(module, nn.MaxPool2d)][3]


def _stem(net: nn.Module) -> str:
    """What the first block reads, as torchvision (features.0) and timm (stem, patch_embed) name it."""
    return next(name for name in ("features.0", "stem", "patch_embed") if name in dict(net.named_modules()))


# Publications draw Excitation Backprop at VGG-16's pool4 (features.23) and ResNet's layer3
_SETTLED: tuple[tuple[re.Pattern[str], Callable[[nn.Module], str]], ...] = (
    (re.compile(r"(timm/)?vgg\d+[\w.]*"), _fourth_max_pool),
    (re.compile(r"(timm/)?(wide_)?resne(t|xt)\d+[\w.]*"), lambda _net: "layer3"),
    # measured on a small trained MC3; later layers blur time
    (re.compile(r"(r3d|mc3|r2plus1d)_18"), lambda _net: "layer2"),
    # on trained networks, later layers have mixed: see docs/evidence.md
    (re.compile(r"swin3d\w*"), lambda _net: "patch_embed"),
    (re.compile(r"mvit\w*"), lambda _net: "pos_encoding"),  # the tokens that the first block reads
    (re.compile(r"(timm/)?(convnext|swin)(?!v2_cr)[\w.]*"), _stem),
)
