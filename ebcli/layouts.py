"""How values of networks are laid out: which axes hold channels, and which elements are cells of a map."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import Module

from ebcli.errors import LayerError

Shape = tuple[int, ...]

OF_INPUT = "input:"  # before the name of one of several inputs, as a layer
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


@dataclass(frozen=True)
class Layout:
    """Where a layer's output, with the images first, holds the cells of its map.

    Attributes:
        axes: of the output, one for each axis of the map; one alone if it holds tokens.
        grid: the shape of the map.
        tokens: the token of each cell, row by row; None if the axes are those of the map.
        special: how many tokens are no cells, such as a class token and registers.
        mirrored: the axes of the map along which the output holds the cells from the last one to the first.
    """

    axes: Shape
    grid: Shape
    tokens: Shape | None = None
    special: int = 0
    mirrored: Shape = ()

    def sum_channels(self, relevance: Tensor) -> Tensor:
        """The map (B, *grid) of relevance (B, ...)."""
        moved = relevance.movedim(self.axes, [*range(1, 1 + len(self.axes))])
        cells = moved.reshape(*moved.shape[: 1 + len(self.axes)], -1).sum(-1)
        if self.tokens is not None:
            return cells[:, list(self.tokens)].unflatten(1, self.grid)
        return cells.flip([1 + axis for axis in self.mirrored])


def saliency_map(
    relevance: Tensor, *, layer: str | None, channel_axis: int | None, layout: Layout | None
) -> Tensor:
    """Sum relevance over channels, unclamped.

    Args:
        relevance: (B, ...), of a layer's output with the images first.
        layer: the layer's name; None for the input, and ``"input:NAME"`` for another one.
        channel_axis: an input's axis of channels; None if it is unknown.
        layout: of the layer's output; None if it holds no cells, or is an input.

    Raises:
        LayerError: the layer has no spatial dimensions, or it is an input and `channel_axis` is None.
    """
    if not is_input(layer):
        if layout is None:
            raise without_map(tuple(relevance.shape), layer)
        return layout.sum_channels(relevance)
    if relevance.ndim < 3:
        raise without_map(tuple(relevance.shape), layer)
    if channel_axis is None:
        shape = tuple(relevance.shape)
        raise LayerError(f"which axis of the input {shape} has channels is unknown: sum `relevance` over it")
    return relevance.sum(channel_axis)


def is_input(layer: str | None) -> bool:
    """Whether a layer is an input of the network: the picture, which is None, or another one."""
    return layer is None or layer.startswith(OF_INPUT)


def without_map(shape: Shape, layer: str | None) -> LayerError:
    """The error of a layer whose output, with the images first, holds no cells."""
    what = "the input" if layer is None else f"layer {layer!r}"
    return LayerError(
        f"{what} has no spatial dimensions that follow those of the input (output shape {shape[1:]}): "
        "choose a layer whose output has height and width"
    )


def extent_of(input_shape: Shape, channel_axis: int | None) -> Shape:
    """The input's (L,), (H, W) or (T, H, W)."""
    axis = 1 if channel_axis is None else channel_axis
    return input_shape[1:axis] + input_shape[axis + 1 :]


def layout_by_shape(shape: Shape, extent: Shape) -> Layout | None:
    """The layout that the shape of a layer's output suggests; None if it has no spatial dimensions.

    ====================  =========================  ===============
    input                 output                     map
    ====================  =========================  ===============
    (B, C, L)             (B, c, l)                  (B, l)
    (B, C, H, W)          (B, c, h, w)               (B, h, w)
    (B, C, H, W)          (B, h, w, c), as in Swin   (B, h, w)
    (B, C, H, W)          (B, h w, c), tokens        (B, h, w)
    (B, C, H, W)          (B, n + h w, c), as in ViT (B, h, w)
    (B, C, T, H, W)       the same with t before h   (B, t, h, w)
    ====================  =========================  ===============

    The grid has the input's aspect ratio, which tells where the channels are. Special tokens are at the front (n of
    them: class token, distillation token, registers).

    Args:
        shape: of the output, with the images first.
        extent: the input's (L,), (H, W) or (T, H, W).
    """
    count = len(shape) - 2
    first, last = shape[2:], shape[1:-1]
    if count == len(extent) and math.prod(first) > 1:
        if len(extent) > 1 and fits(last, extent) and not fits(first, extent):
            return Layout(tuple(range(1, 1 + count)), last)
        return Layout(tuple(range(2, 2 + count)), first)
    if count == 1 and len(extent) > 1:
        special, grid = token_grid(shape[1], extent)
        if grid is not None:
            return Layout((1,), grid, tuple(range(special, shape[1])), special)
    return None


def is_told_by_shape(shape: Shape, extent: Shape) -> bool:
    """Whether the shape of a layer's output leaves no doubt that the axes of its map are behind that of channels."""
    if not 1 < len(extent) == len(shape) - 2:
        return False
    return fits(shape[2:], extent) and not fits(shape[1:-1], extent)


def is_ambiguous(shape: Shape, extent: Shape) -> bool:
    """Whether a layer's output may have its channels first or last."""
    return len(extent) == len(shape) - 2 > 1 and fits(shape[2:], extent) and fits(shape[1:-1], extent)


def modules_of(net: Module, kinds: Any) -> list[Any]:
    """The modules of a network that are of a class, or of one of several."""
    return [module for module in net.modules() if isinstance(module, kinds)]


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


def fits(grid: Shape, extent: Shape) -> bool:
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
