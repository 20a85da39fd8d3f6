"""Which class has how much evidence where in an image. Imports no torch."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.errors import ConfigurationError

CLEAR = 0.1  # of an image's largest evidence
_WEIGHT = 0.75
_ACROSS = 6  # the shorter side of a map divided by that of the square over which evidence is averaged


@dataclass(frozen=True, eq=False)
class Atlas:
    """The evidence for several classes at each cell of one layer, and so the class that has the most of it there.

    The evidence for a class is its contrastive map, clamped at 0 and not normalized, times a power of its score,
    averaged over a square around each cell. So it can be compared between classes. If windows of the image have scores,
    too, the score at a cell is the mean of that of the image and of those of the windows around it: a class that is
    clear in a window often has hardly any score in the image. Between the centers of cells, the evidence is
    interpolated linearly; beyond those at the border it is constant. The share of a class at a place is its part of the
    evidence for all of the classes there. See docs/evidence.md for what was measured.

    Attributes:
        subjects: the K classes, in the order of the maps.
        evidence: (K, h, w), nonnegative; 1 is the largest value, unless all are 0.
        placement: the rectangle of the image that the cells cover.
    """

    subjects: Sequence[Subject]
    evidence: FloatArray
    _: KW_ONLY
    placement: Box

    @classmethod
    def from_maps(cls, maps: Sequence[Map]) -> "Atlas":
        """The atlas of the contrastive maps of some classes at one layer.

        A map that is about as strong as a map of noise is no evidence.

        Raises:
            ConfigurationError: they are other maps.
        """
        maps = [map_ for map_ in maps if not map_.is_two_sided]
        layers = {map_.layer for map_ in maps}
        if len(layers) != 1 or not all(map(_is_of_class, maps)):
            raise ConfigurationError(
                "the evidence for classes is compared by contrastive maps of an image against their duals, "
                "at one layer: explain classes so"
            )
        values = np.stack([evidence(map_.display_values, _scores(map_)) for map_ in maps])
        values[[map_.is_noise for map_ in maps]] = 0
        values /= values.max(initial=0) or 1
        return cls([map_.subject for map_ in maps], values, placement=maps[0].placement)

    def sample(self, x: ArrayLike, y: ArrayLike) -> FloatArray:
        """The evidence (K, len(y), len(x)) at columns ``x`` and rows ``y`` of the image; the center of the first pixel
        is 0.5. Outside of the placement, it is 0.
        """
        left, top, right, bottom = self.placement
        height, width = self.evidence.shape[1:]
        rows = _interpolation(y, top, bottom, height)
        columns = _interpolation(x, left, right, width)
        return np.matmul(rows @ self.evidence, columns.T)

    def classes_at(self, x: float, y: float) -> list[tuple[Subject, float]]:
        """The classes with evidence at the pixel in column ``x`` and row ``y``, each with its share, best first.

        Empty where no class has clear evidence: ``CLEAR`` of the largest in the image.
        """
        values = self.sample([x + 0.5], [y + 0.5])[:, 0, 0]
        if values.max() < CLEAR:
            return []
        shares = values / values.sum()
        ranking = np.argsort(-shares, kind="stable")
        return [(self.subjects[k], float(shares[k])) for k in ranking if shares[k] > 0]

    @staticmethod
    def winners(values: FloatArray) -> NDArray[np.intp]:
        """The class with the most of the evidence (K, ...) at each place, as its number; -1 unless its lead is clear.

        Where two classes have about the same evidence, the best one is often wrong.
        """
        return np.where(leads(values).max(0) < CLEAR, -1, values.argmax(0))


def _is_of_class(map_: Map) -> bool:
    """Whether a map is a contrastive one of a class in an image, against its dual."""
    is_contrastive = map_.method == "contrastive" and not map_.against
    return is_contrastive and map_.values.ndim == 2 and len(map_.subject.where) == 0


def _scores(map_: Map) -> float | DoubleArray:
    """The score of a map's class, at each cell (h, w) if it has scores in windows."""
    subject = map_.subject
    if not subject.windows:
        return subject.score
    height, width = map_.values.shape
    left, top, right, bottom = map_.placement
    x = left + (np.arange(width) + 0.5) * (right - left) / width
    y = top + (np.arange(height) + 0.5) * (bottom - top) / height
    total, count = np.zeros((2, height, width))
    for box, score in subject.windows:
        is_inside = np.outer((box.top <= y) & (y < box.bottom), (box.left <= x) & (x < box.right))
        total += score * is_inside
        count += is_inside
    return (subject.score + total / np.maximum(count, 1)) / 2  # no window has padding


def evidence(values: FloatArray, score: float | DoubleArray) -> FloatArray:
    """The evidence (h, w) of a class with a score, or one at each cell, at each cell of its contrastive map (h, w)."""
    height, width = values.shape
    side = min(height, width) / _ACROSS
    margin = max(0, round((side - 1) / 2))
    means = np.pad(np.maximum(values, 0), margin)
    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(means, 2 * margin + 1, axis)
        means = windows.mean(-1, dtype=np.float32)
    weights: DoubleArray = np.maximum(score, 0.0) ** _WEIGHT
    return means * weights.astype(np.float32)


def leads(values: FloatArray) -> FloatArray:
    """How far the evidence (K, ...) for each class is ahead of that for the best other one; below 0, how far behind."""
    candidates = np.concatenate([values, 0 * values[:1]])
    second, best = np.partition(candidates, -2, 0)[-2:]
    return values - np.where(values == best, second, best)


def _interpolation(positions: ArrayLike, low: float, high: float, cells: int) -> FloatArray:
    """What each of some places has of each cell between two ends, (places, cells), by linear interpolation."""
    places = np.asarray(positions, np.float64)[:, None]
    centers = ((places - low) / (high - low) * cells - 0.5).clip(0, cells - 1)
    is_inside = (places >= low) & (places <= high)
    weights = np.maximum(0, 1 - abs(centers - np.arange(cells)))
    return (weights * is_inside).astype(np.float32)
