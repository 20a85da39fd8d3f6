"""Regions of maps whose regions are known."""

import numpy as np
import pytest

from ebcli.datatypes.explanation import Box
from ebcli.drawing.regions import RegionOptions, largest_region

WHOLE = Box(0, 0, 60, 40)


def blocks(*spans: tuple[int, int, int, int, float]) -> np.ndarray:
    values = np.zeros((40, 60), np.float32)
    for left, top, right, bottom, value in spans:
        values[top:bottom, left:right] = value
    return values


def test_the_box_of_a_block_is_the_block() -> None:
    # at half its height, an edge between the centers of two pixels lies between the pixels
    region = largest_region(blocks((10, 5, 30, 20, 1)), WHOLE, (60, 40), RegionOptions("max", 0.5, True))
    assert region is not None
    assert region.box.xywh == (10, 5, 20, 15)
    assert region.area == pytest.approx(20 * 15, abs=1)  # corners are cut off
    assert region.polygon is not None
    xs, ys = np.array(region.polygon).reshape(-1, 2).T
    assert (xs.min(), xs.max(), ys.min(), ys.max()) == (10, 30, 5, 20)


def test_it_reaches_to_the_edge_of_the_crop_and_not_beyond_the_image() -> None:
    options = RegionOptions("max", 0.5, False)
    region = largest_region(np.ones((4, 4), np.float32), Box(20, 10, 50, 40), (60, 40), options)
    assert region is not None
    assert (region.box.xywh, region.area, region.polygon) == ((20, 10, 30, 30), 900, None)
    region = largest_region(np.ones((4, 4), np.float32), Box(-20, -10, 100, 50), (60, 40), options)
    assert region is not None
    assert region.box.xywh == (0, 0, 60, 40)


def test_it_reaches_to_the_edges_of_a_photo_whose_sides_are_reduced_by_different_factors() -> None:
    """Both become whole numbers of pixels."""
    region = largest_region(
        np.ones((4, 4), np.float32), Box(0, 0, 2000, 705), (2000, 705), RegionOptions("max", 0.5, False)
    )
    assert region is not None
    assert region.box.xywh == pytest.approx((0, 0, 2000, 705))


def test_boxes_of_large_images_are_in_their_own_pixels() -> None:
    values = np.kron(blocks((10, 5, 30, 20, 1)), np.ones((8, 8), np.float32))
    whole = Box(0, 0, 4800, 3200)
    region = largest_region(values, whole, (4800, 3200), RegionOptions("max", 0.5, True))
    assert region is not None
    assert region.box.xywh == pytest.approx((800, 400, 1600, 1200), abs=10)


def test_the_largest_region_counts_and_the_threshold_decides() -> None:
    values = blocks((2, 2, 8, 8, 1), (20, 10, 50, 30, 0.6))

    def box(kind: str, share: float) -> tuple[float, ...] | None:
        region = largest_region(values, WHOLE, (60, 40), RegionOptions(kind, share, False))
        return None if region is None else region.box.xywh

    assert box("max", 0.5) == pytest.approx((20, 10, 30, 20), abs=0.7)
    assert box("max", 0.7) == pytest.approx((2, 2, 6, 6), abs=0.5)
    # the small block has 36 of 396, and everything is needed for 99%
    assert box("mass", 0.05) == pytest.approx((2, 2, 6, 6), abs=1)
    assert box("mass", 0.95) == pytest.approx((20, 10, 30, 20), abs=1)


def test_a_blank_map_has_no_region() -> None:
    for values in (np.zeros((4, 4)), -np.ones((4, 4)), np.full((4, 4), np.nan)):
        assert (
            largest_region(values.astype(np.float32), WHOLE, (60, 40), RegionOptions("max", 0.5, True))
            is None
        )
