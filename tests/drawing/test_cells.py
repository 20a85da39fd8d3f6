"""Cells as they are: hard-edged, finer than pixels, and so many that a few would leave the rest dark."""

import io

import numpy as np
import pytest
from galleries import framed, mapped
from lightness import difference
from PIL import Image

from ebcli.datatypes.explanation import Box
from ebcli.drawing.figure import panel
from ebcli.drawing.overlay import picture
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.errors import ConfigurationError
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.paths import FileState

GRAY = Image.new("RGB", (280, 210), (120, 120, 120))


def heat(
    size: tuple[int, int], values: np.ndarray, place: Box | None = None, **options: object
) -> np.ndarray:
    """A heatmap in gray, (h, w), 0 to 1."""
    look = DrawingStyle("heatmap", cmap="gray", **options)  # type: ignore[arg-type]
    drawn = picture(Image.new("RGB", size), values, place or Box(0, 0, *size), look)
    return np.asarray(drawn)[..., 0] / 255


def test_cells_have_hard_edges() -> None:
    values = np.random.default_rng(0).random((7, 7))
    values[0, 0] = 1
    expected = np.kron(values, np.ones((30, 40)))
    np.testing.assert_allclose(heat((280, 210), values, cells=True), expected, atol=0.005)
    smooth = heat((280, 210), values)
    assert np.abs(smooth - expected).max() > 0.2


def test_cells_of_a_crop_lie_where_the_network_saw_them() -> None:
    values = np.zeros((4, 4))
    values[1, 2] = 1
    seen = heat((300, 200), values, Box(60, 10.4, 240, 190.4), cells=True)
    rows, columns = np.nonzero(seen > 0.9)
    assert (columns.min(), columns.max() + 1) == (150, 195)
    assert (rows.min(), rows.max() + 1) == (55, 100)  # 55.4 to 100.4: pixels whose centers lie there


@pytest.mark.parametrize("style", ["overlay", "mask", "paper", "side-by-side"])
def test_every_style_with_colors_has_cells(style: str) -> None:
    values = np.random.default_rng(0).random((7, 7))
    drawn = np.asarray(picture(GRAY, values, Box(0, 0, 280, 210), DrawingStyle(style, cells=True)))[:, -280:]
    blocks = drawn.reshape(7, 30, 7, 40, -1)
    assert (blocks == blocks[:, :1, :, :1]).all()


def test_contours_need_more_than_cells() -> None:
    with pytest.raises(ConfigurationError, match="contours need interpolated values: drop cells"):
        DrawingStyle("contour", cells=True)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("cells", [False, True])
@pytest.mark.parametrize("finer", [1.5, 2, 3, 8.1])
def test_a_single_strong_cell_stays_visible_where_cells_are_smaller_than_pixels(
    finer: float, cells: bool, sign: int
) -> None:
    """Wherever it lies: its pixel is nearly as strong as the end of the scale, and what is far from it is not."""
    count = round(40 * finer)
    for at in np.random.default_rng(0).integers(4, count - 4, 10):
        values = np.zeros((count, count))
        values[at, count // 3] = sign
        seen = heat((40, 40), values, percentile=100, signed=sign < 0, cells=cells)
        strength = 2 * np.abs(seen - 0.5) if sign < 0 else seen
        row, column = np.unravel_index(strength.argmax(), strength.shape)
        assert strength.max() > 0.85
        assert (row + 0.5, column + 0.5) == pytest.approx(
            ((at + 0.5) / finer, (count // 3 + 0.5) / finer), abs=1.5
        )
        assert (strength > 0.3).sum() <= 25


def test_it_stays_visible_in_thumbnails_of_the_gallery() -> None:
    values = np.zeros((1, 1200, 1200), np.float32)
    values[0, 300, 900] = 1
    names = ThumbnailNames("a.jpg", FileState(1, 2), "c", "m")
    maps = framed(mapped({"5": values}, [7], Box(0, 0, 600, 600)), (600, 600), DrawingStyle(percentile=100))
    files = thumbnails(names, DisplayFrame(Image.new("RGB", (600, 600))), maps)
    opacity = np.asarray(Image.open(io.BytesIO(files[names.map("5", 7)])).convert("RGBA"))[..., 3]
    assert opacity.max() > 0.85 * 255


def test_a_few_outliers_do_not_leave_a_fine_map_dark() -> None:
    """Of 14,400 cells, 8 are ten times as strong as 2,000 others, which are seen all the same; of 144, one counts."""
    for cells, others, outliers, seen in ((120, 2000, 8, True), (12, 20, 1, False)):
        values = np.zeros(cells * cells)
        values[:others], values[-outliers:] = 0.1, 1
        drawn = heat((240, 240), values.reshape(cells, cells))
        assert (drawn[4, 120] > 0.99) == seen
        whole = heat((240, 240), values.reshape(cells, cells), percentile=100)
        assert whole[4, 120] == pytest.approx(0.1, abs=0.01)


def test_a_panel_s_legend_tells_of_fine_maps(written: list[tuple[float, float, str]]) -> None:
    for cells, end in ((99, "maximum"), (100, "maximum (fine maps: percentile 99.5)")):
        maps = framed(mapped({"5": np.ones((1, cells, cells))}, [7], Box(0, 0, 280, 210)), GRAY.size)
        panel([DisplayFrame(GRAY)], maps, "a.jpg", "about").image()
        assert written[-2][2] == f"each map's {end}"


@pytest.mark.parametrize("background", [0.0, 0.25, 1.0])
def test_a_mask_keeps_a_part_of_the_rest_visible(background: float) -> None:
    values = np.repeat(np.linspace(0, 1, 6), 4)[None]
    look = DrawingStyle("mask", background=background)
    drawn = picture(Image.new("RGB", (360, 60), (10, 200, 30)), values, Box(60, 0, 300, 60), look)
    alpha = np.asarray(drawn)[30, :, 3] / 255
    expected = background + (1 - background) * np.linspace(0, 1, 6)
    np.testing.assert_allclose(alpha[80:300:40], expected, atol=0.01)
    np.testing.assert_allclose(alpha[[10, 350]], background, atol=0.01)  # outside the crop
    assert (np.asarray(drawn)[..., :3] == (10, 200, 30)).all()


def test_a_fine_overlay_is_seen_where_its_maximum_would_hide_it() -> None:
    values = np.random.default_rng(0).exponential(1, (224, 224)) ** 3
    drawn = {
        percentile: np.median(difference(picture(GRAY, values, Box(0, 0, 280, 210), look), GRAY))
        for percentile in (None, 100.0)
        for look in [DrawingStyle(percentile=percentile)]
    }
    assert drawn[None] > 2 * drawn[100.0]


@pytest.mark.parametrize("options", [{"background": 2}, {"background": -0.1}, {"dpi": 10}, {"cell_size": 5}])
def test_bad_values_get_one_sentence(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="but it must be"):
        DrawingStyle("mask", **options)  # type: ignore[arg-type]
