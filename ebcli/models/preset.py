"""The settings of a preprocessing, without torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from ebcli.models.keywords import CROP

if TYPE_CHECKING:
    from torchvision.transforms._presets import ImageClassification


DEFAULT_SIZE = 224  # pixels, for networks without preprocessing


def input_size(preset: object) -> tuple[int, ...]:
    """Height and width of what a network gets; for networks that see whole images, a size that they accept.

    For video, the number of frames comes first.
    """
    sides = [*getattr(preset, "crop_size", [DEFAULT_SIZE])]
    frames = getattr(preset, "frames", None)
    return (sides[0], sides[-1]) if frames is None else (frames, sides[0], sides[-1])


class Preset:
    """A preset with the attributes of torchvision's ``ImageClassification``; a call imports torchvision.

    Args:
        resize_size: length of the shorter side after resizing, in pixels.
        crop_size: side of the center crop, in pixels.
        mean, std: normalization of pixels from 0 to 1 per channel: red, green, blue.
        interpolation: Pillow's filter.
    """

    def __init__(
        self,
        resize_size: int,
        crop_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: Image.Resampling,
    ) -> None:
        self.resize_size, self.crop_size = [resize_size], [crop_size]
        self.mean, self.std = list(mean), list(std)
        self.interpolation, self.antialias = interpolation, True

    def transforms(self) -> ImageClassification:
        """The same as torchvision's preset."""
        from ebcli.models.fitted_preset import with_fit

        return with_fit(self, CROP)

    def __call__(self, image: Any) -> Any:
        return self.transforms()(image)

    def __repr__(self) -> str:
        return f"Preset({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
