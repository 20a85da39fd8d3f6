"""The maps of one image as plain arrays, which worker processes receive. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ebcli.files.input_spec import Placement


def rectangle(box: Sequence[float]) -> NDArray[np.float64]:
    """The closed outline (5, 2) of a box: left, top, right, bottom."""
    left, top, right, bottom = box
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], np.float64)


@dataclass(frozen=True, eq=False)
class Subject:
    """What a map is about: a class, a detection, a segment.

    Attributes:
        index: the class.
        name: the class's name; None if it is unknown.
        score: the class's or detection's probability; a segment's share of the pixels, or its mean probability if
            ``--where`` asks for it.
        where: where in the class's output (...) its probability starts: an index, empty for a single number; or a mask.
        box: a detection's left, top, right and bottom, in pixels of the image.
        outlines: the closed polygons (N, 2) around the object, in pixels of the image.
    """

    index: int
    name: str | None
    score: float
    where: tuple[int, ...] | NDArray[np.bool_] = ()
    box: tuple[float, float, float, float] | None = None
    outlines: Sequence[NDArray[np.float64]] = ()

    @property
    def title(self) -> str:
        """The class and the score in words."""
        return f"{self.name or f'class {self.index}'}, score {self.score:.3f}"


@dataclass(frozen=True, eq=False)
class Map:
    """The map of a subject at a layer.

    Attributes:
        subject: what it is about.
        layer: the layer's name; ``"input"`` for the pixels.
        values: (h, w), signed; of a video (t, h, w), all clips one after another.
        mass: the sum of the marginal map.
        placement: the rectangle of the image that it covers.
        lost_mass: the probability that was lost at each operation above the layer; None if it was not tracked.
        relevance: (...), signed; None unless the arrays are written.
        method: ``"contrastive"`` or ``"marginal"``.
        beside: the maps (h, w) of other methods that are shown beside this one, by name.
    """

    subject: Subject
    layer: str
    values: NDArray[np.float32]
    mass: float
    placement: Placement
    lost_mass: dict[str, float] | None = None
    relevance: NDArray[np.float32] | None = None
    method: str = "contrastive"
    beside: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        """The strongest cell, in units of a uniform map."""
        return float(self.values.max()) * self.values.size


@dataclass(frozen=True)
class Explanation:
    """The maps of one image.

    Attributes:
        maps: in the order of results and records: subject by subject, and layer by layer.
        seconds: this image's share of the time that its batch took.
        label, predicted: its true class and the most likely one, if the true one is known.
        tiles: the number of tiles that were explained and joined; 0 if it was explained at once.
    """

    maps: Sequence[Map]
    seconds: float
    label: int | None = None
    predicted: int | None = None
    tiles: int = 0

    @property
    def subjects(self) -> list[Subject]:
        """Each subject once."""
        return list(dict.fromkeys(map_.subject for map_ in self.maps))

    @property
    def by_layer(self) -> dict[str, list[Map]]:
        """The maps of all subjects, layer by layer."""
        found: dict[str, list[Map]] = {}
        for map_ in self.maps:
            found.setdefault(map_.layer, []).append(map_)
        return found
