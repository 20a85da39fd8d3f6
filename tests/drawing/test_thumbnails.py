"""Small pictures of photos and maps: where things land in them, and what they are called."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from galleries import framed, mapped
from PIL import Image
from torchvision.transforms._presets import ImageClassification

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.datatypes.input_spec import InputSpec
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import parse_result_name
from ebcli.files.paths import FileState

NAMES = ThumbnailNames("photos/cat.jpg", FileState(1, 2), "c0ffee", "contrastive EB")


def opened(files: Mapping[Path, bytes], path: Path) -> np.ndarray:
    """RGBA, 0 to 1."""
    return np.asarray(Image.open(io.BytesIO(files[path])).convert("RGBA"), dtype=float) / 255


def made(
    photo: Image.Image,
    saliency: np.ndarray,
    place: Box,
    look: DrawingStyle = DrawingStyle(),  # noqa: B008
) -> dict[Path, bytes]:
    """The thumbnails of one map, of class 7 at features.23."""
    return thumbnails(
        NAMES,
        DisplayFrame(photo),
        framed(mapped({"features.23": saliency[None]}, [7], place), photo.size, look),
    )


def whole(size: tuple[int, int]) -> Box:
    return Box(0, 0, *size)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(900, 600), (600, 900), (300, 200), (1333, 517)])
@pytest.mark.parametrize(
    "crop, resize", [(224, 256), (224, 224), (300, 256)], ids=["crop", "whole", "padded"]
)
def test_the_hottest_pixel_is_where_the_network_saw_it(size: tuple[int, int], crop: int, resize: int) -> None:
    """A photo with one bright spot; the map is hot in the cell whose middle the network sees the spot in."""
    preset = ImageClassification(
        crop_size=crop, resize_size=resize, mean=(0.0,) * 3, std=(1.0,) * 3, antialias=False
    )
    cells = 14
    y, x = np.mgrid[: size[1], : size[0]] + 0.5
    coordinates = preset(
        torch.from_numpy(np.stack([x, y, x]))
    ).numpy()  # those that each pixel of the network sees
    middles = np.arange(crop) + 0.5
    for column, row in ((4, 5), (9, 3), (7, 10)):
        at_x, at_y = (column + 0.5) / cells * crop, (row + 0.5) / cells * crop
        spot_x = np.interp(at_x, middles, coordinates[0, int(at_y)])
        spot_y = np.interp(at_y, middles, coordinates[1, :, int(at_x)])
        light = np.exp(-((x - spot_x) ** 2 + (y - spot_y) ** 2) / (2 * (0.02 * max(size)) ** 2))
        photo = Image.fromarray((255 * np.stack([light] * 3, -1)).round().astype(np.uint8))

        saliency = np.full((cells, cells), -1.0)
        saliency[row, column] = 2.5
        files = made(photo, saliency, InputSpec.from_preset(preset).place(size))

        bright, heat = opened(files, NAMES.photo)[..., 0], opened(files, NAMES.map("features.23", 7))
        assert bright.shape == heat.shape[:2]
        assert max(bright.shape) == min(512, max(size))
        hot = heat[..., :3].sum(-1) * heat[..., 3]
        places = []
        for values in (bright, hot):
            top = np.argwhere(values > 0.98 * values.max()) + 0.5  # the summit is flat in 8 bits
            places.append(top.mean(0))
        np.testing.assert_allclose(places[1], places[0], atol=1)


def test_colours_and_opacities_of_a_map() -> None:
    """0 is clear, the maximum opaque and in the last colour; where the network did not look, there is only a frame."""
    saliency = np.array([[0.0, 0.25, 1.0]])
    files = made(Image.new("RGB", (400, 100)), saliency, Box(100, 0, 400, 100), DrawingStyle(cmap="gray"))
    heat = opened(files, NAMES.map("features.23", 7))
    np.testing.assert_allclose(heat[50, 395], [1, 1, 1, 1])
    assert heat[50, 250, 3] == pytest.approx(0.25, abs=0.02)
    assert heat[50, 105, 3] == 0
    assert (heat[:, :100, 3] == 0).all()
    assert (heat[:, [100, 399]] == heat[0, 100]).all()
    assert heat[0, 100, 3] == 1


def test_a_signed_map_shows_both_signs() -> None:
    saliency = np.array([[-1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5]])
    files = made(Image.new("RGB", (100, 10)), saliency, whole((100, 10)), DrawingStyle(signed=True))
    heat = opened(files, NAMES.map("features.23", 7))
    assert heat[5, 4, 3] == pytest.approx(1, abs=0.01)
    assert heat[5, 45, 3] == 0
    assert heat[5, 95, 3] == pytest.approx(0.5, abs=0.02)
    against, favor = heat[5, 4], heat[5, 95]
    assert against[1] - max(against[0], against[2]) > 0.2  # green
    assert min(favor[0], favor[2]) - favor[1] > 0.2  # violet


def test_what_is_below_0_does_not_dent_a_peak_beside_it() -> None:
    saliency = np.array([[-9.0, 1.0, -9.0], [0.5, -3.0, 0.25]])
    photo = Image.new("RGB", (60, 40))
    assert made(photo, saliency, whole(photo.size)) == made(photo, saliency.clip(min=0), whole(photo.size))


def test_each_class_at_each_layer_has_its_own() -> None:
    hot = [np.zeros((2, 1, 4)), np.zeros((2, 1, 2))]
    for k, at, column in ((0, 0, 0), (1, 0, 3), (0, 1, 1), (1, 1, 0)):
        hot[at][k, 0, column] = 1
    explained = mapped({"one": hot[0], "other": hot[1]}, [7, 9], whole((80, 20)))
    files = thumbnails(NAMES, DisplayFrame(Image.new("RGB", (80, 20))), framed(explained, (80, 20)))
    paths = [NAMES.map(layer, index) for layer in ("one", "other") for index in (7, 9)]
    found = [opened(files, path)[10, :, 3].argmax() for path in paths]
    assert len(files) == 5
    assert [at // 20 for at in found[:2]] + [at // 40 for at in found[2:]] == [0, 3, 1, 0]


@pytest.mark.parametrize("saliency", [np.zeros((2, 2)), -np.ones((2, 2)), np.full((2, 2), np.nan)])
def test_a_blank_map_has_no_picture(saliency: np.ndarray) -> None:
    files = made(Image.new("RGB", (20, 20)), saliency, whole((20, 20)))
    assert set(files) == {NAMES.photo}


@pytest.mark.parametrize("size", [(5000, 2), (1, 4000), (1, 1), (3, 700)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    files = made(Image.new("RGB", size), np.eye(3), InputSpec((224, 224)).place(size))
    assert opened(files, NAMES.photo).shape == opened(files, NAMES.map("features.23", 7)).shape
    assert max(opened(files, NAMES.photo).shape[:2]) == min(512, max(size))


def test_a_photo_is_shrunk_as_pillow_would() -> None:
    """The mean colour stays, and nothing is cut off."""
    generator = np.random.default_rng(0)
    photo = Image.fromarray(generator.integers(0, 256, (40, 30, 3), dtype=np.uint8)).resize((1500, 2000))
    small = opened(made(photo, np.eye(2), whole(photo.size)), NAMES.photo)[..., :3]
    reference = np.asarray(photo.resize((384, 512), Image.Resampling.LANCZOS)) / 255
    assert small.shape == reference.shape
    assert np.abs(small - reference).mean() < 0.02


HOSTILE = [
    "../../etc/passwd",
    "a/../../b",
    "x" * 250,
    "\udcff",
    "a\nb",
    "<img src=x>",
    "?#%",
    "report/index.html",
]


@pytest.mark.parametrize("place", HOSTILE)
def test_names_stay_below_the_report(place: str) -> None:
    names = ThumbnailNames(place, FileState(1, 2), "c", "m")
    for path in (names.photo, names.map("l", 3), names.overlay("l", 3)):
        assert path.parts[:2] == ("report", "thumbnails")
        assert ".." not in path.parts
        assert str(path).isascii()
        assert not set(" <>?#%\"'\n\\") & set(str(path))
        assert max(map(len, path.parts)) < 64


def test_names_never_meet() -> None:
    """Of inputs whose names would run into each other, states, layers, methods, settings and classes."""
    paths = []
    places = (*HOSTILE, "a", "a/b", "A")
    for place in places:
        for stamp in (FileState(1, 2), FileState(12, 2), FileState(1, 22)):
            paths.append(ThumbnailNames(place, stamp, "c", "m").photo)
            for configuration, method, layer in (
                ("c", "m", "l"),
                ("c", "ml", ""),
                ("cm", "", "l"),
                ("", "m", "l"),
            ):
                names = ThumbnailNames(place, stamp, configuration, method)
                paths += [names.map(layer, 1), names.map(layer, 11), names.overlay(layer, 1)]
    assert len(set(paths)) == len(places) * 3 * (1 + 4 * 3)


def test_runs_know_thumbnails_as_results() -> None:
    """So they are no inputs to a run on a directory that holds another one's output."""
    files = made(Image.new("RGB", (20, 20)), np.eye(2), whole((20, 20)))
    assert files
    assert all(parse_result_name(path) is not None for path in files)


def test_outlines_have_the_colors_and_the_halo_of_exported_pictures() -> None:
    photo, box = Image.new("RGB", (400, 300), (255, 255, 255)), (100.0, 60.0, 320.0, 240.0)
    subjects = [Subject(7, "cat", 0.9, outlines=[Box(*box).outline]) for _ in range(2)]
    maps = [
        FrameMaps.from_map(
            Map(
                subject=one,
                layer="5",
                values=np.eye(7, dtype=np.float32),
                mass=0.5,
                placement=whole(photo.size),
            ),
            photo.size,
            None,
            DrawingStyle(),
            i,
        )
        for i, one in enumerate(subjects)
    ]
    files = thumbnails(NAMES, DisplayFrame(photo), maps)
    colors = set()
    for number, one in enumerate(maps, start=1):
        thumbnail, exported = (
            opened(files, NAMES.map("5", 7, number)),
            np.asarray(one.draw(DisplayFrame(photo))) / 255,
        )
        line = slice(92, 108)  # across the left side of the box
        seen = (exported[150, line] == (0, 0, 0)).all(-1)  # the halo
        assert seen.sum() >= 2
        found = thumbnail[150, line]
        assert (found[seen] == (0, 0, 0, 1)).all()
        (middle,) = np.flatnonzero(np.diff(np.flatnonzero(seen)) > 1)
        at = np.flatnonzero(seen)[middle] + 1
        assert (found[at, :3] == exported[150, line][at]).all()
        assert found[at, 3] == 1
        colors.add(tuple(found[at]))
    assert len(colors) == 2
