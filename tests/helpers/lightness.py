"""CIELAB colors, computed from the definitions of sRGB (IEC 61966-2-1) and of L*, a* and b* (CIE 1976)."""

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

VALUES = np.linspace(0, 1, 11)  # of a scale: 0, 0.1 ... 1


def lab(rgb: ArrayLike) -> np.ndarray:
    """L*, a* and b* of colors (..., 3) in 8 bits, under the daylight D65."""
    encoded = np.asarray(rgb, dtype=float)[..., :3] / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.transpose(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) / [0.9505, 1, 1.089]  # fmt: skip
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack(
        [116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1
    )


def lightness(rgb: ArrayLike) -> np.ndarray:
    """L*, 0 to 100, of colors (..., 3) in 8 bits."""
    return lab(rgb)[..., 0]


def difference(one: ArrayLike, other: ArrayLike) -> np.ndarray:
    """How much colors (..., 3) in 8 bits differ to the eye: the distance in CIELAB, of which 2 is just seen."""
    return np.linalg.norm(lab(one) - lab(other), axis=-1)


def even(value: float) -> np.ndarray:
    """A map with this value everywhere but in two corners, which set a scale from -1 to 1; see ``middle``."""
    saliency = np.full((12, 12), value, np.float32)
    saliency[0, 0], saliency[-1, -1] = 1, -1
    return saliency


def middle(picture: Image.Image) -> Image.Image:
    """The part of a picture where a map of ``even`` is even: without the cells that its corners reach."""
    width, height = picture.size
    return picture.crop((width // 3, height // 3, width * 2 // 3, height * 2 // 3))
