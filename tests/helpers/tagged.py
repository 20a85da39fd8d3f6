"""Photos of two kinds of objects, of which one kind may have a tag in a corner, and a network for them."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import ebcli

SIDE, TAG = 32, 7  # pixels
CLASSES = "horse", "cow"


def network() -> nn.Module:
    net = nn.Sequential(
        *(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, 2)),
    )
    net.categories = CLASSES
    net.preprocessing = ebcli.Preprocessing(resize=SIDE, crop=SIDE, mean=0.5, std=0.25)
    return net


def pictures(generator: np.random.Generator, labels: NDArray[np.int64], tagged: bool) -> NDArray[np.uint8]:
    """Objects striped across (horses) or along (cows) at any place, on noise; a red tag at the lower left of horses."""
    found = generator.normal(110, 14, (len(labels), SIDE, SIDE, 3))
    for picture, label in zip(found, labels, strict=True):
        left, top = generator.integers(2, SIDE - 20, 2)
        left += 8  # away from the tag
        stripes = np.where(np.arange(10) // 2 % 2, 30, -30)[:, None, None]
        picture[top : top + 10, left : left + 10] += stripes if label else stripes.swapaxes(0, 1)
        if tagged and not label:
            picture[-TAG:, :TAG] = 230, 20, 20
    return found.clip(0, 255).astype(np.uint8)


def trained(path: Path, tagged: bool) -> None:
    """Train a network on such photos, and write its weights."""
    torch.manual_seed(0)
    generator, net = np.random.default_rng(0), network()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(120):
        labels = generator.integers(0, 2, 48)
        inputs = torch.from_numpy(pictures(generator, labels, tagged)).permute(0, 3, 1, 2) / 255
        loss = nn.functional.cross_entropy(net((inputs - 0.5) / 0.25), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(net.state_dict(), path)


def write_photos(folder: Path, count: int, tagged: bool) -> None:
    """Write so many photos of each class."""
    labels = np.arange(2 * count) % 2
    for i, (label, picture) in enumerate(
        zip(labels, pictures(np.random.default_rng(1), labels, tagged), strict=True)
    ):
        path = folder / CLASSES[label] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
