"""From a layer's relevance to a map: the sum over channels, in whatever layout the layer has."""

from __future__ import annotations

import math

from torch import Tensor

from ebcli.errors import LayerError


def saliency_map(relevance: Tensor, input_shape: tuple[int, ...], *, layer: str | None = None) -> Tensor:
    """Sum relevance (B, C, H, W) over its channels: (B, H, W), unclamped.

    Args:
        relevance: a layer's relevance.
        input_shape: of the network's input, (B, 3, H_in, W_in), which tells layouts apart.
        layer: the layer's name, for messages.

    Raises:
        LayerError: the layout has no spatial extent.
    """
    if relevance.ndim == 4:
        return relevance.sum(1)
    what = "the input" if layer is None else f"layer {layer!r}"
    raise LayerError(
        f"{what} has no spatial extent: its output has shape {tuple(relevance.shape)} ({math.prod(input_shape)})"
    )
