"""From the values of a map to colors: the color scale and the colormap."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, closest

LEVELS = 256  # pictures have 8 bits per channel

# An overlay's colors for the class and against it, from 0 to the ends of the scale: hues that photos seldom have, so
# saturated that they are as far from white as from black. benchmarks/overlays.py compares them with others.
_HUES = {1: ((130, 60, 255), (230, 0, 255)), -1: ((0, 220, 140), (0, 220, 0))}


def visible(saliency: NDArray[np.floating], style: DrawingStyle) -> NDArray[np.floating]:
    """The values that a style draws: their magnitude if it is signed, else the positive part."""
    return np.abs(saliency) if style.signed else np.maximum(saliency, 0)


def limits(saliency: NDArray[np.floating], style: DrawingStyle) -> tuple[float, float]:
    """The ends of the color scale for a map (h, w) that is not all 0, in the map's own units."""
    values, uniform = visible(saliency, style), 1 / saliency.size
    if style.vmax is not None:
        high = style.vmax * uniform
    else:
        high = float(np.percentile(values[values > 0], style.percentile_of(saliency.size)))
    return (-high if style.signed else style.vmin * uniform), high


def levels(values: NDArray[np.floating], ends: tuple[float, float], count: int = LEVELS) -> NDArray[np.float32]:
    """Values as levels of a scale, not clipped: the integer part is the level, 0 at the lower end to 255 at the upper.

    This is affine, so a map can be scaled before it is upsampled.
    """
    low, high = ends
    if high <= low:  # the whole map lies below vmin
        return np.full(values.shape, 0.5, np.float32)
    return ((values.astype(np.float64) - low) * ((count - 1) / (high - low)) + 0.5).astype(np.float32)


def opacity(style: DrawingStyle) -> NDArray[np.float64]:
    """How much each of the scale's 256 levels stands out, 0 to 1: its distance from 0, or from the lower end."""
    levels = np.arange(LEVELS)
    middle = LEVELS // 2
    return (np.abs(levels - middle) / (middle - 1)).clip(max=1) if style.signed else levels / (LEVELS - 1)


@lru_cache
def overlay_colors(style: DrawingStyle) -> NDArray[np.uint8]:
    """The colors of an overlay's 256 levels, (256, 3): those of ``cmap``, or its own.

    Blended with an opacity that rises with the value, its own colors differ from any common photo the more, the higher
    the value.
    """
    if style.cmap is not None or style.name == "paper":
        return palette(style.colormap)
    strength, is_against = opacity(style)[:, None], style.signed & (np.arange(LEVELS) < LEVELS // 2)[:, None]
    near, far = (np.where(is_against, _HUES[-1][end], _HUES[1][end]) for end in (0, 1))
    colors: NDArray[np.uint8] = (near + strength * (far - near)).round().astype(np.uint8)
    return colors


@lru_cache
def palette(cmap: str) -> NDArray[np.uint8]:
    """The 256 colors of a matplotlib colormap, (256, 3), from the lowest value to the highest.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    from matplotlib import colormaps  # which takes as long to import as a photo to draw

    if cmap not in colormaps:
        near = closest(cmap, colormaps) or "choose one of matplotlib, such as viridis or turbo"
        raise ConfigurationError(f"unknown colormap {cmap!r}: {near}")
    colors: NDArray[np.uint8] = colormaps[cmap](np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    return colors
