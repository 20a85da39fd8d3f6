"""A network that recognizes colors, so that the correct map of an image is known."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from ebcli.datatypes.input_spec import InputSpec
from ebcli.models import LoadedModel

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
SIDE = 32

Rectangle = tuple[int, int, int, int]  # left, top, right, bottom


def color_net(num_classes: int = 3) -> nn.Module:
    """Logits 0, 1 and 2 are 20 times the mean of red, green and blue."""
    pixels, classifier = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, num_classes, bias=False)
    with torch.no_grad():
        pixels.weight.copy_(torch.eye(3)[:, :, None, None])
        classifier.weight.copy_(20 * torch.eye(num_classes, 3))
    net = nn.Sequential(
        pixels, nn.ReLU(inplace=True), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier
    )
    return net.eval()


COLORS = "--model colors --weights none --layer 0".split()  # of benchmarks, see `load_colors`


def load_colors(
    name: str = "colors", weights: str = "none", device: str = "cpu", **_options: object
) -> LoadedModel:
    """A stand-in for ``load_model``; the name sets the number of classes, as in ``colors20``."""
    torch.set_num_threads(1)
    num_classes = int(name.removeprefix("colors") or 3)
    preset = InputSpec((SIDE, SIDE), resize=(SIDE,), mean=(0.0,) * 3, std=(1.0,) * 3)
    names = ("red", "green", "blue", *(f"nothing {i}" for i in range(3, num_classes)))
    return LoadedModel(
        name,
        color_net(num_classes),
        transforms=preset,
        categories=names,
        weights=weights,
        num_classes=num_classes,
    )


def painted(size: tuple[int, int], *patches: tuple[tuple[int, int, int], Rectangle]) -> Image.Image:
    """A black image with colored rectangles."""
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    for color, (left, top, right, bottom) in patches:
        pixels[top:bottom, left:right] = color
    return Image.fromarray(pixels)


def color_images(folder: Path, count: int = 6) -> dict[str, int]:
    """Write square images with a patch of one color each, and return their classes."""
    folder.mkdir()
    classes = {}
    for index in range(count):
        name = f"{index}.png"
        left = 8 * (index % 4)
        painted((SIDE, SIDE), ((RED, GREEN, BLUE)[index % 3], (left, 4, left + 8, 20))).save(folder / name)
        classes[name] = index % 3
    return classes
