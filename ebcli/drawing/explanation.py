"""What a network says about one image. Needs no torch, so that worker processes can be given it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LayerMaps:
    """The maps of K classes at one layer.

    Attributes:
        layer: its name; ``plan.INPUT`` for the pixels.
        mass: (K,), what the marginal maps sum to.
        maps: (K, h, w), signed.
        losses: what each of the classes lost where above the layer, (K,) by operation; None if not asked for.
        relevance: (K, ...), the signed relevance; None if it was not asked for.
        marginal: (K, h, w), the marginal maps to be shown beside contrastive ones; None if not asked for.
    """

    layer: str
    mass: list[float]
    maps: NDArray[np.float32]
    losses: dict[str, list[float]] | None = None
    relevance: NDArray[np.float32] | None = None
    marginal: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Explanation:
    """What the network says about one image, for K classes at one or several layers.

    Attributes:
        classes, scores: (K,), the classes and their softmax probabilities.
        names: (K,), the classes' names; None where the weights tell none.
        layers: the maps, layer by layer.
        seconds: this image's share of the time.
    """

    classes: list[int]
    scores: list[float]
    names: list[str | None]
    layers: tuple[LayerMaps, ...]
    seconds: float

    def each_map(self) -> Iterator[tuple[int, LayerMaps]]:
        """The order of maps in results and records: by classes k in 0 to K - 1, and for each of them by layers."""
        return ((k, at) for k in range(len(self.classes)) for at in self.layers)
