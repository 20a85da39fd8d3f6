"""The region of an image that a map marks, as a box and a polygon: pseudo-labels for detection and segmentation."""

from dataclasses import dataclass, replace

import numpy as np

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Size
from ebcli.drawing.overlay import covered_pixels, interpolate, is_blank_on, reduced_size


@dataclass(frozen=True)
class RegionOptions:
    """How regions are found.

    Attributes:
        kind: ``"max"`` or ``"mass"``.
        share: 0 to 1, exclusive. Of the maximum: the region is where the map exceeds this share of its maximum. Of the
            mass: the region is the smallest that holds this share of the map's positive values.
        masks: also keep polygons.
    """

    kind: str
    share: float
    masks: bool


@dataclass(frozen=True)
class Region:
    """A connected region of an image, in pixels.

    Attributes:
        box: around it.
        area: in pixels, without holes taken out.
        polygon: x, y, x, y, ...; None if only boxes are asked for.
    """

    box: Box
    area: float
    polygon: tuple[float, ...] | None = None


def largest_region(saliency: FloatArray, placement: Box, size: Size, options: RegionOptions) -> Region | None:
    """The largest connected region above the threshold, as for class activation maps (Zhou et al., CVPR 2016).

    Args:
        saliency: the map (h, w); negative values count as 0.
        placement: the rectangle of the image that the map covers.
        size: the image's (width, height).
        options: the threshold.

    Returns:
        The region, by area; None for a blank map.
    """
    from contourpy import FillType, contour_generator

    if is_blank_on(size, saliency, placement):
        return None
    small = reduced_size(size)  # maps are much coarser than that
    small_placement = placement.rescale(size, small)
    left, top, right, bottom = box = covered_pixels(small_placement, small)
    values = np.maximum(interpolate(np.maximum(saliency, 0), small_placement, box), 0).astype(np.float64)
    # values belong to the centers of pixels; the outermost ones reach to the edges
    columns = np.array([left, *(np.arange(left, right) + 0.5), right]) * (size[0] / small[0])
    rows = np.array([top, *(np.arange(top, bottom) + 0.5), bottom]) * (size[1] / small[1])
    padded = np.pad(values, 1, mode="edge")
    generator = contour_generator(columns, rows, padded, fill_type=FillType.OuterOffset)
    polygons = generator.filled(_level(values, options), np.inf)
    outlines = [points[: offsets[1]] for points, offsets in zip(*polygons, strict=True)]
    if not outlines:
        return None
    points = max(outlines, key=_area).clip(0, size)
    bounds = Box(*points.min(axis=0).tolist(), *points.max(axis=0).tolist())
    region = Region(bounds, round(_area(points), 2))
    if not options.masks:
        return region
    return replace(region, polygon=tuple(points[:-1].ravel().astype(float).round(2).tolist()))


def _level(values: DoubleArray, options: RegionOptions) -> float:
    """The value above which the region lies."""
    if options.kind == "max":
        return options.share * float(values.max())
    descending = np.sort(values, axis=None)[::-1]
    sums = np.cumsum(descending)
    lowest = float(descending[np.searchsorted(sums, options.share * sums[-1])])
    below = values.max(initial=0, where=values < lowest)
    return (lowest + float(below)) / 2  # between the lowest value in the region and the next one


def _area(points: DoubleArray) -> float:
    """The area of a closed polygon (N, 2), by the shoelace formula."""
    x, y = points.T
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1])) / 2
