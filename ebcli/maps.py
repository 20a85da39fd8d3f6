"""From a layer's relevance to a map: the sum over channels, in whatever layout the layer keeps them."""

from __future__ import annotations

import math

from torch import Tensor

from ebcli.errors import LayerError


def saliency_map(relevance: Tensor, input_shape: tuple[int, ...], *, layer: str | None = None) -> Tensor:
    """Sum a layer's relevance over its channels, unclamped.

    ====================  =========================  ===============
    input                 relevance                  map
    ====================  =========================  ===============
    (B, C, L)             (B, c, l)                  (B, l)
    (B, C, H, W)          (B, c, h, w)               (B, h, w)
    (B, C, H, W)          (B, h, w, c), as in Swin   (B, h, w)
    (B, C, H, W)          (B, h w, c), tokens        (B, h, w)
    (B, C, H, W)          (B, 1 + h w, c), as in ViT (B, h, w)
    (B, C, T, H, W)       the same with t before h   (B, t, h, w)
    ====================  =========================  ===============

    Where channels are is told by the input's proportions, which a grid shares. A class token is dropped.

    Args:
        relevance: a layer's relevance.
        input_shape: the shape of the network's input.
        layer: the layer's name, for messages.

    Raises:
        LayerError: the layer has no spatial extent.
    """
    extent = input_shape[2:]
    grid = relevance.ndim - 2
    if grid == len(extent):
        first, last = relevance.shape[2:], relevance.shape[1:-1]
        if math.prod(first) > 1:
            return relevance.sum(-1 if _fits(last, extent) and not _fits(first, extent) else 1)
    elif grid == 1 and len(extent) > 1:
        tokens = relevance.shape[1]
        for special in (0, 1):  # with one special token, it is the class token, in front
            shape = _grid(tokens - special, extent)
            if shape is not None:
                return relevance[:, special:].sum(2).unflatten(1, shape)
    what = "the input" if layer is None else f"layer {layer!r}"
    raise LayerError(
        f"{what} has no spatial extent, its output has shape {tuple(relevance.shape[1:])}: "
        "choose a layer whose output has height and width"
    )


def _fits(grid: tuple[int, ...], extent: tuple[int, ...]) -> bool:
    """Whether there are height and width, and they shrank alike, to within an element of rounding."""
    if len(grid) < 2:
        return False
    (height, width), (full_height, full_width) = grid[-2:], extent[-2:]
    return abs(height - width * full_height / full_width) <= max(1, full_height / full_width)


def _grid(tokens: int, extent: tuple[int, ...]) -> tuple[int, ...] | None:
    """The (h, w) or (t, h, w) of so many cells that square patches cut from the input; the finest in time."""
    height, width = extent[-2:]
    patches = {(height // side, width // side) for side in range(1, min(height, width) + 1)}
    patches |= {(-(-height // side), -(-width // side)) for side in range(1, max(height, width) + 1)}
    for t in range(extent[0], 0, -1) if len(extent) == 3 else [1]:
        for h, w in sorted(patches):
            if t * h * w == tokens > t:
                return (t, h, w) if len(extent) == 3 else (h, w)
    return None
