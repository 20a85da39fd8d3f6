"""Maps for the metrics of Quantus."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from ebcli.drawing.overlay import heatmap
from ebcli.eb import excitation_backprop
from ebcli.models import default_layer
from ebcli.nouns.explanation import Box


def quantus_explain(
    model: nn.Module,
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    layer: str | nn.Module | None = None,
    contrastive: bool = True,
    device: Any = None,
    **_others: Any,
) -> NDArray[np.float32]:
    """Maps as Quantus' ``explain_func`` returns them: the positive parts at the size of the inputs, (B, 1, H, W).

    Args:
        model: the network.
        inputs: (B, C, H, W), preprocessed.
        targets: class indices (B,).
        layer: the layer of the maps, a module or its name; None for the default layer.
        contrastive: contrastive maps; marginal ones if False.
        device: where the inputs go; None for the network's own device.

    Examples:
        >>> import ebcli, torch
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(8 * 36, 10))
        >>> ebcli.quantus_explain(net, torch.rand(2, 3, 8, 8).numpy(), [4, 7], layer="1").shape
        (2, 1, 8, 8)
    """
    parameter = next(model.parameters(), torch.empty(0))
    images = torch.as_tensor(np.asarray(inputs)).to(device or parameter.device, parameter.dtype)
    height, width = images.shape[-2:]
    chosen = default_layer(model, (height, width)) if layer is None else layer
    found = excitation_backprop(model, images, np.asarray(targets).tolist(), chosen, contrastive=contrastive)
    maps, whole = found.maps.float().cpu().numpy(), Box(0, 0, width, height)
    return np.stack([heatmap(one, whole, (width, height), signed=False)[None] for one in maps])
