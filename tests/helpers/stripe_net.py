"""A network that recognizes stripes, which blur removes, so that the part of an image that suffices is known."""

import numpy as np
import torch
from PIL import Image
from torch import nn

import ebcli

SIDE, PATCH = 32, (12, 8, 20, 16)  # pixels; left, top, right, bottom


def stripes() -> nn.Module:
    """Logits are 0, and 60 times the mean contrast of rows and of columns less 2."""
    edges, classifier = nn.Conv2d(3, 4, 2, bias=False), nn.Linear(4, 3)
    with torch.no_grad():
        edges.weight.zero_()
        rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        for channel, kernel in enumerate((rows, -rows, rows.T, -rows.T)):
            edges.weight[channel] = kernel / 3
        classifier.weight.copy_(60 * torch.tensor([[0.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]))
        classifier.bias.copy_(torch.tensor([0.0, -2, -2]))
    net = nn.Sequential(edges, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier)
    net.categories = ("nothing", "rows", "columns")
    net.preprocessing = ebcli.Preprocessing(resize=SIDE, crop=SIDE, mean=0.0, std=1.0)
    return net.eval()


def striped(seed: int = 0, columns: bool = False, size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    """A black image with rows or columns of different brightness in ``PATCH``."""
    left, top, right, bottom = PATCH
    patch = np.random.default_rng(seed).integers(180, 256, (bottom - top, right - left))
    patch[1::2] = 0
    values = np.zeros(size[::-1], np.uint8)
    values[top:bottom, left:right] = patch.T if columns else patch
    return Image.fromarray(values).convert("RGB")
