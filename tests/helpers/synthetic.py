"""Synthetic photos that are the same in every run."""

import numpy as np
from PIL import Image


def noise(size: tuple[int, int], sigma: float, seed: int = 0) -> Image.Image:
    """Gaussian noise around 128 in each channel of an RGB image of `size` (width, height)."""
    values = np.random.default_rng(seed).normal(128, sigma, (*size[::-1], 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))
