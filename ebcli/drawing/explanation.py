"""The maps of one image as plain arrays, which worker processes receive. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ebcli.files.input_spec import Placement


def rectangle(box: Sequence[float]) -> NDArray[np.float64]:
    """The closed outline (5, 2) of a box: left, top, right, bottom."""
    left, top, right, bottom = box
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], np.float64)


@dataclass(frozen=True)
class LayerMaps:
    """The maps of K classes at one layer.

    Attributes:
        layer: its name; ``"input"`` for the pixels.
        mass: (K,), the sums of the marginal maps.
        maps: (K, h, w), signed.
        lost_mass: for each operation above the layer, the probability that each class lost there, (K,); None if it
            was not tracked.
        relevance: (K, ...), signed; None unless the arrays are written.
        method: ``"contrastive"`` or ``"marginal"``.
        beside: (K, h, w) for each other method whose maps are shown beside these, by its name.
    """

    layer: str
    mass: list[float]
    maps: NDArray[np.float32]
    lost_mass: dict[str, list[float]] | None = None
    relevance: NDArray[np.float32] | None = None
    method: str = "contrastive"
    beside: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """The maps of one image, for K classes at one or more layers.

    Attributes:
        classes, scores: (K,), the class indices and their probabilities.
        names: (K,), the class names; None where they are unknown.
        layers: the maps, layer by layer.
        seconds: this image's share of the time that its batch took.
        label, predicted: its true class and the most likely one, if the true one is known.
        placement: the rectangle of the image that the maps cover, if the preprocessing alone does not tell.
        boxes: (K,), the left, top, right and bottom of each detection, in pixels of the image; empty for other tasks.
        outlines: (K,), the closed polygons (N, 2) that mark each object, in pixels of the image; empty for none.
    """

    classes: list[int]
    scores: list[float]
    names: list[str | None]
    layers: tuple[LayerMaps, ...]
    seconds: float
    label: int | None = None
    predicted: int | None = None
    placement: Placement | None = None
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)
    outlines: list[list[NDArray[np.float64]]] = field(default_factory=list)

    def each_map(self) -> Iterator[tuple[int, LayerMaps]]:
        """The maps in the order of results and records: class by class, k in 0 to K - 1, and layer by layer."""
        return ((k, at) for k in range(len(self.classes)) for at in self.layers)

    def outline(self, k: int) -> list[NDArray[np.float64]]:
        """The polygons of map ``k``; none if it has no outline."""
        return self.outlines[k] if self.outlines else []
