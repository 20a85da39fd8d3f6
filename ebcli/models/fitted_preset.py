"""Presets that fit images into the network's input other than by a center crop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms._presets import ImageClassification

from ebcli.models.keywords import CROP, PAD

if TYPE_CHECKING:
    from ebcli.models.preset import Preset


class FittedPreset(ImageClassification):  # type: ignore[misc]  # torchvision has no types
    """A preset of torchvision that squashes or pads images to a square before the center crop.

    ``"squash"`` resizes images to a square of side ``resize_size``, whatever their aspect ratio. ``"pad"`` resizes the
    longer side to ``resize_size`` and pads the shorter one with the mean color.

    Attributes:
        fit: ``"squash"`` or ``"pad"``.
    """

    def __init__(self, preset: ImageClassification | Preset, fit: str) -> None:
        super().__init__(**_arguments(preset))
        self.fit = fit

    def forward(self, img: Image.Image | Tensor) -> Tensor:
        """Preprocess an image, or a tensor (C, H, W) or (B, C, H, W)."""
        side = self.resize_size[0]
        _, *size = functional.get_dimensions(img)
        fill = torch.zeros(3, 1, 1)
        if self.fit == PAD:
            size = [max(1, round(length / (max(size) / side))) for length in size]  # as timm rounds it
            fill = torch.tensor([round(255 * value) / 255 for value in self.mean])[:, None, None]
        else:
            size = [side, side]
        img = functional.resize(img, size, interpolation=self.interpolation, antialias=self.antialias)
        pixels = img if isinstance(img, Tensor) else functional.pil_to_tensor(img)
        values = functional.convert_image_dtype(pixels, torch.float)
        fill = fill.to(values.device)
        values = functional.center_crop(values - fill, self.crop_size) + fill  # center_crop pads with zeros
        return functional.normalize(values, self.mean, self.std)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}    fit={self.fit}\n)"


def with_fit(preset: ImageClassification | Preset, fit: str) -> ImageClassification:
    """A preset with the same settings that fits images by ``"crop"``, ``"squash"`` or ``"pad"``."""
    return ImageClassification(**_arguments(preset)) if fit == CROP else FittedPreset(preset, fit)


def _arguments(preset: ImageClassification | Preset) -> dict[str, Any]:
    return {
        "crop_size": preset.crop_size[0],
        "resize_size": preset.resize_size[0],
        "mean": preset.mean,
        "std": preset.std,
        "interpolation": InterpolationMode[preset.interpolation.name],
        "antialias": preset.antialias,
    }
