"""Which colour a value gets: the colormap's own, on the scale that was asked for."""

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from ebcli.datatypes.explanation import Box
from ebcli.drawing.overlay import picture
from ebcli.drawing.painters import limits, palette
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError

PHOTO = Image.new("RGB", (400, 400), (100, 140, 180))
PLACE = Box(0, 0, 400, 400)


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
    np.testing.assert_allclose(
        seen(level(value), DrawingStyle("heatmap", cmap=cmap)), colour(cmap, value), atol=1
    )


@pytest.mark.parametrize(
    ("cmap", "signed"), [("inferno", False), ("viridis", False), ("gray", False), ("PuOr", True)]
)
def test_an_overlay_s_opacity_rises_with_the_value(cmap: str, signed: bool) -> None:
    """What is left of the difference between a black and a white photo is what the map lets through."""

    def through(value: float, alpha: float) -> np.ndarray:
        look = DrawingStyle(cmap=cmap, alpha=alpha, signed=signed)
        on_white, on_black = (
            np.array(
                picture(Image.new("RGB", (400, 400), photo), level(value), PLACE, look).getpixel((50, 200))
            )
            for photo in ("white", "black")
        )
        return (on_white - on_black.astype(float)) / 255

    for alpha in (1.0, 0.5):
        for value in (0.0, 0.25, 0.5, 1.0):
            np.testing.assert_allclose(through(value, alpha), 1 - alpha * value, atol=0.02)


@pytest.mark.parametrize("cmap", ["inferno", "turbo", "tab10"])
@pytest.mark.parametrize("value", [0.25, 0.5, 1.0])
def test_an_overlay_s_colors_are_those_of_the_colormap_that_is_asked_for(cmap: str, value: float) -> None:
    expected = (1 - value) * np.array([100, 140, 180]) + value * colour(cmap, value)
    np.testing.assert_allclose(seen(level(value), DrawingStyle(cmap=cmap, alpha=1.0)), expected, atol=2)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.5, 1.0])
def test_the_paper_s_look_is_its_formula(value: float) -> None:
    share = value**0.8
    expected = (1 - share) * np.array([100, 140, 180]) + share * colour("jet", value)
    np.testing.assert_allclose(seen(level(value), DrawingStyle("paper", cmap="jet")), expected, atol=2)


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
        look = DrawingStyle("heatmap", cmap=cmap, signed=True)
        np.testing.assert_allclose(seen(level(value, most, least), look), colour(cmap, place), atol=3)
    over, other = (seen(level(one, 2.0), DrawingStyle(cmap=cmap, signed=True)) for one in (value, -value))
    if value == 0:
        np.testing.assert_allclose(over, seen(level(0.0), DrawingStyle(cmap=cmap, alpha=0.0)))
    else:  # redder than the other side if the colormap is
        hue, expected = over - other, colour(cmap, place) - colour(cmap, 1 - place)
        assert (hue[0] > hue[2]) == (expected[0] > expected[2])


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
def test_ends_of_a_scale_are_in_even_spreads(
    vmin: float, vmax: float | None, value: float, place: float
) -> None:
    """Of a map of 16 cells, an even spread is 1 / 16 in each."""
    look = DrawingStyle("heatmap", cmap="viridis", vmin=vmin, vmax=vmax)
    np.testing.assert_allclose(seen(level(value / 16, 2 / 16), look), colour("viridis", place), atol=2)
    finer = np.kron(level(value, 2), np.ones((2, 2))) / 64
    np.testing.assert_allclose(seen(finer, look), colour("viridis", place), atol=2)


def test_a_fixed_scale_is_symmetric_if_signed() -> None:
    for value, place in ((0.0, 0.5), (2.0, 1.0), (-1.0, 0.25), (-9.0, 0.0)):
        look = DrawingStyle("heatmap", cmap="RdBu_r", signed=True, vmax=2.0)
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
    np.testing.assert_allclose(
        seen(saliency, DrawingStyle("heatmap"), (50, 50)), colour("inferno", 0.0), atol=3
    )


def test_the_colormap_of_heatmaps_is_matplotlib_s() -> None:
    expected = colormaps["inferno"](np.linspace(0, 1, 256), bytes=True)[:, :3]
    np.testing.assert_array_equal(palette(DrawingStyle("heatmap").colormap), expected)


def test_a_wrong_colormap_gets_the_closest_names() -> None:
    with pytest.raises(ConfigurationError, match="'viridis'"):
        palette("virids")
    with pytest.raises(ConfigurationError, match="'nope': choose one of matplotlib, such as viridis"):
        palette("nope")
