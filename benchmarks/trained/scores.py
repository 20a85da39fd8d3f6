"""How well maps find the object that was asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .pictures import SIDE


@dataclass(frozen=True)
class Score:
    """Means over all questions.

    Attributes:
        share: of the map's positive part in the asked object's half; 0 for a blank map.
        box: of it in the object's box.
        hits: how often the maximum of the map, resized to the picture, lies in the object's box.
        blank: how often nothing in the map is above 0.
    """

    share: float
    box: float
    hits: float
    blank: float


def score(maps: Tensor, boxes: Tensor, counted: Tensor | None = None) -> Score:
    """The score of maps (B, 2, H, W), asked for the left and for the right object, whose boxes are (B, 2, 4).

    Args:
        maps: (B, 2, H, W).
        boxes: (B, 2, 4), in pixels.
        counted: (B, 2), which of the questions count; None for all.
    """
    counted = torch.ones(maps.shape[:2], dtype=torch.bool) if counted is None else counted
    positive = maps.nan_to_num().clamp(min=0)
    total = positive.sum((2, 3))
    left = positive[..., : maps.shape[3] // 2].sum((2, 3))
    in_half = torch.stack([left[:, 0], total[:, 1] - left[:, 1]], 1)
    fine = F.interpolate(maps.nan_to_num(), (SIDE, SIDE), mode="bicubic", align_corners=False)
    inside = _inside(boxes)
    at = fine.flatten(2).argmax(2, keepdim=True)
    hits = inside.flatten(2).gather(2, at)[..., 0] & (total > 0)
    even = F.interpolate(positive, (SIDE, SIDE), mode="nearest")
    in_box = (even * inside).sum((2, 3)) / even.sum((2, 3)).where(total > 0, 1)
    return Score(
        share=float((in_half / total.where(total > 0, 1))[counted].mean()),
        box=float(in_box[counted].mean()),
        hits=float(hits.float()[counted].mean()),
        blank=float((total <= 0).float()[counted].mean()),
    )


def _inside(boxes: Tensor) -> Tensor:
    """Which pixels (B, K, 64, 64) lie in boxes (B, K, 4)."""
    top, bottom, left, right = boxes[..., None, None].unbind(2)
    rows, columns = torch.arange(SIDE)[:, None], torch.arange(SIDE)
    return (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
