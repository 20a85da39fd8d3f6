"""How maps become colours: the scale they are read on, and the colormap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ebcli.errors import ConfigurationError, closest

if TYPE_CHECKING:
    from ebcli.run.plan import RunPlan

LEVELS = 256  # pictures have 8 bits a channel, and so has the way to them


@dataclass(frozen=True)
class DrawingStyle:
    """What pictures of a run have in common; see ``RunPlan`` for the options of these names.

    A scale's ends are in units of an even spread: 1 is the value that each of a map's h w cells would have if the
    whole probability were spread evenly over them, 1 / (h w). So they mean the same at every resolution.

    Attributes:
        style: one of ``plan.STYLES``.
        cmap: a matplotlib colormap's name.
        alpha: how opaque an overlay is at the scale's upper end.
        signed: draw values below 0, too: the scale is symmetric about 0.
        vmin: the scale's lower end, 0 if it is signed.
        vmax: its upper end; None for each map's own.
        percentile: of a map's values above 0, the one that is its own upper end; 100 for the greatest.
    """

    style: str = "overlay"
    cmap: str = "inferno"
    alpha: float = 0.85
    signed: bool = False
    vmin: float = 0.0
    vmax: float | None = None
    percentile: float = 100.0

    @classmethod
    def of(cls, plan: RunPlan) -> DrawingStyle:
        """The look that a plan asks for."""
        own = "RdBu_r" if plan.signed else "jet" if plan.style == "paper" else cls.cmap
        vmin = plan.vmin or 0.0
        return cls(plan.style, plan.cmap or own, plan.alpha, plan.signed, vmin, plan.vmax, plan.percentile)

    def shown(self, saliency: NDArray[np.floating]) -> NDArray[np.floating]:
        """What a map (h, w) has to show: its absolute values if signed, else what is above 0."""
        return np.abs(saliency) if self.signed else np.maximum(saliency, 0)

    def limits(self, saliency: NDArray[np.floating]) -> tuple[float, float]:
        """The ends of the scale that a map (h, w), not all 0, is drawn on, in the map's own units."""
        shown, even = self.shown(saliency), 1 / saliency.size
        high = self.vmax * even if self.vmax is not None else float(np.percentile(shown[shown > 0], self.percentile))
        return (-high if self.signed else self.vmin * even), high

    def normalize(self, values: NDArray[np.floating], limits: tuple[float, float]) -> NDArray[np.floating]:
        """Values as places on a scale, from 0 at its lower end to 1 at its upper; 0 is in the middle if signed."""
        low, high = limits
        if high <= low:  # all of the map is below the lower end that was asked for
            return np.zeros_like(values)
        return np.clip((values - low) / (high - low), 0, 1)

    def opacity(self) -> NDArray[np.float64]:
        """How much each of the scale's 256 levels stands out, 0 to 1: its distance from 0, or from the lower end."""
        levels = np.arange(LEVELS)
        middle = LEVELS // 2
        return (np.abs(levels - middle) / (middle - 1)).clip(max=1) if self.signed else levels / (LEVELS - 1)


@lru_cache
def palette(cmap: str) -> NDArray[np.uint8]:
    """A matplotlib colormap's 256 colours, (256, 3), from the least value to the greatest.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    from matplotlib import colormaps

    if cmap not in colormaps:
        raise ConfigurationError(f"there is no colormap {cmap!r}; {closest(cmap, colormaps)}".rstrip("; "))
    colours: NDArray[np.uint8] = colormaps[cmap](np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    return colours
