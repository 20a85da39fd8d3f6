"""Made pictures with known places: colored letters, and textured shapes, in clutter.

Every picture is 64 x 64 pixels. Networks are trained on pictures of one object and asked about pictures of two, one in
the left half and one in the right half.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

SIDE = 64
STAMP = 64  # side of the masks that objects and clutter are stamped from
CLUTTER = 6  # pieces in each picture
LETTERS = "AEHKMRSTXZ"
SHAPES = ("disc", "square", "triangle", "cross", "ring", "star")
TEXTURES = ("rows", "columns", "checks", "dots", "circles", "grain")


@dataclass(frozen=True)
class Pictures:
    """A batch of pictures with K objects each.

    Attributes:
        images: (B, 3, 64, 64), roughly zero mean and unit variance.
        labels: (B, K), the class of each object.
        boxes: (B, K, 4), rows and columns of each object in pixels: top, bottom, left, right.
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor


@dataclass(frozen=True)
class Task:
    """A kind of picture.

    Attributes:
        name: what it is called.
        num_classes: how many classes of objects there are.
        paint: (labels, generator) -> masks (B, 1, 64, 64) and colors (B, 3, 64, 64) of one object each, upright and as
            large as a stamp.
    """

    name: str
    num_classes: int
    paint: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

    def pictures(
        self, count: int, objects: int, generator: torch.Generator, stacked: Tensor | None = None
    ) -> Pictures:
        """Draw pictures with one object anywhere, or one in each half: left and right, or above and below.

        Args:
            count: how many.
            objects: in each picture, 1 or 2.
            generator: of the random numbers.
            stacked: (B,), whether the two objects are above each other; None for never.
        """
        images = background(count, generator)
        for _ in range(CLUTTER):
            images = with_clutter(images, generator)
        labels = self.labels(count, objects, generator)
        boxes = []
        for k in range(objects):
            radius = uniform(count, 10, 14, generator)
            low, high = (14.0, 50.0) if objects == 1 else (14.0 + 32 * k, 18.0 + 32 * k)
            x, y = uniform(count, low, high, generator), uniform(count, 14, 50, generator)
            if stacked is not None:
                x, y = torch.where(stacked, y, x), torch.where(stacked, x, y)
            angle = uniform(count, -0.25, 0.25, generator)
            mask, color = self.paint(labels[:, k], generator)
            stamp = placed(torch.cat([mask, color], 1), x, y, radius, angle)
            mask, color = stamp[:, :1], stamp[:, 1:]
            images = images * (1 - mask) + color
            boxes.append(torch.stack([y - radius, y + radius, x - radius, x + radius], 1))
        images = images + 0.05 * torch.randn(images.shape, generator=generator)
        return Pictures((images - 0.45) / 0.25, labels, torch.stack(boxes, 1).round().long().clamp(0, SIDE))

    def labels(self, count: int, objects: int, generator: torch.Generator) -> Tensor:
        """Different classes (B, K) of the objects in each picture."""
        return torch.rand(count, self.num_classes, generator=generator).argsort(1)[:, :objects]


def uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def placed(stamp: Tensor, x: Tensor, y: Tensor, radius: Tensor, angle: Tensor) -> Tensor:
    """Stamps (B, C, 64, 64) turned, shrunk to the radius and moved to (x, y), on an empty picture."""
    scale = SIDE / 2 / radius
    cos, sin = scale * angle.cos(), scale * angle.sin()
    at = [2 * v / SIDE - 1 for v in (x, y)]
    rows = [
        torch.stack([cos, sin, -cos * at[0] - sin * at[1]], 1),
        torch.stack([-sin, cos, sin * at[0] - cos * at[1]], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [len(stamp), 1, SIDE, SIDE], align_corners=False)
    return F.grid_sample(stamp, grid, align_corners=False)


def background(count: int, generator: torch.Generator) -> Tensor:
    """Soft patches of muted colors, (B, 3, 64, 64)."""
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    gray = coarse.mean(1, keepdim=True)
    muted = 0.25 + 0.4 * (0.4 * coarse + 0.6 * gray)
    return F.interpolate(muted, (SIDE, SIDE), mode="bicubic", align_corners=False)


def with_clutter(images: Tensor, generator: torch.Generator) -> Tensor:
    count, masks = len(images), _clutter_masks()
    mask = masks[torch.randint(len(masks), (count,), generator=generator)]
    x, y, radius = (uniform(count, *extent, generator) for extent in ((0, 64), (0, 64), (4, 10)))
    mask = placed(mask, x, y, radius, uniform(count, -3, 3, generator))
    color = 0.2 + 0.5 * torch.rand(count, 1, 1, 1, generator=generator)
    color = color + 0.15 * torch.randn(count, 3, 1, 1, generator=generator)
    return images * (1 - mask) + color * mask


def _drawn(draw: Callable[[ImageDraw.ImageDraw], None]) -> Tensor:
    """A mask (1, 64, 64) of what is drawn in white."""
    image = Image.new("L", (STAMP, STAMP))
    draw(ImageDraw.Draw(image))
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(1, STAMP, STAMP) / 255


@functools.cache
def _clutter_masks() -> Tensor:
    """Strokes, arcs and corners that belong to no class, (N, 1, 64, 64)."""
    strokes: list[Callable[[ImageDraw.ImageDraw], None]] = [
        lambda d: d.line((8, 32, 56, 32), fill=255, width=10),
        lambda d: d.arc((6, 6, 58, 58), 0, 120, fill=255, width=10),
        lambda d: d.line((10, 54, 32, 10, 54, 54), fill=255, width=8),
        lambda d: d.ellipse((20, 12, 44, 52), fill=255),
        lambda d: d.polygon((8, 20, 56, 8, 40, 56), fill=255),
        lambda d: d.line((8, 10, 54, 10, 54, 56), fill=255, width=10),
    ]
    return torch.stack([_drawn(stroke) for stroke in strokes])


@functools.cache
def letter_masks() -> Tensor:
    """The letters, (10, 1, 64, 64)."""
    path = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")
    font = ImageFont.truetype(path, 66)

    def letter(character: str) -> Tensor:
        return _drawn(lambda d: d.text((32, 32), character, fill=255, font=font, anchor="mm"))

    return torch.stack([letter(character) for character in LETTERS])


def colored_letters(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Letters, each of its own hue, which jitters by two thirds of the distance to the next."""
    mask = letter_masks()[labels]
    hue = (labels + uniform(len(labels), -0.67, 0.67, generator)) / len(LETTERS)
    phase = hue[:, None] + torch.tensor([0.0, 1 / 3, 2 / 3])
    color = 0.5 + 0.5 * (2 * math.pi * phase).cos()
    return mask, mask * color[:, :, None, None]


@functools.cache
def _shape_masks() -> Tensor:
    angles = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
    star = [
        (32 + (30 - 18 * (k % 2)) * math.cos(a), 33 + (30 - 18 * (k % 2)) * math.sin(a))
        for k, a in enumerate(angles)
    ]
    shapes: dict[str, Callable[[ImageDraw.ImageDraw], None]] = {
        "disc": lambda d: d.ellipse((4, 4, 60, 60), fill=255),
        "square": lambda d: d.rectangle((8, 8, 56, 56), fill=255),
        "triangle": lambda d: d.polygon((32, 4, 61, 56, 3, 56), fill=255),
        "cross": lambda d: (
            [d.rectangle(box, fill=255) for box in ((23, 3, 41, 61), (3, 23, 61, 41))] and None
        ),
        "ring": lambda d: d.ellipse((4, 4, 60, 60), outline=255, width=11),
        "star": lambda d: d.polygon(star, fill=255),
    }
    return torch.stack([_drawn(shapes[name]) for name in SHAPES])


@functools.cache
def _textures() -> Tensor:
    """Patterns of 0 and 1, (N, 1, 64, 64); the last one is made anew for every picture."""
    rows, columns = torch.meshgrid(torch.arange(STAMP), torch.arange(STAMP), indexing="ij")
    from_middle = ((rows - 31.5) ** 2 + (columns - 31.5) ** 2).sqrt()
    dots = ((rows % 16 - 7.5) ** 2 + (columns % 16 - 7.5) ** 2) < 25
    patterns = [
        (rows // 7) % 2 == 0,
        (columns // 7) % 2 == 0,
        (rows // 11 + columns // 11) % 2 == 0,
        dots,
        (from_middle // 6) % 2 == 0,
        torch.zeros_like(dots),
    ]
    return torch.stack(patterns)[:, None].float()


def _textured_shapes(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Plain shapes, told by their outline, and textures, told by their pattern on any shape; of any color."""
    count = len(labels)
    told_by_shape = (labels < len(SHAPES))[:, None, None, None]
    any_shape = torch.randint(4, (count,), generator=generator)  # those with an inside large enough
    mask = _shape_masks()[torch.where(labels < len(SHAPES), labels, any_shape)]
    grain = (torch.rand(count, 1, 16, 16, generator=generator) > 0.5).float()
    pattern = _textures()[(labels - len(SHAPES)).clamp(min=0)]
    is_grain = (labels == len(SHAPES) + TEXTURES.index("grain"))[:, None, None, None]
    pattern = torch.where(is_grain, F.interpolate(grain, scale_factor=4), pattern)
    light, dark = (torch.rand(count, 3, 1, 1, generator=generator) * 0.35 + low for low in (0.65, 0.0))
    plain = torch.where(torch.rand(count, 1, 1, 1, generator=generator) > 0.5, light, dark)
    color = torch.where(told_by_shape, plain, pattern * light + (1 - pattern) * dark)
    return mask, mask * color


TASKS = {
    task.name: task
    for task in (
        Task("letters", len(LETTERS), colored_letters),
        Task("textures", len(SHAPES) + len(TEXTURES), _textured_shapes),
    )
}
