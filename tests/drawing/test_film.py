"""Frames of a video: how the maps of objects become one, averages over time, and the curve of the score below."""

import numpy as np
import pytest
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.film import Curve, add_curve, merge, panel, smooth

CURVE = Curve(np.array([2.0, 3.0, 4.0]), np.array([0.0, 0.5, 1.0]), ends=(2.0, 6.0), limits=(0.0, 1.0))


def curve_places(curve: Curve) -> np.ndarray:
    """The columns and rows of the pixels of a curve below a white frame of 400 x 200 pixels."""
    pixels = np.asarray(add_curve(Image.new("RGB", (400, 200), "white"), ["", ""], curve)).astype(int)
    return np.argwhere(np.ptp(pixels, axis=2) > 100)[:, ::-1]


def test_the_curve_of_a_score_rises_to_the_right_up_to_now() -> None:
    """Seconds 2 to 4 of 2 to 6 are the left half, and the score rises from the lower line to the upper one."""
    places = curve_places(CURVE)
    first, last = places[places[:, 0].argmin()], places[places[:, 0].argmax()]
    assert first[0] == pytest.approx(6, abs=4)
    assert last[0] == pytest.approx(200, abs=4)
    assert last[1] < first[1] - 20
    half = curve_places(CURVE.until(3.0))  # the score of this time included
    assert half[:, 0].max() == pytest.approx(103, abs=4)
    assert half[:, 1].min() == pytest.approx((first[1] + last[1]) / 2, abs=4)


def test_a_score_that_is_missing_is_a_gap() -> None:
    scores = np.array([1.0, 1.0, np.nan, 0.0, 0.0])
    places = curve_places(Curve(np.arange(5.0), scores, ends=(0.0, 4.0), limits=(0.0, 1.0)))
    columns = set(places[:, 0])
    assert {10, 60, 340, 385} <= columns and not {150, 200, 250} & columns


def test_the_class_is_above_how_much_its_map_rests_on(written: list[tuple[float, float, str]]) -> None:
    add_curve(Image.new("RGB", (400, 200)), ["cat, score 0.5", "strength 0.2"], CURVE)
    (_, top, first), (_, below, second) = written
    assert (first, second) == ("cat, score 0.5", "strength 0.2")
    assert 200 < top < below


def test_maps_of_objects_are_merged_by_their_greatest_values() -> None:
    first, second = (
        Map(
            subject=Subject(0, None, 1.0),
            layer="l",
            values=np.array([values], np.float32),
            mass=1.0,
            placement=Box(0, 0, 3, 1),
            method="marginal",
        )
        for values in ([0.5, -0.2, 0.1], [0.2, 0.1, -0.4])
    )
    np.testing.assert_allclose(merge([first, second], signed=False), [[0.5, 0.1, 0.1]])
    np.testing.assert_allclose(merge([first, second], signed=True), [[0.5, -0.2, -0.4]])


def test_averages_have_as_much_of_the_frame_before_as_of_the_one_after() -> None:
    """Frames half the reach away count half; so of 1, 3 and 9, the middle is (0.5 + 3 + 4.5) / 2."""
    maps = np.array([1, 3, 9], np.float32)[:, None, None]
    times = np.array([0.0, 0.1, 0.2])
    np.testing.assert_allclose(smooth(maps, times, times[1:2], 0.2).ravel(), [4], rtol=1e-6)
    np.testing.assert_allclose(smooth(maps, times, times, 0.0), maps)


def test_in_a_panel_the_frame_comes_first() -> None:
    frame, *pictures = (Image.new("RGB", (20, 10), color) for color in ("red", "lime", "blue"))
    row = np.asarray(panel(frame, pictures))[5, 10::22].tolist()
    assert row == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
