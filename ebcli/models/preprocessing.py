"""Settings that replace those of a model's own preprocessing. Imports no torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import CROP, FITS

if TYPE_CHECKING:
    from torchvision.transforms._presets import ImageClassification

    from ebcli.models.preset import Preset

Channels = float | Sequence[float]


@dataclass(frozen=True)
class Preprocessing:
    """Settings that replace those of a preset; None keeps the preset's own.

    Attributes:
        resize: length of the shorter side after resizing, in pixels.
        crop: side of the center crop in pixels, the network's input size.
        mean, std: normalization of pixels from 0 to 1, (pixel - mean) / std; one number, or three for red, green
            and blue.
        fit: ``"crop"`` resizes the shorter side and cuts off the ends of the longer one, ``"squash"`` resizes both
            sides regardless of the aspect ratio, ``"pad"`` resizes the longer side and pads the shorter one with the
            mean color. With another fit than the preset's and without ``resize``, the network sees the whole image.

    Raises:
        ConfigurationError: a value is out of its range.

    Examples:
        >>> import ebcli
        >>> small = ebcli.Preprocessing(resize=72, crop=64, mean=0.5)
        >>> loaded = ebcli.load_model("resnet18", weights="none", preprocessing=small)
        >>> loaded.transforms.crop_size, loaded.transforms.std
        ([64], [0.229, 0.224, 0.225])
    """

    resize: int | None = None
    crop: int | None = None
    mean: Channels | None = None
    std: Channels | None = None
    fit: str | None = None

    def __post_init__(self) -> None:
        if self.fit is not None and self.fit not in FITS:
            raise ConfigurationError(f"unknown fit {self.fit!r}: choose {', '.join(FITS)}")
        for name in ("resize", "crop"):
            side = getattr(self, name)
            if side is not None and side < 1:
                raise ConfigurationError(f"{name} is {side} pixels, but must be at least 1")
        for name, low in (("mean", -inf), ("std", 0.0)):
            value = getattr(self, name)
            if value is None:
                continue
            values = (float(value),) * 3 if isinstance(value, (int, float)) else tuple(map(float, value))
            values *= 3 if len(values) == 1 else 1
            if len(values) != 3 or not all(low < one < inf for one in values):
                what = "numbers above 0" if name == "std" else "numbers"
                raise ConfigurationError(f"{name} is {value}, but must be one or three {what}")
            object.__setattr__(self, name, values)  # one number and three equal ones compare equal

    def applied_to(self, preset: ImageClassification | Preset) -> ImageClassification | Preset:
        """A copy of the preset with these settings.

        Raises:
            ConfigurationError: the crop is larger than the resized image, or the network sees whole images.
        """
        changed = copy.copy(preset)
        if not hasattr(preset, "crop_size") and not (self.crop is None and self.fit is None):
            raise ConfigurationError("the network sees whole images: drop --crop and --fit")
        is_video = hasattr(preset, "frames")
        if is_video and self.fit is not None:
            raise ConfigurationError("clips are always cropped at the center: drop --fit")
        if self.resize is not None:
            changed.resize_size = [self.resize]
        if self.crop is not None:
            changed.crop_size = [self.crop] * (2 if is_video else 1)
        if self.mean is not None:
            changed.mean = list(self.mean)  # type: ignore[arg-type]  # a tuple since __post_init__
        if self.std is not None:
            changed.std = list(self.std)  # type: ignore[arg-type]
        if self.fit not in (None, getattr(preset, "fit", CROP)):
            from ebcli.models.fitted_preset import with_fit

            changed = with_fit(changed, self.fit)
            if self.fit != CROP and self.resize is None:
                changed.resize_size = changed.crop_size
        if not (self.resize or self.crop) or not hasattr(changed, "crop_size"):
            return changed
        resize, crop = min(changed.resize_size), changed.crop_size[0]
        if crop > resize:
            raise ConfigurationError(
                f"the crop of {crop} pixels is larger than the resized image of {resize}: set both --resize and --crop"
            )
        return changed
