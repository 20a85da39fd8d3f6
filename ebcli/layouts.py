"""How values of networks are laid out: which axes hold channels, and which elements are cells of a map."""

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import Module

from ebcli.errors import LayerError

Shape = tuple[int, ...]
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


def saliency_map(
    relevance: Tensor, input_shape: Shape, *, layer: str | None = None, channel_axis: int | None = 1
) -> Tensor:
    """Sum a layer's relevance over its channels, unclamped.

    ====================  =========================  ===============
    input                 relevance                  map
    ====================  =========================  ===============
    (B, C, L)             (B, c, l)                  (B, l)
    (B, C, H, W)          (B, c, h, w)               (B, h, w)
    (B, C, H, W)          (B, h, w, c), as in Swin   (B, h, w)
    (B, C, H, W)          (B, h w, c), tokens        (B, h, w)
    (B, C, H, W)          (B, n + h w, c), as in ViT (B, h, w)
    (B, C, T, H, W)       the same with t before h   (B, t, h, w)
    ====================  =========================  ===============

    The grid has the input's aspect ratio, which tells where the channels are. Special tokens at the front (n of
    them: class token, distillation token, registers) are dropped.

    Args:
        relevance: a layer's relevance.
        input_shape: the shape of the network's input.
        layer: the layer's name; None for the input.
        channel_axis: the input's axis of channels, see `channel_axis_of`.

    Raises:
        LayerError: the layer has no spatial dimensions, or it is the input and `channel_axis` is None.
    """
    axis = 1 if channel_axis is None else channel_axis
    extent = input_shape[1:axis] + input_shape[axis + 1 :]
    shape = tuple(relevance.shape[1:])
    if layer is None and shape == input_shape[1:] and extent:
        if channel_axis is None:
            raise LayerError(f"which axis of the input {input_shape} has channels is unknown: sum `relevance` over it")
        return relevance.sum(axis)
    first = shape[1:]
    last = shape[:-1]
    if len(first) == len(extent) and math.prod(first) > 1:
        is_last = len(extent) > 1 and _fits(last, extent) and not _fits(first, extent)
        return relevance.sum(-1 if is_last else 1)
    if len(first) == 1 < len(extent):
        special, grid = token_grid(shape[0], extent)
        if grid is not None:
            return relevance[:, special:].sum(2).unflatten(1, grid)
    name = "the input" if layer is None else f"layer {layer!r}"
    problem = f"{name} has no spatial dimensions (output shape {shape})"
    raise LayerError(f"{problem}: choose a layer whose output has height and width")


def modules_of(net: Module, kinds: Any) -> list[Any]:
    """The modules of a network that are of a class, or of one of several."""
    return [module for module in net.modules() if isinstance(module, kinds)]


def channel_axis_of(net: Module, inputs: Tensor) -> int | None:
    """The axis of a network's inputs that holds the channels, told by its first layer; None if that does not tell.

    That is axis 1 of images and videos (B, C, ...), axis 2 of videos (B, T, C, H, W) whose frames a 2-D convolution
    reads, and the last axis of tokens (B, T, C) that a linear layer reads.
    """
    first = next(iter(modules_of(net, (nn.Linear, *CONVOLUTIONS))), None)
    if isinstance(first, nn.Linear) and inputs.shape[-1] == first.in_features:
        return inputs.ndim - 1
    if isinstance(first, CONVOLUTIONS):
        axes = [axis for axis in range(1, inputs.ndim) if inputs.shape[axis] == first.in_channels]
        if 1 in axes and inputs.ndim == first.weight.ndim:
            return 1
        if len(axes) != 1:
            return None
        return axes[0]
    return 1 if inputs.ndim > 3 else None


def special_tokens(layer_shape: Shape, input_shape: Shape, image_axis: int = 0) -> int:
    """How many tokens at the front of a layer's output (B, tokens, c) are not cells of its map; 0 for other layouts.

    Args:
        layer_shape: of the layer's output.
        input_shape: of the network's input.
        image_axis: the axis of images of the layer's output.
    """
    if len(layer_shape) != 3 or len(input_shape) < 4 or image_axis > 1:
        return 0
    return token_grid(layer_shape[1 - image_axis], input_shape[2:])[0]


def token_grid(tokens: int, extent: Shape) -> tuple[int, Shape | None]:
    """The number of special tokens at the front and the grid of the others; None if they form no grid.

    Of several possible grids, the one with the fewest special tokens is used: 197 tokens are 1 + 14 x 14, and 261,
    with 4 registers, are 5 + 16 x 16.

    Args:
        tokens: their number.
        extent: the input's (H, W) or (T, H, W).
    """
    for special in range(10):  # at most a class token and eight registers
        shape = _grid(tokens - special, extent)
        # a tiny grid with many special tokens is unlikely to be one
        if shape is not None and (special < 2 or math.prod(shape) >= 3 * special):
            return special, shape
    return 0, None


def _fits(grid: Shape, extent: Shape) -> bool:
    """Whether height and width shrank by the same factor, up to rounding."""
    height, width = grid[-2:]
    full_height, full_width = extent[-2:]
    return abs(height - width * full_height / full_width) <= max(1, full_height / full_width)


def _grid(tokens: int, extent: Shape) -> Shape | None:
    """The grid (h, w) or (t, h, w) of square patches with that many cells; the finest in time."""
    *frames, height, width = extent
    grids = set()
    for side in range(1, max(height, width) + 1):
        grids.add((height // side, width // side))
        grids.add((math.ceil(height / side), math.ceil(width / side)))
    for t in range(math.prod(frames), 0, -1):
        for h, w in sorted(grids):
            if t * h * w == tokens > t:
                return (t, h, w) if frames else (h, w)
    return None
