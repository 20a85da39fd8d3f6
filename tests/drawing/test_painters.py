"""What the styles draw beyond colours: lines of equal value, and the photo behind them."""

import numpy as np
import pytest
from lightness import lightness
from matplotlib import colormaps
from PIL import Image
from synthetic import noise

from ebcli.datatypes.explanation import Box
from ebcli.drawing.overlay import picture
from ebcli.drawing.painters import CONTOURS, levels
from ebcli.drawing.style import STYLES, DrawingStyle

BLACK = Image.new("RGB", (400, 300))
PLACE = Box(0, 0, 400, 300)


def line_centers(row: np.ndarray) -> list[float]:
    """Where lines cross a row (w, 3) of a picture: the lightest pixel of each is its middle, its halo is gray."""
    lit = np.nonzero(row.max(-1) > 110)[0] + 0.5
    return [group.mean() for group in np.split(lit, np.nonzero(np.diff(lit) > 2)[0] + 1)]


def test_contours_lie_where_the_map_has_their_values() -> None:
    """On a slope from left to right, where a share of the way up is known; a line is 2 pixels wide there."""
    slope = np.tile((np.arange(200) + 0.5) / 200, (150, 1))
    slope[:, -1] = 1
    row = np.asarray(picture(BLACK, slope, PLACE, DrawingStyle("contour", percentile=100)))[150].astype(int)
    assert line_centers(row) == pytest.approx([400 * share for share in CONTOURS], abs=1)
    seen = [lightness(row[round(400 * share) - 2 : round(400 * share) + 2]).max() for share in CONTOURS]
    assert (np.diff(seen) > 3).all()  # a higher line is lighter


def test_contours_of_signed_maps_lie_on_both_sides_of_zero() -> None:
    slope = np.tile((np.arange(200) + 0.5) / 100 - 1, (150, 1))
    row = np.asarray(picture(BLACK, slope, PLACE, DrawingStyle("contour", signed=True, percentile=100)))[
        150
    ].astype(int)
    expected = sorted(200 + side * 200 * share for share in CONTOURS for side in (-1, 1))
    assert line_centers(row) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("shade", [0, 128, 255])
def test_contours_are_seen_on_dark_and_light_photos(shade: int) -> None:
    """Each line has a neighbor that differs much in lightness from it, and so has the photo from one of the two."""
    slope = np.tile((np.arange(200) + 0.5) / 200, (150, 1))
    photo = Image.new("RGB", (400, 300), (shade, shade, shade))
    row = lightness(np.asarray(picture(photo, slope, PLACE, DrawingStyle("contour", percentile=100)))[150])
    for share in CONTOURS:
        near = row[round(400 * share) - 6 : round(400 * share) + 6]
        assert np.ptp(near) > 25
        assert np.abs(near - row[40]).max() > 15  # the photo, far from all lines


def test_an_even_map_has_no_contours() -> None:
    photo = noise((400, 300), 80)
    assert (
        picture(photo, np.full((5, 5), 0.3), PLACE, DrawingStyle("contour", percentile=100)).tobytes()
        == photo.tobytes()
    )


@pytest.mark.parametrize("style", STYLES)
def test_where_there_is_no_relevance_the_photo_shows_or_the_colormap_s_end(style: str) -> None:
    photo = Image.new("RGB", (400, 300), (100, 140, 180))
    saliency = np.zeros((6, 8))
    saliency[5, 7] = 1
    painted = picture(photo, saliency, PLACE, DrawingStyle(style))
    seen = painted.getpixel((painted.width - 400 + 20, 20))
    black = tuple(round(value * 255) for value in colormaps["inferno"](0.0)[:3])
    expected = {
        "overlay": (100, 140, 180),
        "heatmap": black,
        "side-by-side": black,
        "mask": (100, 140, 180, 0),
        "contour": (100, 140, 180),
        "paper": (100, 140, 180),
    }[style]
    assert seen == pytest.approx(expected, abs=2)


def test_under_an_overlay_a_photo_is_unchanged_but_for_the_map_and_the_frame() -> None:
    photo = noise((400, 300), 120)
    saliency = np.zeros((6, 8))
    saliency[0, 0] = 1
    painted = picture(photo, saliency, Box(100, 60, 320, 280), DrawingStyle("overlay"))
    apart = np.abs(np.asarray(painted).astype(int) - np.asarray(photo)).max(-1)
    apart[60:120, 100:160] = 0  # the only cell and its surroundings
    apart[59:281, [100, 319]] = apart[[60, 279], 99:321] = 0  # the crop's frame
    assert apart.max() <= 1


@pytest.mark.parametrize("ends", [(0.0, 2.0), (-3.0, 3.0), (0.25, 1.0), (1.0, 1.0)])
def test_levels_are_the_positions_on_the_scale_in_8_bits(ends: tuple[float, float]) -> None:
    values = np.linspace(-4, 4, 999)
    found = np.asarray(Image.fromarray(levels(values, ends)[None]).convert("L"))[0]
    expected = (
        np.interp(values, ends, (0, 255)) if ends[0] < ends[1] else 0
    )  # the whole map lies below the scale
    np.testing.assert_allclose(found, expected, atol=0.501)
