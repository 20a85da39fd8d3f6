"""How a network's answer changes while an image is taken away or put in, pixel by pixel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_AT_ONCE = 8  # images; larger batches are no quicker on processors


def perturbation_curve(
    score: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    saliency: ArrayLike,
    steps: int = 32,
    generator: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """What a network says while one image turns into another, the pixels of the largest map values first.

    *Deletion* goes from the image to one without its content, *insertion* the other way round (Petsiuk et al.,
    RISE, BMVC 2018). ``area_under`` sums a curve up: small is good for deletion, large for insertion.

    Args:
        score: images (N, C, H, W) to one number each, (N,).
        start: the first image, (C, H, W).
        end: the last one, (C, H, W).
        saliency: (H, W), signed or not; one with values that are not finite says nothing, as a constant one.
        steps: in how many equal parts the pixels are exchanged, at least 1.
        generator: decides on the order of equal values; None for the same each time.

    Returns:
        (steps + 1,): the scores, from that of ``start`` to that of ``end``.
    """
    values = np.asarray(saliency, dtype=np.float64).ravel()
    if not np.isfinite(values).all():
        values = np.zeros_like(values)
    ties = (generator or np.random.default_rng(0)).permutation(len(values))
    place = np.empty(len(values), dtype=np.int64)
    place[np.lexsort((ties, -values))] = np.arange(len(values))
    places = torch.from_numpy(place).reshape(start.shape[1:]).to(start.device)
    counts = [round(len(values) * step / steps) for step in range(steps + 1)]
    scores = []
    with torch.no_grad():
        for first in range(0, steps + 1, _AT_ONCE):
            images = [torch.where(places < count, end, start) for count in counts[first : first + _AT_ONCE]]
            scores.append(score(torch.stack(images)).double().cpu().numpy())
    return np.concatenate(scores)
