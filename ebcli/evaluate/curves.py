"""How a network's score changes as pixels of an image are replaced."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ebcli.drawing.ranks import ranks

_BATCH = 8  # images; larger batches are no faster on CPUs


def perturbation_curve(
    score: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    saliency: ArrayLike,
    steps: int = 32,
    generator: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Scores of a network while one image turns into another, pixels with the highest map values first.

    *Deletion* goes from the image to a baseline, *insertion* the other way (Petsiuk et al., RISE, BMVC 2018).
    ``area_under`` summarizes a curve: small is good for deletion, large for insertion.

    Args:
        score: maps images (N, C, H, W) to scores (N,).
        start: the first image, (C, H, W).
        end: the last image, (C, H, W).
        saliency: map (H, W), signed or not; a map with NaN or infinity counts as constant.
        steps: number of equal steps, at least 1.
        generator: orders equal values; None for a fixed order.

    Returns:
        Scores (steps + 1,), from that of ``start`` to that of ``end``.
    """
    order = torch.from_numpy(ranks(saliency, generator)).to(start.device)
    counts = [round(order.numel() * step / steps) for step in range(steps + 1)]
    scores = []
    with torch.no_grad():
        for first in range(0, steps + 1, _BATCH):
            images = [torch.where(order < count, end, start) for count in counts[first : first + _BATCH]]
            scores.append(score(torch.stack(images)).double().cpu().numpy())
    return np.concatenate(scores)
