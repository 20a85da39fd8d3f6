"""Which colour a value gets: the colormap's own, on the scale that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from ebcli.drawing.color_scale import limits, palette
from ebcli.drawing.overlay import picture
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError
from ebcli.files.input_spec import Placement

PHOTO = Image.new("RGB", (400, 400), (100, 140, 180))
PLACE = Placement(0, 0, 400, 400)


def seen(saliency: np.ndarray, look: DrawingStyle, at: tuple[int, int] = (50, 200)) -> np.ndarray:
    return np.array(picture(PHOTO, saliency, PLACE, look).getpixel(at)).astype(float)


def level(value: float, most: float = 1.0, least: float = 0.0) -> np.ndarray:
    """A map that is even but for its last column, which is out of reach of the pixel looked at."""
    saliency = np.full((4, 4), value)
    saliency[:, 3] = most
    saliency[0, 3] = least
    return saliency


def colour(cmap: str, value: float) -> np.ndarray:
    return np.array(colormaps[cmap](value)[:3]) * 255


@pytest.mark.parametrize("cmap", ["inferno", "turbo", "viridis", "jet", "tab10"])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_colours_are_the_colormaps_own(cmap: str, value: float) -> None:
    np.testing.assert_allclose(seen(level(value), DrawingStyle("heatmap", cmap)), colour(cmap, value), atol=1)
    bare = seen(level(value), DrawingStyle(cmap=cmap, alpha=0.0))
    for alpha in (1.0, 0.5):
        share = alpha * value**0.6
        expected = share * colour(cmap, value) + (1 - share) * bare
        np.testing.assert_allclose(seen(level(value), DrawingStyle(cmap=cmap, alpha=alpha)), expected, atol=2)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.5, 1.0])
def test_the_paper_s_look_is_its_formula(value: float) -> None:
    share = value**0.8
    expected = (1 - share) * np.array([100, 140, 180]) + share * colour("jet", value)
    np.testing.assert_allclose(seen(level(value), DrawingStyle("paper", "jet")), expected, atol=2)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.5, 1.0])
def test_a_mask_s_opacity_is_the_map(value: float) -> None:
    *photo, opacity = seen(level(value), DrawingStyle("mask"))
    assert photo == [100, 140, 180]
    assert opacity == pytest.approx(255 * value, abs=1)


@pytest.mark.parametrize("cmap", ["RdBu_r", "coolwarm", "PuOr"])
@pytest.mark.parametrize(("value", "place"), [(0.0, 0.5), (2.0, 1.0), (-2.0, 0.0), (1.0, 0.75), (-1.0, 0.25)])
def test_a_signed_zero_is_the_middle_of_the_colormap(cmap: str, value: float, place: float) -> None:
    """Whichever side reaches further, the other one has the same scale."""
    for most, least in ((2.0, 0.0), (2.0, -1.0), (1.0, -2.0)):
        look = DrawingStyle("heatmap", cmap, signed=True)
        np.testing.assert_allclose(seen(level(value, most, least), look), colour(cmap, place), atol=3)
    bare = seen(level(0.0), DrawingStyle(cmap=cmap, alpha=0.0))
    over = seen(level(value, 2.0), DrawingStyle(cmap=cmap, alpha=1.0, signed=True))
    share = (abs(value) / 2) ** 0.6
    np.testing.assert_allclose(over, share * colour(cmap, place) + (1 - share) * bare, atol=3)


def test_what_is_below_zero_counts_as_zero_unless_signed() -> None:
    below, zero = (seen(level(value), DrawingStyle("heatmap")) for value in (-5.0, 0.0))
    assert (below == zero).all()


@pytest.mark.parametrize(("vmin", "vmax", "value", "place"), [
    (0.0, 2.0, 1.0, 0.5),
    (0.0, 2.0, 2.0, 1.0),
    (0.0, 2.0, 7.0, 1.0),
    (1.0, 2.0, 1.5, 0.5),
    (1.0, 2.0, 0.5, 0.0),
    (0.5, None, 1.25, 0.5),  # up to the map's own maximum, 2
    (3.0, None, 1.25, 0.0),  # which is below the lower end
])  # fmt: skip
def test_ends_of_a_scale_are_in_even_spreads(vmin: float, vmax: float | None, value: float, place: float) -> None:
    """Of a map of 16 cells, an even spread is 1 / 16 in each."""
    look = DrawingStyle("heatmap", "viridis", vmin=vmin, vmax=vmax)
    np.testing.assert_allclose(seen(level(value / 16, 2 / 16), look), colour("viridis", place), atol=2)
    finer = np.kron(level(value, 2), np.ones((2, 2))) / 64
    np.testing.assert_allclose(seen(finer, look), colour("viridis", place), atol=2)


def test_a_fixed_scale_is_symmetric_if_signed() -> None:
    for value, place in ((0.0, 0.5), (2.0, 1.0), (-1.0, 0.25), (-9.0, 0.0)):
        look = DrawingStyle("heatmap", "RdBu_r", signed=True, vmax=2.0)
        np.testing.assert_allclose(seen(level(value / 16, 1), look), colour("RdBu_r", place), atol=2)


def test_a_percentile_is_of_what_is_above_zero() -> None:
    saliency = np.full((10, 10), -3.0)
    saliency[:5, :] = 1.0
    saliency[4, 9] = 1000.0  # one outlier in fifty
    assert limits(saliency, DrawingStyle()) == (0, 1000)
    assert limits(saliency, DrawingStyle(percentile=90)) == (0, 1)
    assert limits(saliency, DrawingStyle(percentile=50, signed=True)) == (-3, 3)
    for few in (10, 90):  # half of the cells are not above zero, and do not count
        look = DrawingStyle("heatmap", percentile=few)
        np.testing.assert_allclose(seen(saliency, look, (50, 50)), colour("inferno", 1.0), atol=1)
    np.testing.assert_allclose(seen(saliency, DrawingStyle("heatmap"), (50, 50)), colour("inferno", 0.0), atol=3)


def test_the_default_colormap_is_matplotlib_s() -> None:
    expected = colormaps[DrawingStyle().colormap](np.linspace(0, 1, 256), bytes=True)[:, :3]
    np.testing.assert_array_equal(palette(DrawingStyle().colormap), expected)


def test_a_wrong_colormap_gets_the_closest_names() -> None:
    with pytest.raises(ConfigurationError, match="'viridis'"):
        palette("virids")
