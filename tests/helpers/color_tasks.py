"""A detector and a segmentation network that recognize colors, so that the correct map of each object is known."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
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


class Yolo(nn.Module):
    """A detector of the YOLO kind with two grids, which scores the color of each cell alone.

    It returns a tensor (B, 4 + 3, candidates), as exported networks do, or one of the other layouts.
    """

    preprocessing = ebcli.Preprocessing(resize=96, crop=96, mean=0.0, std=1.0, fit="pad")
    categories = CATEGORIES[1:]

    def __init__(self, layout: str = "") -> None:
        super().__init__()
        self.layout, self.cells = layout, Colors()
        self.fine, self.coarse = (nn.Conv2d(3, 3, 1) for _ in range(2))
        for head, bias in ((self.fine, -10), (self.coarse, -16)):  # a coarse cell has to be whole
            head.weight.data = 20 * torch.eye(3)[:, :, None, None]
            nn.init.constant_(head.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        boxes, logits = self.candidates(x)
        raw = torch.cat([boxes, logits.sigmoid()], 1)
        if "objectness" in self.layout:  # three candidates in a cell, of which one is an object
            objects = (torch.full_like(raw[:, :1], objectness) for objectness in (0.1, 1, 0.1))
            raw = torch.cat([torch.cat([boxes, one, raw[:, 4:]], 1) for one in objects], 2)
        return raw.mT if "transposed" in self.layout else raw

    def candidates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (B, 4, candidates) and logits (B, 3, candidates)."""
        cells = self.cells(x)
        grids = [(self.fine(cells), 8), (self.coarse(F.avg_pool2d(cells, 2)), 16)]
        boxes = torch.cat([self._squares(logits, stride) for logits, stride in grids], 2)
        return boxes, torch.cat([logits.flatten(2) for logits, _ in grids], 2)

    def _squares(self, logits: Tensor, stride: int) -> Tensor:
        places = torch.meshgrid(*map(torch.arange, logits.shape[2:]), indexing="ij")
        y, x = ((torch.stack(places) + 0.5) * stride).flatten(1)
        return torch.stack([x, y, *torch.full((2, len(x)), float(stride))]).expand(len(logits), -1, -1)


def yolo() -> nn.Module:
    return Yolo()


def transposed() -> nn.Module:
    return Yolo("transposed")


def objectness() -> nn.Module:
    return Yolo("transposed, objectness")


class Queries(Yolo):
    """A detector of the DETR kind: candidates are objects, if their score is high enough."""

    def forward(self, x: Tensor) -> ebcli.Candidates:
        boxes, logits = (each.mT[:, : x[0, 0].numel() // STRIDE**2] for each in self.candidates(x))
        shares = boxes / boxes.new_tensor([x.shape[3], x.shape[2]] * 2)
        return ebcli.Candidates.of_queries(logits, shares, x.shape[-2:], has_no_object=False)
