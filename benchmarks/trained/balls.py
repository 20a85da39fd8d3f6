"""Train a small 3-D network to tell volumes with a ball among cubes from volumes with cubes only.

Prints the share of the contrastive map that is on the ball, for each layer, and writes the weights that the tests use:

    python -m benchmarks.trained.balls
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import ebcli

SIDE, OCTANT = 32, 16
WEIGHTS = Path(__file__).parents[2] / "tests/evaluate/weights/Ball.pt"
_STEPS, _BATCH = 200, 16
_FEATURES = 9  # modules below the pooling; few of their neurons are active, so each stands for something
_NOISE = 0.15


class Volumes(NamedTuple):
    """Volumes, whether each has a ball, and the boxes of the balls.

    Attributes:
        values: (B, 1, D, H, W), about 0 to 1.
        labels: (B,), 1 with a ball.
        boxes: (B, 3, 2), the first cell along z, y and x, and the one behind the last.
    """

    values: Tensor
    labels: Tensor
    boxes: Tensor


def volumes(count: int, generator: torch.Generator, balls: float = 0.5) -> Volumes:
    """Draw volumes of four objects as bright as each other, each in an octant of its own.

    Args:
        count: their number.
        generator: the source of randomness.
        balls: the share of volumes in which one object is a ball.
    """
    values = torch.randn(count, 1, SIDE, SIDE, SIDE, generator=generator) * _NOISE
    labels = (torch.rand(count, generator=generator) < balls).long()
    boxes = torch.zeros(count, 3, 2, dtype=torch.long)
    axis = torch.arange(SIDE)
    for i in range(count):
        for number, octant in enumerate(torch.randperm(8, generator=generator)[:4].tolist()):
            radius = int(torch.randint(6, 8, (), generator=generator))
            center = torch.randint(radius, OCTANT - radius, (3,), generator=generator)
            center = center + OCTANT * torch.tensor([octant >> 2, octant >> 1 & 1, octant & 1])
            distances = torch.stack(torch.meshgrid(*((axis - at).abs() for at in center), indexing="ij"))
            is_ball = number == 0 and bool(labels[i])
            # of the same volume
            inside = distances.pow(2).sum(0) <= radius**2 if is_ball else distances.amax(0) <= 0.8 * radius
            values[i, 0][inside] += 1.0
            if is_ball:
                boxes[i] = torch.stack([center - radius, center + radius + 1], 1)
    return Volumes(values, labels, boxes)


def network() -> nn.Sequential:
    """The untrained network; as a factory, ``ball`` in a model file."""
    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm3d(8), nn.ReLU()),
        *(nn.Conv3d(8, 12, 3, padding=1, bias=False), nn.BatchNorm3d(12), nn.ReLU()),
        *(nn.Conv3d(12, 16, 3, padding=1, bias=False), nn.BatchNorm3d(16), nn.ReLU()),
        *(nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(16, 2)),
    )


def trained(steps: int = _STEPS) -> nn.Sequential:
    """The network after so many batches."""
    torch.manual_seed(0)
    net, generator = network(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, steps)
    for _ in range(steps):
        batch = volumes(_BATCH, generator)
        features = net[:_FEATURES](batch.values)
        loss = nn.functional.cross_entropy(net[_FEATURES:](features), batch.labels) + features.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
    return net.eval()


def shares(net: nn.Module, drawn: Volumes, layer: str | None) -> Tensor:
    """The share (B,) of the positive contrastive map in the cells of the ball's box, for volumes with a ball."""
    maps = ebcli.excitation_backprop(net, drawn.values, 1, layer=layer, contrastive=True).maps.clamp(min=0)
    cell = SIDE // maps.shape[-1]
    found = []
    for one, box in zip(maps, drawn.boxes.tolist(), strict=True):
        place = tuple(slice(first // cell, -(-end // cell)) for first, end in box)
        found.append(one[place].sum() / one.sum())
    return torch.stack(found)


def main() -> None:
    net = trained()
    test = volumes(200, torch.Generator().manual_seed(1))
    with torch.no_grad():
        print(f"accuracy {(net(test.values).argmax(1) == test.labels).float().mean():.3f}")
    asked = volumes(64, torch.Generator().manual_seed(2), balls=1.0)
    for layer in (None, *(layer.name for layer in ebcli.layers(net, (SIDE,) * 3))):
        try:
            found = shares(net, asked, layer)
        except (ebcli.LayerError, ValueError):  # no map
            continue
        print(f"{layer or 'input'}: {found.mean():.3f} of the map on the ball")
    torch.save(net.state_dict(), WEIGHTS)


if __name__ == "__main__":
    main()
