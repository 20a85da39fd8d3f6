"""Where a map lands on the photo, in which colour, and when it is not painted at all."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic import noise
from torchvision.transforms._presets import ImageClassification

from ebcli.datatypes.explanation import Box
from ebcli.datatypes.input_spec import InputSpec
from ebcli.drawing.overlay import covered_pixels, interpolate, is_blank, is_blank_on, peaks_at_border, picture
from ebcli.drawing.style import STYLES, DrawingStyle
from ebcli.files.images import decode

PRESETS = [
    ImageClassification(crop_size=224, resize_size=256),
    ImageClassification(crop_size=224, resize_size=224),
    ImageClassification(crop_size=300, resize_size=256),  # padded
]


def centre_of(change: np.ndarray) -> tuple[float, float]:
    """The (x, y) of a change (h, w), weighted by its strength, at pixel centres."""
    y, x = np.mgrid[: change.shape[0], : change.shape[1]] + 0.5
    return float((x * change).sum() / change.sum()), float((y * change).sum() / change.sum())


def looked_at(preset: ImageClassification, size: tuple[int, int], x: float, y: float) -> tuple[float, float]:
    """The image coordinates that the network sees at a place of its input, given in shares of its sides."""
    column, row = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="xy")
    plain = ImageClassification(
        crop_size=preset.crop_size[0],
        resize_size=preset.resize_size[0],
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        antialias=False,
    )
    seen = plain(torch.stack([column, row, column])).numpy()
    side = seen.shape[1]
    middles = np.arange(side) + 0.5
    return (
        float(np.interp(x * side, middles, seen[0, int(y * side)])),
        float(np.interp(y * side, middles, seen[1, :, int(x * side)])),
    )


def spot(cells: int, column: int, row: int) -> np.ndarray:
    saliency = np.zeros((cells, cells), dtype=np.float32)
    saliency[row, column] = 3.7
    return saliency


def shown_at(painted: Image.Image, size: tuple[int, int], style: str) -> Image.Image:
    """The part of a picture that has the map, as RGB."""
    if style == "side-by-side":
        painted = painted.crop((painted.width - size[0], 0, painted.width, size[1]))
    if style == "mask":
        painted = painted.getchannel("A").convert("RGB")
    return painted


def light_of_map(painted: Image.Image, size: tuple[int, int], style: str, place: Box) -> np.ndarray:
    """The light (h, w) that a map in gray adds to a black photo; neither the crop's frame nor the part outside it."""
    values = np.asarray(shown_at(painted, size, style)).astype(float).sum(-1)
    left, top, right, bottom = covered_pixels(place, size)
    seen = np.zeros_like(values)
    inside = slice(top + 3, bottom - 3), slice(left + 3, right - 3)
    seen[inside] = values[inside]
    return seen


SIZES = [(640, 400), (400, 640), (300, 300), (1333, 517)]
# all sizes and presets in one style, and all styles, which draw at the same place
SEEN = [*product(PRESETS, SIZES, STYLES[:1]), *product(PRESETS[:1], SIZES[:2], STYLES[1:])]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("preset", "size", "style"), SEEN)
def test_a_hot_cell_lands_within_a_pixel(
    preset: ImageClassification, size: tuple[int, int], style: str
) -> None:
    """An image of its own coordinates, seen through the preset, tells what lies in the cell's centre."""
    cells, photo, place = 14, Image.new("RGB", size, "black"), InputSpec.from_preset(preset).place(size)
    for cell in ((3, 5), (6, 10), (9, 4)):
        expected = looked_at(preset, size, (cell[0] + 0.5) / cells, (cell[1] + 0.5) / cells)
        saliency = spot(cells, *cell)
        left, top, *_ = box = covered_pixels(place, size)
        heat = interpolate(saliency, place, box).clip(min=0)
        y, x = np.mgrid[: heat.shape[0], : heat.shape[1]] + 0.5
        assert ((x * heat).sum() / heat.sum() + left, (y * heat).sum() / heat.sum() + top) == pytest.approx(
            expected, abs=1
        )
        painted = picture(photo, saliency, place, DrawingStyle(style, cmap="gray"))
        assert shown_at(painted, size, style).size == size
        assert centre_of(light_of_map(painted, size, style, place)) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_hot_cell_lands_on_the_right_thing_in_a_turned_photo(orientation: int, tmp_path: Path) -> None:
    """A white dot is stored turned; the map that is hot where the network sees it paints over the dot."""
    size, style = SIZES[orientation % 2], STYLES[orientation % len(STYLES)]
    scene = Image.new("RGB", size, "black")
    dot = (size[0] // 2 + 60, size[1] // 2 - 70)
    scene.paste("white", (dot[0] - 3, dot[1] - 3, dot[0] + 3, dot[1] + 3))
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = scene.transpose(turn[orientation]) if orientation in turn else scene
    stored.save(tmp_path / "turned.png", exif=exif)

    upright = decode(tmp_path / "turned.png")
    assert upright.size == size
    preset = ImageClassification(crop_size=224, resize_size=256, mean=(0.0,) * 3, std=(1.0,) * 3)
    saliency = preset(upright)[0].numpy()  # the network's own view of the dot is the map
    place = InputSpec.from_preset(preset).place(upright.size)
    black = Image.new("RGB", size, "black")
    light = light_of_map(
        picture(black, saliency, place, DrawingStyle(style, cmap="gray")), size, style, place
    )
    rows, columns = np.nonzero(light > light.max() / 2)
    assert (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx(dot, abs=1)


# a photo of an even 100 where there is no map; under an overlay it lies at 100 / 255 of the way from 25 to 115
OUTSIDE = {"overlay": 100, "contour": 100, "paper": 100, "heatmap": 119, "side-by-side": 119, "mask": 0}


@pytest.mark.parametrize("style", STYLES)
def test_the_map_covers_the_crop_and_nothing_else(style: str) -> None:
    preset = PRESETS[0]
    size = (512, 256)  # already of the resized height: the crop is the middle 224 pixels each way
    photo = Image.new("RGB", size, (100, 100, 100))
    saliency = np.random.default_rng(0).random((7, 7)) + 0.1
    look = DrawingStyle(style, alpha=1.0)
    painted = np.asarray(
        shown_at(picture(photo, saliency, InputSpec.from_preset(preset).place(size), look), size, style)
    )
    changed = np.abs(painted.astype(int) - OUTSIDE[style]).max(-1) > 1
    rows, columns = np.nonzero(changed)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == (144, 368, 16, 240)
    assert style == "contour" or changed[16:240, 144:368].mean() > 0.99


@pytest.mark.parametrize("style", ["overlay", "contour", "paper"])
def test_the_crop_has_a_thin_frame_where_the_image_goes_on(style: str) -> None:
    """One pixel of an even map's crop in a small photo, none around a whole one; nothing is darkened outside."""
    photo, saliency = Image.new("RGB", (300, 200), "white"), np.ones((7, 7))
    painted = np.asarray(picture(photo, saliency, Box(50, 20, 250, 180), DrawingStyle(style))).astype(int)
    for line in (
        painted[100, 45:55],
        painted[100, 245:255][::-1],
        painted[15:25, 150],
        painted[175:185, 150][::-1],
    ):
        outside, frame, inside = line[:5], line[5], line[6:]
        assert (outside == 255).all()
        assert (inside == inside[0]).all()
        assert np.abs(frame - outside[0]).max() > 20 < np.abs(frame - inside[0]).max()
    whole = np.asarray(picture(photo, saliency, Box(0, 0, 300, 200), DrawingStyle(style)))
    assert (whole == whole[0, 0]).all()


@pytest.mark.parametrize("style", STYLES)
def test_strips_meet_without_a_seam(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = noise((301, 203), 80)
    saliency = np.random.default_rng(0).random((7, 7)) ** 3
    place, look = Box(50, 1.5, 250, 201.5), DrawingStyle(style)
    whole = np.asarray(picture(photo, saliency, place, look)).astype(int)
    monkeypatch.setattr("ebcli.drawing.overlay._PIXELS_AT_A_TIME", 301 * 10)
    strips = np.asarray(picture(photo, saliency, place, look)).astype(int)
    assert np.abs(whole - strips).max() <= 2  # rounding
    assert (whole != strips).mean() < 0.01


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 1000), (1000, 3)])
@pytest.mark.parametrize("preset", PRESETS, ids=["crop", "whole", "padded"])
def test_tiny_and_narrow_images_have_a_picture_too(
    size: tuple[int, int], preset: ImageClassification, style: str
) -> None:
    place = InputSpec.from_preset(preset).place(size)
    painted = picture(Image.new("RGB", size, "grey"), np.ones((7, 7)), place, DrawingStyle(style))
    assert painted.height == size[1]
    assert painted.width == size[0] or style == "side-by-side"


def test_upsampling_is_bicubic_and_exact_at_the_cells_own_size() -> None:
    saliency = np.random.default_rng(0).random((5, 5)).astype(np.float32)
    place = Box(2, 3, 7, 8)
    assert covered_pixels(place, (10, 10)) == (2, 3, 7, 8)
    same = interpolate(saliency, place, (2, 3, 7, 8))
    np.testing.assert_allclose(same, saliency, atol=1e-6)
    # Cubic convolution is exact for parabolas (Keys 1981), linear interpolation is not.
    parabola = np.tile(np.arange(10, dtype=np.float32) ** 2, (10, 1))
    fine = interpolate(parabola, Box(0, 0, 100, 100), (0, 0, 100, 100))
    np.testing.assert_allclose(fine[50, 30:70], ((np.arange(30, 70) + 0.5) / 10 - 0.5) ** 2, atol=1e-4)


def test_the_map_is_clamped_not_folded() -> None:
    saliency = np.full((4, 4), -5.0)
    saliency[1, 2] = 1.0
    photo, place = Image.new("RGB", (40, 40)), Box(0, 0, 40, 40)
    heat = np.asarray(picture(photo, saliency, place, DrawingStyle("heatmap", cmap="gray")))[..., 0]
    assert heat.min() == 0
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert (10 <= row < 20) and (20 <= column < 30)
    assert heat[25:].max() < 5  # two undershoots, one a direction, make an overshoot


def test_the_photo_is_left_as_it_is_and_stands_beside_its_map() -> None:
    photo = noise((50, 40), 80)
    before, place = photo.tobytes(), Box(5, 0, 45, 40)
    for style in STYLES:
        both = picture(photo, spot(5, 2, 2), place, DrawingStyle(style))
        assert photo.tobytes() == before
        if style == "side-by-side":
            assert both.size == (101, 40)  # with a gap of 2 in 100
            assert both.crop((0, 0, 50, 40)).tobytes() == before
            alone = picture(photo, spot(5, 2, 2), place, DrawingStyle("heatmap"))
            assert both.crop((51, 0, 101, 40)).tobytes() == alone.tobytes()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, -np.inf])
def test_a_map_without_meaning_is_crossed_out(bad: float, style: str) -> None:
    saliency = np.zeros((7, 7))
    saliency[3, 3] = bad
    assert is_blank(saliency)
    size, place = (90, 60), Box(15, 0, 75, 60)
    assert is_blank_on(size, saliency, place)
    painted = picture(Image.new("RGB", size, "red"), saliency, place, DrawingStyle(style))
    values = np.asarray(painted.crop((painted.width - size[0], 0, painted.width, size[1])))
    assert (values == values[..., :1]).all()  # no colour
    colours, counts = np.unique(values, return_counts=True)
    assert len(colours) == 2  # the grey photo and the stripes, each on a good part
    assert counts.min() > 0.05 * counts.sum()


def test_what_is_below_zero_is_something_to_show_if_signed() -> None:
    size, place = (90, 60), Box(15, 0, 75, 60)
    assert not is_blank_on(size, -spot(7, 3, 3), place, signed=True)
    assert is_blank_on(size, np.zeros((7, 7)), place, signed=True)
    assert is_blank_on(size, np.full((7, 7), np.nan), place, signed=True)


@pytest.mark.release
def test_a_large_photo_takes_few_bytes_a_pixel() -> None:
    """Measured in a process of its own: the peak above what the decoded photo takes, 4 bytes a pixel in Pillow."""
    code = """
import resource, sys
import numpy as np
from PIL import Image
from ebcli.datatypes.explanation import Box
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.overlay import picture
photo = Image.new("RGB", (4000, 2500), "red")
place, saliency = Box(500, 0, 3500, 2500), np.eye(14)
picture(photo.resize((50, 40)), saliency, Box(5, 0, 45, 40), DrawingStyle(sys.argv[1]))  # imports matplotlib
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
picture(photo, saliency, place, DrawingStyle(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (4000 * 2500))
"""
    for style in ("overlay", "contour"):
        done = subprocess.run([sys.executable, "-c", code, style], capture_output=True, text=True, check=True)
        assert float(done.stdout) < 4 + 4  # the picture itself, and what is made of a strip at a time


def test_a_peak_at_an_edge_of_the_crop_counts_where_the_image_goes_on() -> None:
    size, crop = (60, 40), Box(10, 0, 50, 40)  # the middle of a wide image
    for row, column, expected in (
        (2, 0, True),
        (2, 4, True),
        (0, 2, False),
        (4, 2, False),
        (2, 2, False),
        (0, 0, True),
    ):
        values = np.zeros((5, 5))
        values[row, column] = 1
        assert peaks_at_border(size, values, crop) == expected, (row, column)
        assert not peaks_at_border(size, values, Box(0, 0, 60, 40))
        assert not peaks_at_border(size, values, Box(-20, -30, 80, 70))  # padded on all sides
        assert not peaks_at_border(size, values * 0, crop)
        # at the left, the image goes on at the right only; at the foot, above only
        assert peaks_at_border(size, values, Box(0, 0, 40, 40)) == (column == 4), (row, column)
        assert peaks_at_border(size, values, Box(0, 10, 60, 40)) == (row == 0), (row, column)


@pytest.mark.parametrize(("row", "column"), [(6, 3), (3, 6), (0, 3), (3, 0), (3, 3)])
def test_a_map_with_cells_in_the_padding_alone_is_blank(row: int, column: int) -> None:
    """On each side of an image of 50 x 50 pixels, a network pads 10."""
    values = np.zeros((7, 7), np.float32)
    values[row, column] = 1
    size, place, is_outside = (50, 50), Box(-10, -10, 60, 60), (row, column) != (3, 3)
    assert is_blank_on(size, values, place) is is_outside
    painted = np.asarray(picture(Image.new("RGB", size, "red"), values, place, DrawingStyle()))
    assert (painted == painted[..., :1]).all() == is_outside  # no color
    at_the_left = Box(-10, 0, 60, 50)  # padded at the left and at the right only
    assert is_blank_on(size, values, at_the_left) == (column in (0, 6))
