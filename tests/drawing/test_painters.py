"""What the styles draw beyond colours: lines of equal value, and the photo behind them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image, ImageEnhance

from ebcli.drawing.color_scale import levels
from ebcli.drawing.overlay import picture
from ebcli.drawing.painters import CONTOURS
from ebcli.drawing.style import STYLES, DrawingStyle
from ebcli.files.input_spec import Placement

BLACK = Image.new("RGB", (400, 300))
PLACE = Placement(0, 0, 400, 300)


def test_contours_lie_where_the_map_has_their_values() -> None:
    """On a slope from left to right, where a share of the way up is known; a line is 2 pixels wide there."""
    slope = np.tile((np.arange(200) + 0.5) / 200, (150, 1))
    slope[:, -1] = 1
    row = np.asarray(picture(BLACK, slope, PLACE, DrawingStyle("contour")))[150].astype(int)
    lit = np.nonzero(row.sum(-1) > 100)[0] + 0.5
    groups = np.split(lit, np.nonzero(np.diff(lit) > 2)[0] + 1)
    assert [group.mean() for group in groups] == pytest.approx([400 * share for share in CONTOURS], abs=1)
    assert all(2 <= len(group) <= 3 for group in groups)
    for share in CONTOURS:
        expected = np.array(colormaps["inferno"](share)[:3]) * 255
        assert np.abs(row - expected).max(-1).min() <= 3


def test_contours_of_signed_maps_lie_on_both_sides_of_zero() -> None:
    slope = np.tile((np.arange(200) + 0.5) / 100 - 1, (150, 1))
    row = np.asarray(picture(BLACK, slope, PLACE, DrawingStyle("contour", "RdBu_r", signed=True)))[150].astype(int)
    lit = np.nonzero(row.sum(-1) > 100)[0] + 0.5
    groups = np.split(lit, np.nonzero(np.diff(lit) > 2)[0] + 1)
    expected = sorted(200 + side * 200 * share for share in CONTOURS for side in (-1, 1))
    assert [group.mean() for group in groups] == pytest.approx(expected, abs=1)


def test_an_even_map_has_no_contours() -> None:
    photo = Image.effect_noise((400, 300), 80).convert("RGB")
    assert picture(photo, np.full((5, 5), 0.3), PLACE, DrawingStyle("contour")).tobytes() == photo.tobytes()


@pytest.mark.parametrize("style", STYLES)
def test_where_there_is_no_relevance_the_photo_shows_or_the_colormap_s_end(style: str) -> None:
    photo = Image.new("RGB", (400, 300), (100, 140, 180))
    saliency = np.zeros((6, 8))
    saliency[5, 7] = 1
    painted = picture(photo, saliency, PLACE, DrawingStyle(style))
    seen = painted.getpixel((painted.width - 400 + 20, 20))
    grey = 0.299 * 100 + 0.587 * 140 + 0.114 * 180
    muted = tuple(round(0.85 * (value + grey) / 2) for value in (100, 140, 180))
    black = tuple(round(value * 255) for value in colormaps["inferno"](0.0)[:3])
    expected = {
        "overlay": muted,
        "heatmap": black,
        "side-by-side": black,
        "mask": (100, 140, 180, 0),
        "contour": (100, 140, 180),
        "paper": (100, 140, 180),
    }[style]
    assert seen == pytest.approx(expected, abs=2)


def test_the_photo_is_muted_as_pillow_s_enhancers_do_it_and_darker_outside() -> None:
    photo = Image.merge("RGB", [Image.effect_noise((400, 300), 120) for _ in range(3)])
    saliency = np.zeros((6, 8))
    saliency[0, 0] = 1
    inside = (100, 60, 320, 280)
    painted = picture(photo, saliency, Placement(*inside), DrawingStyle("overlay"))
    muted = ImageEnhance.Brightness(ImageEnhance.Color(photo).enhance(0.5)).enhance(0.85)
    outside = np.asarray(ImageEnhance.Brightness(muted).enhance(0.65)).astype(int)
    difference = np.abs(np.asarray(painted) - outside)
    difference[inside[1] : inside[3], inside[0] : inside[2]] = 0
    assert difference.max() <= 3
    flat = (200, 160, 320, 280)  # far from the only cell
    assert np.abs(np.asarray(painted.crop(flat)).astype(int) - np.asarray(muted.crop(flat))).max() <= 3


@pytest.mark.parametrize("ends", [(0.0, 2.0), (-3.0, 3.0), (0.25, 1.0), (1.0, 1.0)])
def test_levels_are_the_positions_on_the_scale_in_8_bits(ends: tuple[float, float]) -> None:
    values = np.linspace(-4, 4, 999)
    found = np.asarray(Image.fromarray(levels(values, ends)[None]).convert("L"))[0]
    expected = np.interp(values, ends, (0, 255)) if ends[0] < ends[1] else 0  # the whole map lies below the scale
    np.testing.assert_allclose(found, expected, atol=0.501)
