"""CIELAB lightness, computed from the definitions of sRGB (IEC 61966-2-1) and of L* (CIE 1976)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

VALUES = np.linspace(0, 1, 11)  # of a scale: 0, 0.1 ... 1


def lightness(rgb: ArrayLike) -> np.ndarray:
    """L*, 0 to 100, of colors (..., 3) in 8 bits."""
    encoded = np.asarray(rgb, dtype=float)[..., :3] / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(luminance > 216 / 24389, 116 * np.cbrt(luminance) - 16, luminance * 24389 / 27)


def rises(pictures: Sequence[Image.Image] | Sequence[np.ndarray]) -> bool:
    """Whether every pixel gets lighter from each picture to the next."""
    seen = np.stack([lightness(np.asarray(one)) for one in pictures])
    return bool((np.diff(seen, axis=0) > 0).all())


def even(value: float) -> np.ndarray:
    """A map with this value everywhere but in two corners, which set a scale from -1 to 1; see ``middle``."""
    saliency = np.full((12, 12), value, np.float32)
    saliency[0, 0], saliency[-1, -1] = 1, -1
    return saliency


def middle(picture: Image.Image) -> Image.Image:
    """The part of a picture where a map of ``even`` is even: without the cells that its corners reach."""
    width, height = picture.size
    return picture.crop((width // 3, height // 3, width * 2 // 3, height * 2 // 3))
