"""Where a map lands on the photo, in which colour, and when it is not painted at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image
from torchvision.transforms._presets import ImageClassification

from ebcli.errors import ConfigurationError
from ebcli.images import Geometry, Placement, decode, placement
from ebcli.overlay import is_blank, overlay, palette, upsample

PRESETS = [
    ImageClassification(crop_size=224, resize_size=256),
    ImageClassification(crop_size=224, resize_size=224),
    ImageClassification(crop_size=300, resize_size=256),  # padded
]


def centre_of_change(before: Image.Image, after: Image.Image) -> tuple[float, float]:
    """The (x, y) of the change, weighted by its strength, at pixel centres."""
    change = np.abs(np.asarray(after).astype(float) - np.asarray(before)).sum(-1)
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


@pytest.mark.parametrize("preset", PRESETS, ids=["crop", "whole", "padded"])
@pytest.mark.parametrize("size", [(640, 400), (400, 640), (300, 300), (1333, 517)])
@pytest.mark.parametrize("cell", [(3, 5), (6, 10), (9, 4)])
def test_a_hot_cell_lands_within_a_pixel(
    preset: ImageClassification, size: tuple[int, int], cell: tuple[int, int]
) -> None:
    """An image of its own coordinates, seen through the preset, tells what lies in the cell's centre."""
    cells = 14
    photo = Image.new("RGB", size, "black")
    expected = looked_at(preset, size, (cell[0] + 0.5) / cells, (cell[1] + 0.5) / cells)
    place = placement(size, Geometry.of(preset))
    heat, (left, top) = upsample(spot(cells, *cell), place, size)
    y, x = np.mgrid[: heat.shape[0], : heat.shape[1]] + 0.5
    landed = ((x * heat).sum() / heat.sum() + left, (y * heat).sum() / heat.sum() + top)
    assert landed == pytest.approx(expected, abs=1)
    painted = overlay(photo, spot(cells, *cell), place)
    assert painted.size == size
    assert centre_of_change(photo, painted) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_hot_cell_lands_on_the_right_thing_in_a_turned_photo(orientation: int, tmp_path: Path) -> None:
    """A white dot is stored turned; the map that is hot where the network sees it paints over the dot."""
    scene = Image.new("RGB", (640, 400), "black")
    scene.paste("white", (430, 90, 436, 96))
    turn = {
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    scene.transpose(turn).save(tmp_path / "turned.png", exif=exif)

    upright = decode(tmp_path / "turned.png")
    preset = ImageClassification(crop_size=224, resize_size=256, mean=(0.0,) * 3, std=(1.0,) * 3)
    saliency = preset(upright)[0].numpy()  # the network's own view of the dot is the map
    heat, (left, top) = upsample(saliency, placement(upright.size, Geometry.of(preset)), upright.size)
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert upright.size == (640, 400)
    assert (column + left + 0.5, row + top + 0.5) == pytest.approx((433, 93), abs=1.5)


def test_the_map_covers_the_crop_and_nothing_else() -> None:
    preset = PRESETS[0]
    size = (512, 256)  # already of the resized height: the crop is the middle 224 pixels each way
    photo = Image.new("RGB", size, (100, 100, 100))
    painted = np.asarray(overlay(photo, np.ones((7, 7)), placement(size, Geometry.of(preset)), alpha=1.0))
    hot = np.all(painted == palette("inferno")[255], axis=-1)
    rows, columns = np.nonzero(hot)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == (144, 368, 16, 240)
    assert hot.sum() == 224 * 224
    assert len(np.unique(painted[~hot], axis=0)) == 1  # the rest is the photo, evenly darkened
    assert 0 < painted[0, 0, 0] < 100


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 1000), (1000, 3)])
@pytest.mark.parametrize("preset", PRESETS, ids=["crop", "whole", "padded"])
def test_tiny_and_narrow_images_have_a_picture_too(size: tuple[int, int], preset: ImageClassification) -> None:
    assert overlay(Image.new("RGB", size, "grey"), np.ones((7, 7)), placement(size, Geometry.of(preset))).size == size


def test_upsampling_is_bicubic_and_exact_at_the_cells_own_size() -> None:
    saliency = np.random.default_rng(0).random((5, 5)).astype(np.float32)
    same, corner = upsample(saliency, Placement(2, 3, 7, 8), (10, 10))
    assert corner == (2, 3)
    np.testing.assert_allclose(same, saliency, atol=1e-6)
    # Cubic convolution is exact for parabolas (Keys 1981), linear interpolation is not.
    parabola = np.tile(np.arange(10, dtype=np.float32) ** 2, (10, 1))
    fine, _ = upsample(parabola, Placement(0, 0, 100, 100), (100, 100))
    np.testing.assert_allclose(fine[50, 30:70], ((np.arange(30, 70) + 0.5) / 10 - 0.5) ** 2, atol=1e-4)


def test_the_map_is_clamped_not_folded() -> None:
    saliency = np.full((4, 4), -5.0)
    saliency[1, 2] = 1.0
    heat, _ = upsample(saliency, Placement(0, 0, 40, 40), (40, 40))
    assert heat.min() == 0
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert (10 <= row < 20) and (20 <= column < 30)


@pytest.mark.parametrize("cmap", ["inferno", "turbo", "viridis", "jet", "tab10"])
@pytest.mark.parametrize(("value", "opacity"), [(0.0, 0.0), (0.5, 0.6598), (1.0, 1.0)])  # 0.5 ** 0.6 = 0.6598
def test_colours_are_the_colormaps_own(cmap: str, value: float, opacity: float) -> None:
    saliency = np.full((4, 4), value)
    saliency[:, 3] = 1.0  # the scale's maximum, out of reach of the pixel looked at
    photo = Image.new("RGB", (400, 400), (100, 100, 100))
    place = Placement(0, 0, 400, 400)
    bare = np.array(overlay(photo, saliency, place, cmap, alpha=0.0).getpixel((50, 200)))
    for alpha in (1.0, 0.5):
        seen = np.array(overlay(photo, saliency, place, cmap, alpha).getpixel((50, 200)))
        colour = np.array(colormaps[cmap](value)[:3]) * 255
        share = alpha * opacity
        np.testing.assert_allclose(seen, share * colour + (1 - share) * bare, atol=2)


def test_alpha_zero_shows_the_photo_and_nothing_of_the_map() -> None:
    photo = Image.effect_noise((50, 50), 80).convert("RGB")
    place = Placement(0, 0, 50, 50)
    one, other = (np.asarray(overlay(photo, spot(5, k, k), place, alpha=0.0)).astype(int) for k in (1, 3))
    assert np.array_equal(one, other)
    assert np.corrcoef(one.ravel(), np.asarray(photo).ravel())[0, 1] > 0.999


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_map_without_meaning_is_not_painted(bad: float) -> None:
    saliency = np.zeros((7, 7))
    saliency[3, 3] = bad
    assert is_blank(saliency)
    painted = np.asarray(overlay(Image.new("RGB", (90, 60), "red"), saliency, Placement(15, 0, 75, 60)))
    assert len(np.unique(painted)) == 1  # one even grey


def test_a_map_hot_only_in_the_padding_is_not_painted() -> None:
    saliency = spot(14, 0, 7)
    painted = np.asarray(overlay(Image.new("RGB", (10, 100), "red"), saliency, Placement(-45, 0, 55, 100)))
    assert len(np.unique(painted)) == 1


def test_a_wrong_colormap_gets_the_closest_names() -> None:
    with pytest.raises(ConfigurationError, match="'viridis'"):
        palette("virids")
