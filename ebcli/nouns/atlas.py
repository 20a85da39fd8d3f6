"""Which class has how much evidence where in an image. Imports no torch."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.errors import ConfigurationError
from ebcli.nouns.explanation import Box, Map, Subject

CLEAR = 0.1  # of an image's largest evidence
_WEIGHT = 0.75
_ACROSS = 6  # the shorter side of a map divided by that of the square over which evidence is averaged


@dataclass(frozen=True, eq=False)
class Atlas:
    """The evidence for several classes at each cell of one layer, and so the class that has the most of it there.

    The evidence for a class is its contrastive map, clamped at 0 and not normalized, times a power of its score,
    averaged over a square around each cell. So it can be compared between classes. Between the centers of cells it is
    interpolated linearly; beyond those at the border it is constant. The share of a class at a place is its part of
    the evidence for all of the classes there. See docs/evidence.md for what was measured.

    Attributes:
        subjects: the K classes, in the order of the maps.
        evidence: (K, h, w), nonnegative; 1 is the largest value, unless all are 0.
        placement: the rectangle of the image that the cells cover.
    """

    subjects: Sequence[Subject]
    evidence: NDArray[np.float32]
    _: KW_ONLY
    placement: Box

    @classmethod
    def of(cls, maps: Sequence[Map]) -> "Atlas":
        """The atlas of the contrastive maps of some classes at one layer.

        A map that is about as strong as a map of noise is no evidence.

        Raises:
            ConfigurationError: they are other maps.
        """
        shown = [one for one in maps if not one.is_two_sided]
        about = {(one.layer, one.method, one.against, one.values.ndim, one.subject.where) for one in shown}
        if len(about) != 1 or next(iter(about))[1:] != ("contrastive", "", 2, ()):
            needed = "contrastive maps of an image against their duals, at one layer"
            raise ConfigurationError(f"the evidence for classes is compared by {needed}: explain classes so")
        found = np.stack([evidence(one.drawn_values, one.subject.score) * (not one.is_noise) for one in shown])
        largest = float(found.max(initial=0))
        return cls([one.subject for one in shown], found / (largest or 1), placement=shown[0].placement)

    def sampled(self, x: ArrayLike, y: ArrayLike) -> NDArray[np.float32]:
        """The evidence (K, len(y), len(x)) at columns ``x`` and rows ``y`` of the image; the center of the first pixel
        is 0.5. Outside of the placement, it is 0.
        """
        left, top, right, bottom = self.placement
        height, width = self.evidence.shape[1:]
        rows, columns = _between(y, top, bottom, height), _between(x, left, right, width)
        return np.matmul(rows @ self.evidence, columns.T)

    def at(self, x: float, y: float) -> list[tuple[Subject, float]]:
        """The classes with evidence at the pixel in column ``x`` and row ``y``, each with its share, best first.

        Empty where no class has clear evidence: ``CLEAR`` of the largest in the image.
        """
        found = self.sampled([x + 0.5], [y + 0.5])[:, 0, 0]
        if found.max() < CLEAR:
            return []
        shares = found / found.sum()
        return [(self.subjects[k], float(shares[k])) for k in np.argsort(-shares, kind="stable") if shares[k] > 0]

    @staticmethod
    def named(found: NDArray[np.float32]) -> NDArray[np.intp]:
        """The class with the most of the evidence (K, ...) at each place, as its number; -1 unless its lead is clear.

        Where two classes have about the same evidence, the best one is often wrong.
        """
        return np.where(leads(found).max(0) < CLEAR, -1, found.argmax(0))


def evidence(values: NDArray[np.float32], score: float) -> NDArray[np.float32]:
    """The evidence (h, w) of a class with a score at each cell of its contrastive map (h, w)."""
    height, width = values.shape
    side = max(1, round((min(height, width) / _ACROSS - 1) / 2) * 2 + 1)  # odd
    found = np.pad(np.maximum(values, 0), side // 2)
    for axis in (0, 1):
        found = np.lib.stride_tricks.sliding_window_view(found, side, axis).mean(-1, dtype=np.float32)
    return found * np.float32(max(score, 0.0) ** _WEIGHT)


def leads(found: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far the evidence (K, ...) for each class is ahead of that for the best other one; below 0, how far behind."""
    second, best = np.partition(np.concatenate([found, 0 * found[:1]]), -2, 0)[-2:]
    return found - np.where(found == best, second, best)


def _between(at: ArrayLike, low: float, high: float, cells: int) -> NDArray[np.float32]:
    """What each of some places has of each cell between two ends, (places, cells), by linear interpolation."""
    places = np.asarray(at, np.float64)
    centers = ((places - low) / (high - low) * cells - 0.5).clip(0, cells - 1)
    inside = (places >= low) & (places <= high)
    return (np.maximum(0, 1 - abs(centers[:, None] - np.arange(cells))) * inside[:, None]).astype(np.float32)
