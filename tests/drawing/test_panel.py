"""Where things stand in a panel, that its maps are where they belong, and that no name can do harm there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from galleries import framed
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject, Sufficiency
from ebcli.drawing.figure import panel
from ebcli.drawing.legend import font, printable, truncate
from ebcli.drawing.style import STYLES, DrawingStyle
from ebcli.files.media.medium import DisplayFrame

GREEN = (0, 255, 0)


def explained(
    maps: dict[str, np.ndarray], place: Box, marginal: bool = False, names: tuple[str | None, ...] = ()
) -> list[Map]:
    """Maps (K, h, w) by layers."""
    count = len(next(iter(maps.values())))
    subjects = [
        Subject(k, name, 0.25) for k, name in zip(range(count), names or ["cat"] * count, strict=True)
    ]
    return [
        Map(
            subject=subject,
            layer=layer,
            values=of[k],
            mass=0.5,
            placement=place,
            method_maps={"marginal": of[k] * 2} if marginal else {},
        )
        for k, subject in enumerate(subjects)
        for layer, of in maps.items()
    ]


def drawn(photo: Image.Image, maps: Sequence[Map], style: DrawingStyle, name: str, about: str) -> Image.Image:
    return panel([DisplayFrame(photo)], framed(maps, photo.size, style), name, about).image()


def tiles(figure: Image.Image) -> list[tuple[int, int, int, int]]:
    """The boxes of the pictures in a figure of a green photo, row by row; a crop's frame is gray, but thin."""
    values = np.asarray(figure).astype(int)
    green = values[..., 1] - values[..., 0] > 20
    found = []
    rows = np.nonzero(green.any(1))[0]
    for band in np.split(rows, np.nonzero(np.diff(rows) > 3)[0] + 1):
        if len(band) > 20:
            columns = np.nonzero(green[band].any(0))[0]
            found += [
                (run[0], band[0], run[-1] + 1, band[-1] + 1)
                for run in np.split(columns, np.nonzero(np.diff(columns) > 3)[0] + 1)
            ]
    return found


def spot(cells: int, column: int, row: int) -> np.ndarray:
    saliency = np.zeros((1, cells, cells), dtype=np.float32)
    saliency[0, row, column] = 3.7
    return saliency


@pytest.mark.parametrize("size", [(600, 400), (400, 600), (30, 30)])
def test_a_hot_cell_lands_within_a_pixel(size: tuple[int, int]) -> None:
    photo = Image.new("RGB", size, GREEN)
    side = min(size)
    left, top = (size[0] - side) / 2, (size[1] - side) / 2
    maps = np.concatenate([spot(14, 3, 5), spot(14, 9, 4)])
    place = Box(left, top, left + side, top + side)
    figure = drawn(
        photo, explained({"5": maps}, place), DrawingStyle(cmap="cool", alpha=0.3), "a.jpg", "about"
    )
    first, *others = tiles(figure)
    assert first[2] - first[0] == round(size[0] * 300 / max(size))
    assert first[3] - first[1] == round(size[1] * 300 / max(size))
    assert (np.asarray(figure.crop(first)) == GREEN).all()
    for box, (column, row) in zip(others, [(3, 5), (9, 4)], strict=True):
        tile = np.asarray(figure.crop(box)).astype(float)
        scale = (box[2] - box[0]) / size[0]
        heat = np.maximum(tile[..., 2] - 3, 0)  # blue, of which the photo has none
        inside = np.zeros_like(heat)
        span = slice(round(scale * top) + 2, round(scale * (top + side)) - 2)
        inside[span, round(scale * left) + 2 : round(scale * (left + side)) - 2] = 1
        heat *= inside  # without the crop's frame
        y, x = np.mgrid[: heat.shape[0], : heat.shape[1]] + 0.5
        expected = (scale * (left + side * (column + 0.5) / 14), scale * (top + side * (row + 0.5) / 14))
        assert ((x * heat).sum() / heat.sum(), (y * heat).sum() / heat.sum()) == pytest.approx(
            expected, abs=1
        )


@pytest.mark.parametrize(
    ("maps", "marginal", "rows"),
    [
        ({"5": 1}, False, [2]),
        ({"5": 5}, False, [4, 2]),  # the photo and five classes
        ({"5": 2}, True, [3, 3]),  # the photo, contrastive, marginal
        ({"5": 2, "3": 2, "input": 2}, False, [4, 4]),
        ({"5": 1, "input": 1}, True, [5]),
    ],
)
def test_rows_and_columns(maps: dict[str, int], marginal: bool, rows: list[int]) -> None:
    values = {name: np.ones((count, 7, 7), np.float32) for name, count in maps.items()}
    shown = explained(values, Box(10, 0, 50, 40), marginal)
    figure = drawn(Image.new("RGB", (60, 40), GREEN), shown, DrawingStyle(alpha=0.2), "a.jpg", "")
    tops = [box[1] for box in tiles(figure)]
    assert [tops.count(top) for top in sorted(set(tops))] == rows


@pytest.mark.parametrize(("size", "rows"), [((900, 300), [1] * 4), ((400, 300), [4]), ((200, 700), [4])])
@pytest.mark.parametrize("layers", [1, 3])
def test_wide_photos_are_stacked_and_tall_ones_side_by_side(
    size: tuple[int, int], rows: list[int], layers: int
) -> None:
    """Stacked, they are twice as long."""
    maps = {str(layer): np.ones((3 if layers == 1 else 1, 7, 7), np.float32) for layer in range(layers)}
    shown = explained(maps, Box(0, 0, *size))
    boxes = tiles(drawn(Image.new("RGB", size, GREEN), shown, DrawingStyle(alpha=0.2), "a.jpg", ""))
    tops = [box[1] for box in boxes]
    assert [tops.count(top) for top in sorted(set(tops))] == rows
    longest = 600 if len(rows) > 1 else 300
    assert {max(box[2] - box[0], box[3] - box[1]) for box in boxes} == {longest}


@pytest.mark.parametrize("options", [{}, {"dpi": 300, "cell_size": 700}])
def test_stacked_photos_stand_close_together_with_their_notes_in_one_line(
    options: dict[str, Any], written: list[tuple[float, float, str]]
) -> None:
    shown = explained({"5": np.ones((3, 7, 7))}, Box(0, 0, 900, 300))
    style = DrawingStyle(alpha=0.2, **options)
    boxes = tiles(drawn(Image.new("RGB", (900, 300), GREEN), shown, style, "a.jpg", ""))
    gaps = {below[1] - above[3] for above, below in itertools.pairwise(boxes)}
    assert len(gaps) == 1
    assert gaps.pop() < 0.6 * style.dpi
    assert [text for *_, text in written if "× " in text and "cells" in text] == [
        "7 × 7 cells, marginal mass 0.500, peak 49, strength 49.000"
    ] * 3


def test_dpi_and_cell_size() -> None:
    """At three times the resolution, everything is three times as large; a cell size sets the pictures alone."""
    photo, shown = (
        Image.new("RGB", (600, 400), GREEN),
        explained({"5": np.ones((2, 7, 7))}, Box(0, 0, 600, 400)),
    )
    plain, fine, small = (
        drawn(photo, shown, DrawingStyle(alpha=0.2, **options), "a.jpg", "about")  # type: ignore[arg-type]
        for options in ({}, {"dpi": 300}, {"dpi": 300, "cell_size": 460})
    )
    assert (plain.info["dpi"], fine.info["dpi"], small.info["dpi"]) == ((100, 100), (300, 300), (300, 300))
    assert fine.size == (3 * plain.width, 3 * plain.height)
    assert [tuple(round(side / 3) for side in box) for box in tiles(fine)] == tiles(plain)
    assert {box[2] - box[0] for box in tiles(small)} == {460}


@pytest.mark.parametrize(("cell_size", "inches"), [(636, 7), (266, 3.3)])
def test_a_figure_is_as_wide_as_its_cells(
    cell_size: int, inches: float, written: list[tuple[float, float, str]]
) -> None:
    """The cell sizes that docs/figures.md names; all texts have a place."""
    name = "classification_head.features.denseblock2"
    maps = explained({name: np.ones((2, 7, 7))}, Box(0, 0, 448, 448), names=("tiger cat", "espresso"))
    style = DrawingStyle(dpi=300, cell_size=cell_size, alpha=0.2)
    about = f"efficientnet_lite0 (IMAGENET1K_V1), layer {name}, contrastive EB"
    figure = drawn(Image.new("RGB", (448, 448), GREEN), maps, style, "a.jpg", about)
    assert figure.width == inches * 300
    boxes = tiles(figure)
    assert {box[3] - box[1] for box in boxes} == {cell_size}
    assert len({box[1] for box in boxes}) == 1  # below titles of one line and of two
    assert figure.width - boxes[-1][2] == boxes[0][0]
    words = " ".join(text for *_, text in written)
    assert about in words
    assert "espresso, score 0.25" in words.replace("0.250", "0.25")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(1, 1), (3, 1000), (1000, 3), (4000, 3000)])
def test_every_style_and_size_has_a_panel(style: str, size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random((2, 7, 7)).astype(np.float32)
    shown = explained({"5": values}, Box(0, 0, *size))
    figure = drawn(Image.new("RGB", size, GREEN), shown, DrawingStyle(style), "a.jpg", "about")
    assert figure.mode == "RGB"
    assert 300 <= figure.width < 1100
    assert 100 <= figure.height < 700


def test_a_blank_map_looks_unlike_any_other() -> None:
    maps = np.stack([np.zeros((7, 7)), np.full((7, 7), np.nan), np.ones((7, 7))]).astype(np.float32)
    figure = drawn(
        Image.new("RGB", (60, 60), GREEN),
        explained({"5": maps}, Box(0, 0, 60, 60)),
        DrawingStyle(alpha=0.2),
        "a.jpg",
        "",
    )
    assert len(tiles(figure)) == 2  # the photo and the last map: the others are grey
    (left, top, right, bottom), _ = tiles(figure)
    beside = np.asarray(figure.crop((right + 1, top, right + right - left, bottom)))
    assert (beside == beside[..., :1]).all()


def test_names_are_data() -> None:
    hostile = "a\n\x1b[2J\u202e\udce9 猫 élan Ж.jpg"
    assert printable(hostile) == "a\\n\\x1b[2J\\u202e\\udce9 \\u732b élan Ж.jpg"
    place, photo = Box(0, 0, 60, 60), Image.new("RGB", (60, 60), GREEN)
    plain, wild = (
        drawn(photo, explained({"5": spot(7, 3, 3)}, place, names=(name,)), DrawingStyle(), name, name)
        for name in ("a.jpg", hostile * 10)
    )
    assert plain.width == wild.width
    below = tiles(wild)[0][1] - tiles(plain)[0][1]  # as long texts have up to four lines
    assert [(left, top + below, right, bottom + below) for left, top, right, bottom in tiles(plain)] == tiles(
        wild
    )
    assert below < 8 * 19


@pytest.mark.parametrize("room", [60, 100, 300])
def test_long_names_lose_their_middle(room: int) -> None:
    letters = font(13)
    name = "photos/" + "x" * 500 + "/cat.jpg"
    shown = truncate(name, letters, room)
    assert letters.getlength(shown) <= room
    assert shown[0] == "p"
    assert "…" in shown
    assert truncate("cat", letters, 300) == "cat"


def test_each_class_has_its_own_probability_and_mass(written: list[tuple[float, float, str]]) -> None:
    place, ones = Box(0, 0, 40, 40), np.ones((4, 6), np.float32)
    subjects = Subject(3, "cat", 0.5), Subject(8, None, 0.25)
    maps = [
        Map(subject=one, layer="5", values=ones, mass=mass, placement=place)
        for one, mass in zip(subjects, (0.125, 0.75), strict=True)
    ]
    drawn(Image.new("RGB", (60, 40)), maps, DrawingStyle(), "a.jpg", "about")
    assert {"60 × 40 pixels", "6 × 4 cells"} <= {line for *_, line in written}
    told = [line for *_, line in written if ", score" in line or "mass" in line]
    assert told == ["cat, score 0.500", "marginal mass 0.125", "class 8, score 0.250", "marginal mass 0.750"]
    # only a marginal map sums to its mass
    marginal = [replace(map_, method="marginal") for map_ in maps]
    drawn(Image.new("RGB", (40, 40)), marginal, DrawingStyle(), "a.jpg", "about")
    assert "mass 0.125" in [line for *_, line in written]


@pytest.mark.parametrize(
    ("ends", "low", "high"),
    [
        ({}, "0", "each map's maximum"),
        ({"vmin": 0.5, "percentile": 99}, "0.5", "each map's percentile 99 of its positive values"),
        ({"vmin": 0.5, "vmax": 3}, "0.5", "3"),
        ({"signed": True}, "−m", "m, each map's greatest magnitude"),
        ({"signed": True, "percentile": 90}, "−m", "m, each map's percentile 90 of its magnitudes"),
        ({"signed": True, "vmax": 2.5}, "−2.5", "2.5"),
    ],
)
def test_the_legend_runs_from_the_lower_end_to_the_upper(
    ends: dict[str, Any], low: str, high: str, written: list[tuple[float, float, str]]
) -> None:
    style = DrawingStyle("heatmap", cmap="RdBu_r", **ends)
    place, photo = Box(0, 0, 60, 60), Image.new("RGB", (60, 60), GREEN)
    figure = drawn(photo, explained({"5": spot(7, 3, 3)}, place), style, "a.jpg", "about")
    (left, top, first), (right, beside, last), _ = written[-3:]
    assert (first, last, top) == (low, high, beside)
    row = np.asarray(figure)[int(top) + 8, int(left) : int(right)].astype(int)
    blue, red = (np.flatnonzero(row[:, one] - row[:, other] > 40) for one, other in ((2, 0), (0, 2)))
    assert len(blue) > 60 < len(red)
    assert blue.max() < red.min()  # RdBu_r begins with blue, so the lowest value is on the left


@pytest.mark.parametrize("noise", [None, 0.1])
def test_the_legend_says_so_if_a_map_does_not_reach_its_end(
    noise: float | None, written: list[tuple[float, float, str]]
) -> None:
    place, photo = Box(0, 0, 60, 60), Image.new("RGB", (60, 60), GREEN)
    weak = {"5": spot(7, 3, 3) / spot(7, 3, 3).sum() / 4}
    maps = [replace(one, noise=noise) for one in explained(weak, place)]
    figure = drawn(photo, maps, DrawingStyle(alpha=1.0), "a.jpg", "about")
    faint = ", more where evidence is weak"
    assert written[-2][2] == "each map's maximum" + faint * (noise is not None)
    _, box = tiles(figure)
    reaches_it = np.asarray(figure.crop(box))[..., 1].min() < 5  # the last color has no green
    assert reaches_it == (noise is None)


def test_the_marginal_map_is_beside_the_contrastive_one() -> None:
    (one,), (other,) = spot(14, 3, 5), spot(14, 10, 9)
    both = Map(
        subject=Subject(0, "cat", 0.25),
        layer="5",
        values=one,
        mass=0.5,
        placement=Box(0, 0, 300, 300),
        method_maps={"marginal": other},
    )
    figure = drawn(
        Image.new("RGB", (300, 300), GREEN), [both], DrawingStyle(cmap="cool", alpha=0.3), "a", "b"
    )
    photo, *others = tiles(figure)
    plain = np.asarray(figure.crop(photo)).astype(int)
    for box, (column, row) in zip(others, [(3, 5), (10, 9)], strict=True):
        shown = np.asarray(figure.crop(box)).astype(int)
        y, x = np.unravel_index((shown - shown[0, 0])[..., 2].argmax(), plain.shape[:2])
        assert (x * 14 // 300, y * 14 // 300) == (column, row)


def test_the_legend_says_so_if_one_of_several_maps_does_not_reach_its_end(
    written: list[tuple[float, float, str]],
) -> None:
    weak = spot(7, 3, 3) / spot(7, 3, 3).sum() / 4
    shown = explained({"5": np.concatenate([3 * weak, weak])}, Box(0, 0, 60, 60))
    maps = [replace(one, noise=0.1) for one in shown]
    assert [one.evidence for one in maps] == ["clear", "weak"]
    for ends, high in (({}, "each map's maximum, more where evidence is weak"), ({"vmax": 9.0}, "9")):
        drawn(Image.new("RGB", (60, 60), GREEN), maps, DrawingStyle(**ends), "a.jpg", "about")  # type: ignore[arg-type]
        assert written[-2][2] == high  # a scale that is given has no other end


@pytest.mark.parametrize(("size", "classes"), [((900, 300), 2), ((300, 300), 2), ((300, 300), 1)])
def test_each_class_of_several_layers_has_one_heading_and_the_test_is_that_of_the_first(
    size: tuple[int, int], classes: int, written: list[tuple[float, float, str]]
) -> None:
    values = np.ones((classes, 7, 7), np.float32)
    first, *others = explained({"3": values, "5": values}, Box(0, 0, *size), names=("cat", "dog")[:classes])
    tested = Sufficiency(
        part=0.1, shuffled=0.5, center=0.5, gradient=0.5, score=0.25, without=0.01, blurred=0.01
    )
    maps = [replace(first, sufficiency=tested), *others]
    drawn(Image.new("RGB", size, GREEN), maps, DrawingStyle(), "a.jpg", "about")
    lines = [line for *_, line in written]
    assert [line for line in lines if line in ("cat, score 0.250", "dog, score 0.250")] == [
        f"{name}, score 0.250" for name in ("cat", "dog")[:classes]
    ]
    said = " ".join(line for line in lines if line.split()[0] not in ("photo", "7"))
    assert "cat, score 0.250: " + tested.words in said


@pytest.mark.parametrize(
    ("beside", "below"),
    [
        (("marginal",), [[], ["mass 0.500"]]),  # which is that of the marginal map
        (("grad-cam",), [["marginal mass 0.500"], []]),
        (("grad-cam", "marginal"), [[], [], ["mass 0.500"]]),
    ],
)
def test_the_mass_is_below_the_map_that_has_it(
    beside: tuple[str, ...], below: list[list[str]], written: list[tuple[float, float, str]]
) -> None:
    shown = explained({"5": np.ones((2, 7, 7), np.float32)}, Box(0, 0, 60, 60))
    maps = [replace(one, method_maps=dict.fromkeys(beside, one.values)) for one in shown]
    drawn(Image.new("RGB", (60, 60), GREEN), maps, DrawingStyle(), "a.jpg", "about")
    grids = [(x, y) for x, y, line in written if line == "7 × 7 cells"]
    masses = [(x, y, line) for x, y, line in written if "mass" in line]
    found = [[line for x, y, line in masses if x == left and 0 < y - top < 60] for left, top in grids]
    assert found == below * 2
    # and no line is on another one
    for (x, y, line), (left, top, other) in itertools.combinations(written, 2):
        assert x != left or abs(y - top) > 14, (line, other)
