"""Measures of saliency maps. Imports no torch.

A map without a finite positive value is blank. Where larger scores are better, a blank map scores 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ebcli.datatypes.explanation import Box
from ebcli.drawing.overlay import is_blank
from ebcli.errors import ConfigurationError, import_optional


def resized(saliency: ArrayLike, size: tuple[int, int]) -> NDArray[np.float32]:
    """Resize a map (h, w) bicubically to an image's ``size`` (width, height); returns (height, width)."""
    values = np.asarray(saliency, dtype=np.float32)
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC))


def pointing_hit(saliency: ArrayLike, mask: ArrayLike, tolerance: int = 15) -> float:
    """Whether a map's maximum lies on an object: the pointing game (Zhang et al., ECCV 2016, section 4.1).

    Args:
        saliency: map (H, W) at the image's own size; see ``resized``.
        mask: mask (H, W) of the object.
        tolerance: maximum distance from the object, in pixels.

    Returns:
        1.0 for a hit, 0.0 for a miss; if several pixels share the maximum, the fraction of them that hit.

    Raises:
        ValueError: the shapes differ.
    """
    values = np.asarray(saliency)
    region = np.asarray(mask, dtype=bool)
    if values.shape != region.shape:
        raise ConfigurationError(
            f"the map has shape {values.shape}, but the mask {region.shape}: resize the map first"
        )
    if is_blank(values):
        return 0.0
    offsets = np.arange(-tolerance, tolerance + 1)
    disc = offsets[:, None] ** 2 + offsets**2 <= tolerance**2
    with_margin = np.pad(region, tolerance)
    side = len(offsets)
    peaks = np.argwhere(values == values.max())
    return float(np.mean([(with_margin[y : y + side, x : x + side] & disc).any() for y, x in peaks]))


def is_difficult(mask: ArrayLike, others: int) -> bool:
    """Whether a question of the pointing game is *difficult* (section 4.1): a small object among other classes.

    Args:
        mask: mask (H, W) of all objects of the class.
        others: number of other classes in the image.
    """
    return others > 0 and float(np.mean(np.asarray(mask, dtype=bool))) < 0.25


def grid_score(saliency: ArrayLike, cell: int, n: int) -> float:
    """Fraction of a map of an ``n`` x ``n`` mosaic that lies in the right image; 1 / n^2 for a constant map.

    This is the localization metric of the grid pointing game (Böhle et al., CVPR 2021, equation 9; Rao et al.,
    CVPR 2022): the sum of the positive values in the image divided by the sum over the mosaic.

    Args:
        saliency: map (h, w) of the whole mosaic at any resolution; values on the border of two images are divided
            between them by area.
        cell: index of the right image, counted row by row from the top left.
        n: number of images per row and column.
    """
    if is_blank(saliency):
        return 0.0
    positive = np.maximum(np.asarray(saliency, dtype=np.float64), 0)
    return float((positive * cell_fractions(positive.shape, cell, n)).sum() / positive.sum())


def grid_hit(saliency: ArrayLike, cell: int, n: int) -> float:
    """Whether the maximum of a map of a mosaic lies in the right image: 1.0 or 0.0.

    If several values share the maximum, the fraction of their area that does. Arguments as for ``grid_score``.
    """
    if is_blank(saliency):
        return 0.0
    values = np.asarray(saliency)
    return float(cell_fractions(values.shape, cell, n)[values == values.max()].mean())


def equal_area(saliency: ArrayLike, mask: ArrayLike) -> float:
    """Fraction of a map's k strongest pixels that lie on an object of k pixels.

    It is 1 for a map that covers the object and nothing else, and the object's share of the image for a constant map.
    Only the order of the pixels counts, so a map does not gain by being sharper. Of pixels that share a value, the
    average over their orders counts.

    Args:
        saliency: map (H, W) at the size of the mask; see ``resized``.
        mask: mask (H, W) of the object, or the fraction of each pixel that it covers.

    Raises:
        ConfigurationError: the shapes differ, or the mask is empty.
    """
    if is_blank(saliency):
        return 0.0
    ranking = _Ranking(saliency, mask)
    overlap = np.interp(ranking.size, ranking.areas, ranking.overlaps)
    return float(overlap / ranking.size)


def best_threshold_iou(saliency: ArrayLike, mask: ArrayLike) -> float:
    """Intersection over union of an object and all pixels above a threshold, at the threshold where it is largest.

    As for ``equal_area``, only the order of the pixels counts. A constant map has the object's share of the image.

    Args:
        saliency: map (H, W) at the size of the mask; see ``resized``.
        mask: mask (H, W) of the object, or the fraction of each pixel that it covers.

    Raises:
        ConfigurationError: the shapes differ, or the mask is empty.
    """
    if is_blank(saliency):
        return 0.0
    ranking = _Ranking(saliency, mask)
    unions = ranking.areas + ranking.size - ranking.overlaps
    return float((ranking.overlaps / unions).max())


class _Ranking:
    """The pixels of a map from the largest value to the smallest.

    Attributes:
        size: the number of pixels of the object.
        areas: the number of pixels above each threshold, from 0 to all.
        overlaps: how many of them lie on the object.
    """

    def __init__(self, saliency: ArrayLike, mask: ArrayLike) -> None:
        values = np.asarray(saliency)
        covered = np.asarray(mask, dtype=np.float64)
        if values.shape != covered.shape:
            raise ConfigurationError(
                f"the map has shape {values.shape}, but the mask {covered.shape}: resize the map first"
            )
        self.size = float(covered.sum())
        if self.size <= 0:
            raise ConfigurationError("the mask is empty: there is no object to cover")
        _, levels = np.unique(-values.ravel(), return_inverse=True)
        counts = np.bincount(levels)
        hits = np.bincount(levels, weights=covered.ravel())
        self.areas = np.concatenate([[0], counts.cumsum()])
        self.overlaps = np.concatenate([[0], hits.cumsum()])


def bootstrap_interval(
    values: ArrayLike, photos: Sequence[str], *, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95% interval of a mean over questions, if the photos were drawn again.

    Whole photos are drawn with replacement, because the questions about one photo are not independent.

    Args:
        values: the value of each question.
        photos: the photo of each question.
        samples: how many times to draw.
        seed: random seed.

    Returns:
        The 2.5% and 97.5% percentiles of the mean. With one photo, both are the mean.
    """
    _, indices = np.unique(photos, return_inverse=True)
    totals = np.bincount(indices, weights=np.asarray(values, dtype=np.float64))
    counts = np.bincount(indices)
    drawn = np.random.default_rng(seed).integers(len(counts), size=(samples, len(counts)))
    means = totals[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def bounding_box(saliency: ArrayLike, alpha: float) -> Box | None:
    """Smallest box around all values above ``alpha`` times a map's mean (Zhang et al., section 4.2).

    Args:
        saliency: map (H, W) at the image's own size; negative values count as 0.
        alpha: factor of the mean.

    Returns:
        left, top, right, bottom in pixels from the top left corner; None if no value is above the threshold.
    """
    if is_blank(saliency):
        return None
    positive = np.maximum(np.asarray(saliency), 0)
    rows, columns = np.nonzero(positive > alpha * positive.mean(dtype=np.float64))
    if not len(rows):
        return None
    return Box(float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))


def intersection_over_union(one: Box, other: Box) -> float:
    """Area of the intersection of two boxes (left, top, right, bottom) divided by that of their union."""
    return Box(*one).overlap(Box(*other))


def area_under(curve: ArrayLike) -> float:
    """Area under a curve of equally spaced values over [0, 1], by the trapezoidal rule."""
    values = np.asarray(curve, dtype=np.float64)
    return float((values[1:] + values[:-1]).mean() / 2)


def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's rank correlation of two maps of equal shape; 0 if one of them is constant or not finite.

    Raises:
        ConfigurationError: SciPy is missing.
    """
    values = [np.asarray(saliency, dtype=np.float64).ravel() for saliency in (one, other)]
    if not all(np.isfinite(v).all() and np.ptp(v) > 0 for v in values):
        return 0.0
    return float(import_optional("scipy.stats").spearmanr(*values).statistic)


def structural_similarity(one: ArrayLike, other: ArrayLike) -> float:
    """SSIM (Wang et al., 2004) of two maps (H, W) of equal shape, at least 7 x 7; 1 for equal maps.

    As when they are drawn, negative values are clamped to 0 and each map is scaled to its own maximum.

    Raises:
        ConfigurationError: scikit-image is missing.
    """

    def scale(saliency: ArrayLike) -> NDArray[Any]:
        if is_blank(saliency):
            return np.zeros(np.shape(saliency))
        return np.maximum(saliency, 0) / np.max(saliency)

    compare = import_optional("skimage.metrics", "scikit-image").structural_similarity
    return float(compare(scale(one), scale(other), data_range=1.0))


def cell_fractions(shape: tuple[int, ...], cell: int, n: int) -> NDArray[np.float64]:
    """For each value of a map (h, w), the fraction of its area that lies in one of n x n images."""
    parts = []
    for count, index in zip(shape, divmod(cell, n), strict=True):
        low = index * count / n
        high = (index + 1) * count / n
        starts = np.arange(count)
        parts.append(np.clip(np.minimum(starts + 1, high) - np.maximum(starts, low), 0, 1))
    return np.outer(*parts)
