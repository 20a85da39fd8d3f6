"""Networks whose weights are set by hand: one segments with a single channel, others return numbers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ebcli


class Bright(nn.Module):
    """Segments what is brighter than 0.5, by one channel: its logit is 10 * brightness - 5."""

    preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.cells = nn.Conv2d(3, 2, 1)  # how bright and how dark
        self.head = nn.Conv2d(2, 1, size, padding=size // 2, bias=False)
        self.cells.weight.data = torch.stack([torch.full((3, 1, 1), 1 / 3), torch.full((3, 1, 1), -1 / 3)])
        self.cells.bias.data = torch.tensor([0.0, 1.0])
        self.head.weight.data = (
            torch.tensor([5.0, -5.0])[None, :, None, None].expand(1, 2, size, size) / size**2
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.cells(images).relu())


class BrightProbability(Bright):
    """The same, but it returns probabilities."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).sigmoid()


class BrightExported(Bright):
    """The same as an exported program writes it, which computes another sigmoid later."""

    def forward(self, images: Tensor) -> Tensor:
        probability = torch.ops.aten.sigmoid.default(super().forward(images))
        images.mean().sigmoid()
        return probability


class BrightAboveAverage(Bright):
    """How much brighter than 0.5 each pixel is, which is never negative."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).relu()


class BrightResized(Bright):
    """The same at half the resolution, resized to that of the image behind the sigmoid."""

    def forward(self, images: Tensor) -> Tensor:
        half = super().forward(F.avg_pool2d(images, 2)).sigmoid()
        return {"masks": F.interpolate(half, scale_factor=2)}


def named() -> nn.Module:
    """A network that names its only channel."""
    net = Bright()
    net.categories = ["lamp"]
    return net


class Ripeness(nn.Module):
    """One number for the picture, 40 * its mean red - 20 * its mean blue + 10; with more outputs, others."""

    preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.cells = nn.Conv2d(3, 3, 4, 4, bias=False)
        self.cells.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, 4, 4) / 16
        self.head = nn.Linear(3, outputs)
        self.head.weight.data = torch.tensor([[40.0, 0, -20], [0, 30, 0], [0, 0, 5]])[:outputs]
        self.head.bias.data = torch.tensor([10.0, 0, 1])[:outputs]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.cells(images).relu().mean((2, 3)))


def three() -> nn.Module:
    """Three numbers."""
    return Ripeness(3)


def declared() -> nn.Module:
    """Three numbers, as the network itself says."""
    net = Ripeness(3)
    net.task, net.categories = "values", ["red", "green", "blue"]
    return net


class Heights(nn.Module):
    """A number for each 4 x 4 pixels: 40 * the mean red around - 20 * the mean blue around."""

    preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Conv2d(3, 3, 4, 4, bias=False)
        self.cells.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, 4, 4) / 16
        self.head = nn.Conv2d(3, 1, 3, padding=1, bias=False)
        self.head.weight.data = torch.tensor([40.0, 0, -20])[None, :, None, None].expand(1, 3, 3, 3) / 9

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.cells(images).relu())


class MeanHeight(Heights):
    """The mean of these numbers."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).mean((2, 3))
