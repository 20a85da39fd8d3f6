"""Each metric on cases worked out by hand, and at its extremes."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from skimage.metrics import structural_similarity as ssim

from ebcli.evaluate import (
    area_under,
    best_threshold_iou,
    bootstrap_interval,
    bounding_box,
    equal_area,
    grid_hit,
    grid_score,
    intersection_over_union,
    is_difficult,
    pointing_hit,
    rank_correlation,
    resized,
    structural_similarity,
)

BLANK = [
    np.zeros((8, 8)),
    np.full((8, 8), -1.0),
    np.full((8, 8), np.nan),
    np.where(np.eye(8) > 0, np.inf, 0.5),
]


def one_hot(shape: tuple[int, int], *places: tuple[int, int]) -> np.ndarray:
    values = np.zeros(shape)
    for place in places:
        values[place] = 1
    return values


def test_pointing_at_an_object_near_it_and_away_from_it() -> None:
    mask = np.zeros((60, 80), dtype=bool)
    mask[20:30, 40:50] = True
    assert pointing_hit(one_hot(mask.shape, (25, 45)), mask, tolerance=0) == 1
    assert pointing_hit(one_hot(mask.shape, (25, 50)), mask, tolerance=0) == 0
    assert pointing_hit(one_hot(mask.shape, (25, 64)), mask) == 1  # 15 pixels right of column 49
    assert pointing_hit(one_hot(mask.shape, (25, 65)), mask) == 0
    assert pointing_hit(one_hot(mask.shape, (5, 45)), mask) == 1  # 15 above row 20
    assert pointing_hit(one_hot(mask.shape, (4, 45)), mask) == 0
    # Euclidean distance: 9 and 12 make 15, 10 and 12 make more
    assert pointing_hit(one_hot(mask.shape, (29 + 9, 49 + 12)), mask) == 1
    assert pointing_hit(one_hot(mask.shape, (29 + 10, 49 + 12)), mask) == 0


def test_pointing_does_not_wrap_around_the_border() -> None:
    mask = one_hot((40, 40), (0, 0)) > 0
    assert pointing_hit(one_hot((40, 40), (39, 39)), mask) == 0
    assert pointing_hit(one_hot((40, 40), (0, 39)), mask) == 0


def test_a_constant_map_points_by_chance() -> None:
    mask = np.zeros((20, 30), dtype=bool)
    mask[:5, :12] = True
    assert pointing_hit(np.ones((20, 30)), mask, tolerance=0) == pytest.approx(60 / 600)
    tied = one_hot((20, 30), (0, 0), (19, 29), (10, 10), (4, 11))
    assert pointing_hit(tied, mask, tolerance=0) == pytest.approx(2 / 4)


@pytest.mark.parametrize("saliency", BLANK)
def test_a_blank_map_misses(saliency: np.ndarray) -> None:
    everywhere = np.ones((8, 8), dtype=bool)
    assert pointing_hit(saliency, everywhere) == 0
    assert grid_score(saliency, 0, 2) == 0
    assert grid_hit(saliency, 0, 2) == 0
    assert bounding_box(saliency, 1.0) is None


def test_pointing_needs_map_and_mask_of_equal_size() -> None:
    with pytest.raises(ValueError, match=r"\(7, 7\).*\(60, 80\).*resize"):
        pointing_hit(np.ones((7, 7)), np.ones((60, 80)))


def test_difficult_questions_are_of_small_objects_among_others() -> None:
    quarter, less = np.zeros((10, 10)), np.zeros((10, 10))
    quarter[:5, :5] = 1
    less[:5, :5] = 1
    less[0, 0] = 0
    assert is_difficult(less, others=1)
    assert not is_difficult(less, others=0)
    assert not is_difficult(quarter, others=1)


def test_resizing_keeps_places_and_sizes() -> None:
    fine = resized(one_hot((4, 8), (1, 6)), (160, 80))
    assert fine.shape == (80, 160)
    y, x = np.unravel_index(fine.argmax(), fine.shape)
    assert abs(y - 29.5) < 1 and abs(x - 129.5) < 1  # the middle of cell (1, 6), of 20 x 20 pixels


def test_grid_score_by_hand() -> None:
    saliency = np.array([[4.0, 0, 1, 0], [0, -9, 0, 1], [2, 0, 0, 0], [0, 0, 0, -1]])
    assert [grid_score(saliency, cell, 2) for cell in range(4)] == [4 / 8, 2 / 8, 2 / 8, 0]
    assert [grid_hit(saliency, cell, 2) for cell in range(4)] == [1, 0, 0, 0]


def test_values_on_the_border_are_divided_by_area() -> None:
    middle = one_hot((3, 3), (1, 1))  # its column and row are cut in half
    assert [grid_score(middle, cell, 2) for cell in range(4)] == [0.25] * 4
    assert [grid_hit(middle, cell, 2) for cell in range(4)] == [0.25] * 4
    assert [grid_score(one_hot((5, 5), (0, 1)), cell, 3) for cell in (0, 1)] == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(("n", "shape"), [(2, (14, 14)), (3, (14, 14)), (3, (10, 17))])
def test_a_constant_map_is_spread_evenly_over_the_grid(n: int, shape: tuple[int, int]) -> None:
    for cell in range(n * n):
        assert grid_score(np.ones(shape), cell, n) == pytest.approx(1 / n**2)
        assert grid_hit(np.ones(shape), cell, n) == pytest.approx(1 / n**2)


def test_a_box_around_values_above_the_mean() -> None:
    saliency = np.zeros((10, 20))
    saliency[2:5, 7:11] = 6.0
    saliency[8, 18] = 0.2  # the mean is 72.2 / 200 = 0.361
    assert bounding_box(saliency, 1.0) == (7, 2, 11, 5)
    assert bounding_box(saliency, 0.5) == (7, 2, 19, 9)
    assert bounding_box(saliency, 17.0) is None
    assert bounding_box(saliency - 100 * (saliency == 0), 0.5) == (
        7,
        2,
        19,
        9,
    )  # what is negative counts as 0


def test_intersection_over_union_by_hand() -> None:
    assert intersection_over_union((0, 0, 4, 2), (2, 1, 6, 3)) == pytest.approx(2 / 14)
    assert intersection_over_union((0, 0, 4, 2), (0, 0, 4, 2)) == 1
    assert intersection_over_union((0, 0, 4, 2), (4, 0, 8, 2)) == 0
    assert intersection_over_union((0, 0, 1, 1), (5, 5, 6, 6)) == 0


def test_the_area_under_a_curve() -> None:
    assert area_under([1, 1]) == 1
    assert area_under([1, 0]) == 0.5
    assert area_under([1, 0, 0, 0]) == pytest.approx(1 / 6)
    assert area_under(np.linspace(0, 1, 101) ** 2) == pytest.approx(1 / 3, abs=1e-4)


def test_rank_correlation_by_hand() -> None:
    one = np.array([[1.0, 2], [3, 4]])
    assert rank_correlation(one, one**3) == pytest.approx(1)
    assert rank_correlation(one, -one) == pytest.approx(-1)
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with d = 1, 1, 1, 1
    assert rank_correlation(one, [[2, 1], [4, 3]]) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert rank_correlation(one, np.ones((2, 2))) == 0
    assert rank_correlation(one, np.full((2, 2), math.nan)) == 0


def test_structural_similarity_clamps_and_scales_the_maps() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 32, 32))
    assert structural_similarity(one, 7 * one) == pytest.approx(1)
    positive, its = one.clip(0), other.clip(0)
    assert structural_similarity(one, other) == ssim(
        positive / positive.max(), its / its.max(), data_range=1.0
    )
    assert structural_similarity(one, np.zeros((32, 32))) < 0.5
    assert structural_similarity(np.zeros((32, 32)), np.full((32, 32), np.nan)) == 1  # neither shows anything


def covered(shape: tuple[int, int], rows: slice, columns: slice) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    mask[rows, columns] = True
    return mask


OBJECT = covered((12, 20), slice(3, 9), slice(4, 12))


def test_a_map_that_is_the_object_covers_it() -> None:
    assert equal_area(OBJECT.astype(float), OBJECT) == 1
    assert best_threshold_iou(OBJECT.astype(float), OBJECT) == 1
    assert equal_area(-1.0 + 2 * OBJECT, OBJECT) == 1
    assert equal_area((~OBJECT).astype(float), OBJECT) == 0


def test_cover_by_hand() -> None:
    """The object is the 4 left pixels of 8; the map has 3 of them among its 4 strongest, behind the strongest one."""
    mask = np.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    saliency = np.array([[7.0, 6, 5, 1, 8, 4, 3, 2]])
    assert equal_area(saliency, mask) == 3 / 4
    # of the first n pixels: 0 / 5, 1 / 5, 2 / 5, 3 / 5 and, with all, 4 / 8
    assert best_threshold_iou(saliency, mask) == 3 / 5


@pytest.mark.parametrize("sharpen", [lambda values: values**3, np.exp, lambda values: 5 * values - 2])
def test_a_sharper_map_gains_nothing(sharpen: Callable[[np.ndarray], np.ndarray]) -> None:
    saliency = np.random.default_rng(0).random(OBJECT.shape) + 0.3 * OBJECT
    for measure in (equal_area, best_threshold_iou):
        assert measure(sharpen(saliency), OBJECT) == measure(saliency, OBJECT)


def test_a_share_rewards_sharpness() -> None:
    mosaic = np.array([[3.0, 2], [1, 1]])
    assert grid_score(mosaic, 0, 2) == 3 / 7
    assert grid_score(mosaic**3, 0, 2) == 27 / 37


def test_pixels_that_share_a_value_count_on_average() -> None:
    share = OBJECT.mean()
    assert equal_area(np.ones(OBJECT.shape), OBJECT) == pytest.approx(share)
    assert best_threshold_iou(np.ones(OBJECT.shape), OBJECT) == pytest.approx(share)
    half = np.array([[2.0, 1, 1, 0]])  # one of the two equal pixels is among the two strongest
    assert equal_area(half, [[1, 1, 0, 0]]) == 3 / 4
    assert equal_area(half, [[1, 0.5, 0.5, 0]]) == 3 / 4


@pytest.mark.parametrize("saliency", BLANK)
def test_a_blank_map_covers_nothing(saliency: np.ndarray) -> None:
    assert equal_area(saliency, np.ones((8, 8))) == 0
    assert best_threshold_iou(saliency, np.ones((8, 8))) == 0


@pytest.mark.parametrize("measure", [equal_area, best_threshold_iou])
def test_cover_needs_an_object_of_the_maps_size(measure: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match=r"\(7, 7\).*\(60, 80\).*resize"):
        measure(np.ones((7, 7)), np.ones((60, 80)))
    with pytest.raises(ValueError, match="the mask is empty"):
        measure(np.ones((7, 7)), np.zeros((7, 7)))


def test_intervals_are_over_photos() -> None:
    """With two photos, the mean is one of three values, and each of the outer ones comes up in a quarter of draws."""
    values, photos = [0.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"]
    assert bootstrap_interval(values, photos) == (0, 1)
    assert bootstrap_interval([0.5] * 4, photos) == (0.5, 0.5)
    assert bootstrap_interval([0.0, 1.0], ["a", "a"]) == (0.5, 0.5)  # its questions always come together
    assert bootstrap_interval(values, photos) == bootstrap_interval(values[::-1], photos[::-1])


def test_an_interval_of_many_photos_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap_interval(values, [*map(str, range(400))])
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)
