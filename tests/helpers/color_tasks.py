"""A detector and a segmentation network that recognize colors, so that the correct map of each object is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator

import ebcli

CATEGORIES = ("background", "red", "green", "blue")
STRIDE = 8  # of the detector, in pixels of the image that it resized
LONGER = 192  # pixels: the detector resizes images so that this is their longer side, and pads the other one


class Colors(nn.Module):
    """The mean color of each 8 x 8 pixels."""

    out_channels = 3

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Conv2d(3, 3, STRIDE, STRIDE, bias=False)
        self.cells.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, STRIDE, STRIDE) / STRIDE**2

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x).relu()


def detector() -> nn.Module:
    """A RetinaNet with one anchor of 48 x 48 pixels for each cell: it scores the color of that cell alone."""
    anchors = AnchorGenerator(sizes=((48,),), aspect_ratios=((1.0,),))
    options = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "nms_thresh": 0.0}
    net = RetinaNet(Colors(), 4, min_size=LONGER, max_size=LONGER, anchor_generator=anchors, **options)
    for name, module in net.head.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
            if name.endswith("cls_logits"):  # each color has its class; the background none
                module.weight.data[1:, :, 1, 1] = 20 * torch.eye(3)
                nn.init.constant_(module.bias, -10)
            elif "classification" in name:
                nn.init.dirac_(module.weight)
    net.categories = CATEGORIES
    return net.eval()


class Segmenter(nn.Module):
    """Classes of pixels by their color, at full resolution, as torchvision's segmentation networks return them."""

    preprocessing = ebcli.Preprocessing(resize=64, crop=64, mean=0.0, std=1.0)
    categories = CATEGORIES

    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Conv2d(3, 3, 1, bias=False)
        self.classifier = nn.Conv2d(3, 4, 1)
        self.pixels.weight.data = torch.eye(3)[:, :, None, None]
        self.classifier.weight.data = 20 * torch.cat([torch.zeros(1, 3), torch.eye(3)])[:, :, None, None]
        self.classifier.bias.data = torch.tensor([10.0, 0, 0, 0])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.classifier(self.pixels(x).relu())}
