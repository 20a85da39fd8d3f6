"""Scenes of two letters with boxes and masks for detectors and segmentation, and clips of letters that move."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .pictures import CLUTTER, LETTERS, SIDE, background, colored_letters, placed, uniform, with_clutter

CLASSES = len(LETTERS) + 1  # 0 is the background
FRAMES = 8


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes with one letter in the left half and one in the right half.

    Attributes:
        images: (B, 3, 64, 64), from 0 to 1.
        labels: (B, 2), the class of each letter, from 1.
        boxes: (B, 2, 4), the letters' left, top, right and bottom in pixels.
        masks: (B, 64, 64), each pixel's class, 0 for the background.
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor
    masks: Tensor


@dataclass(frozen=True)
class Clips:
    """A batch of clips with two letters.

    Attributes:
        images: (B, 3, T, 64, 64), roughly zero mean and unit variance.
        labels: (B, 2), the class of each letter, from 0.
        boxes: (B, 2, T, 4), the letters' left, top, right and bottom in pixels; 0 in frames without the letter.
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor


def scenes(count: int, generator: torch.Generator) -> Scenes:
    """Draw scenes."""
    images = background(count, generator)
    for _ in range(CLUTTER):
        images = with_clutter(images, generator)
    labels = torch.rand(count, len(LETTERS), generator=generator).argsort(1)[:, :2]  # different letters
    masks, boxes = torch.zeros(count, SIDE, SIDE, dtype=torch.long), []
    for k in range(2):
        radius, angle = uniform(count, 10, 14, generator), uniform(count, -0.25, 0.25, generator)
        x, y = uniform(count, 14 + 32 * k, 18 + 32 * k, generator), uniform(count, 14, 50, generator)
        stamp = placed(torch.cat(colored_letters(labels[:, k], generator), 1), x, y, radius, angle)
        images = images * (1 - stamp[:, :1]) + stamp[:, 1:]
        is_letter = stamp[:, 0] > 0.5
        masks = torch.where(is_letter, labels[:, k, None, None] + 1, masks)
        boxes.append(_boxes(is_letter))
    images = images + 0.05 * torch.randn(images.shape, generator=generator)
    return Scenes(images.clamp(0, 1), labels + 1, torch.stack(boxes, 1), masks)


def clips(count: int, generator: torch.Generator) -> Clips:
    """Draw clips with a letter that moves in the first half of the frames, and another one in the second half."""
    half = FRAMES // 2
    still = background(count, generator)
    for _ in range(CLUTTER):
        still = with_clutter(still, generator)
    frames = still[:, :, None].repeat(1, 1, FRAMES, 1, 1)
    labels = torch.rand(count, len(LETTERS), generator=generator).argsort(1)[:, :2]  # different letters
    boxes = torch.zeros(count, 2, FRAMES, 4)
    for k in range(2):
        radius, angle = uniform(count, 10, 14, generator), uniform(count, -0.25, 0.25, generator)
        stamp = torch.cat(colored_letters(labels[:, k], generator), 1)
        (from_x, to_x), (from_y, to_y) = torch.empty(2, 2, count).uniform_(14, 50, generator=generator)
        for step in range(half):
            way = step / (half - 1)
            x, y = from_x + way * (to_x - from_x), from_y + way * (to_y - from_y)
            here = placed(stamp, x, y, radius, angle)
            t = half * k + step
            frames[:, :, t] = frames[:, :, t] * (1 - here[:, :1]) + here[:, 1:]
            boxes[:, k, t] = _boxes(here[:, 0] > 0.5)
    frames = frames + 0.05 * torch.randn(frames.shape, generator=generator)
    return Clips((frames - 0.45) / 0.25, labels, boxes)


def inside(boxes: Tensor, margin: float = 0) -> Tensor:
    """Which pixels (..., 64, 64) lie in boxes (..., 4) or within a margin of them."""
    left, top, right, bottom = boxes[..., None, None].unbind(-3)
    rows, columns = torch.arange(SIDE)[:, None], torch.arange(SIDE)
    across = (columns >= left - margin) & (columns < right + margin)
    return across & (rows >= top - margin) & (rows < bottom + margin)


def _boxes(masks: Tensor) -> Tensor:
    """The boxes (B, 4) of masks (B, H, W): left, top, right and bottom."""
    sides = []
    for axis in (1, 2):
        along = masks.any(axis).int()
        sides.append((along.argmax(1), along.shape[1] - along.flip(1).argmax(1)))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], 1).float()
