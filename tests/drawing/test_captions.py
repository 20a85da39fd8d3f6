"""What is written on pictures: captions below single overlays, and the boxes of detections with class and score."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from galleries import framed
from lightness import difference
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.figure import panel
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import with_bars
from ebcli.drawing.style import STYLES, DrawingStyle
from ebcli.errors import ConfigurationError
from ebcli.files.media.medium import DisplayFrame
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import InputOptions, OutputOptions

SPOT = np.zeros((7, 7), np.float32)
SPOT[2, 3] = 1


def drawn(size: tuple[int, int], style: DrawingStyle, values: np.ndarray = SPOT) -> Image.Image:
    map_ = Map(
        subject=Subject(3, "tabby", 0.625), layer="5", values=values, mass=0.5, placement=Box(0, 0, *size)
    )
    (one,) = framed([map_], size, style)
    return one.draw(DisplayFrame(Image.new("RGB", size, (90, 140, 60))))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(40, 30), (300, 200), (200, 300), (2000, 1500)])
def test_a_caption_is_below_an_unchanged_picture(
    size: tuple[int, int], style: str, written: list[tuple[float, float, str]]
) -> None:
    plain, with_caption = (drawn(size, DrawingStyle(style, caption=caption)) for caption in (False, True))
    assert with_caption.crop((0, 0, *plain.size)).tobytes() == plain.tobytes()
    assert with_caption.width == plain.width
    assert plain.height < with_caption.height < plain.height + max(50, plain.height / 4)
    texts = [text for *_, text in written]
    if size[0] < 100:
        assert [("…" in text, text[0]) for text in texts] == [(True, "t"), (False, "0"), (True, "m")]
    else:
        assert texts == ["tabby, score 0.625, strength 1.000", "0", "maximum"]
    assert all(top > plain.height for _, top, _ in written)


@pytest.mark.parametrize("signed", [False, True])
def test_a_caption_s_color_scale_is_that_of_the_picture(signed: bool) -> None:
    size = (600, 400)
    picture = drawn(size, DrawingStyle(signed=signed, caption=True))
    strip = np.asarray(picture.crop((0, 400, *picture.size)))
    row = strip[round(len(strip) * 0.65)]
    parts = np.split(row, np.flatnonzero(np.diff((row != 255).any(-1))) + 1)
    colors = max((part for part in parts if (part[0] != 255).any()), key=len)[:: 20 if signed else 10]
    assert len(colors) > 10
    seen = difference(colors, colors[len(colors) // 2 if signed else 0])
    middle = len(seen) // 2 if signed else 0
    assert (np.diff(seen[middle:]) > 0).all()
    assert (np.diff(seen[: middle + 1]) < 0).all()


@pytest.mark.parametrize(("vmax", "expected"), [(None, ["dog", "tabby"]), (0.5, ["dog −0.5", "0.5 tabby"])])
def test_the_scale_of_two_classes_ends_at_the_one_that_its_color_speaks_for(
    vmax: float | None, expected: list[str], written: list[tuple[float, float, str]]
) -> None:
    """The left end has the color of a map's negative values, which speak for the other class."""
    style, size = DrawingStyle(signed=True, caption=True, vmax=vmax), (600, 400)
    subject = Subject(3, "tabby", 0.6)
    maps = [
        Map(subject=subject, layer="5", values=values, mass=0.5, placement=Box(0, 0, *size), against="dog")
        for values in (np.ones((7, 7), np.float32), -np.ones((7, 7), np.float32))
    ]
    for_it, against_it = (
        one.draw(DisplayFrame(Image.new("RGB", size, (150, 150, 150)))) for one in framed(maps, size, style)
    )
    (low, _, _), (high, top, _) = sorted(written[1:3])
    assert [text for *_, text in sorted(written[1:3])] == expected
    row = np.asarray(for_it.convert("RGB"))[round(top) + 8, round(low) : round(high)].astype(int)
    colors = row[np.ptp(row, axis=1) > 20]  # neither letters nor paper nor the gray in the middle
    for end, picture in ((colors[0], against_it), (colors[-1], for_it)):
        assert np.abs(np.asarray(picture.convert("RGB"))[200, 300] - end).max() < 30


def test_a_blank_map_s_caption_says_so(written: list[tuple[float, float, str]]) -> None:
    drawn((300, 200), DrawingStyle(caption=True), SPOT * 0)
    assert [text for *_, text in written] == ["tabby, score 0.625, blank map"]


def test_a_panel_has_captions_anyway() -> None:
    with pytest.raises(ConfigurationError, match="a panel has captions of its own: drop caption"):
        RunPlan(InputOptions(("a.jpg",)), style=DrawingStyle(caption=True), output=OutputOptions(panel=True))


BOXES = [(20, 30, 120, 110), (160, 40, 280, 160), (30, 130, 140, 190)]


def detections(size: tuple[int, int] = (300, 200), style: str = "overlay") -> list[FrameMaps]:
    maps = [
        Map(
            subject=Subject(k, name, 0.9, box=Box(*box), outlines=[Box(*box).outline]),
            layer="5",
            values=SPOT,
            mass=0.5,
            placement=Box(0, 0, *size),
        )
        for k, (name, box) in enumerate(zip(("cat", "dog", "cup"), BOXES, strict=True))
    ]
    return [replace(one, number=k) for k, one in enumerate(framed(maps, size, DrawingStyle(style)))]


def boxes_colors(
    picture: Image.Image, boxes: Sequence[tuple[int, int, int, int]] = BOXES
) -> list[tuple[int, ...]]:
    """Of each box, the color in the middle of its left edge."""
    return [
        tuple(np.asarray(picture)[(top + bottom) // 2, left, :3].tolist()) for left, top, _, bottom in boxes
    ]


def test_each_detection_has_a_color_of_its_own_and_says_class_and_score(
    written: list[tuple[float, float, str]],
) -> None:
    photo = Image.new("RGB", (300, 200), "white")
    seen = [
        boxes_colors(one.draw(DisplayFrame(photo)), [box])[0]
        for one, box in zip(detections(), BOXES, strict=True)
    ]
    assert len(set(seen)) == 3
    assert all(max(color) - min(color) > 80 for color in seen)
    assert [text for *_, text in written] == [f"{name}, score 0.900" for name in ("cat", "dog", "cup")]
    for (x, y, _), (left, top, *_) in zip(written, BOXES, strict=True):
        assert left <= x <= left + 10
        assert top - 20 <= y < top


def test_labels_stay_in_the_picture(written: list[tuple[float, float, str]]) -> None:
    for box in ((280.0, 0.0, 300.0, 200.0), (0.0, 0.0, 300.0, 200.0), (10.0, -60.0, 90.0, 90.0)):
        subject = Subject(3, "a long name of a class " * 9, 0.5, box=Box(*box), outlines=[Box(*box).outline])
        (one,) = framed(
            [Map(subject=subject, layer="5", values=SPOT, mass=0.5, placement=Box(0, 0, 300, 200))],
            (300, 200),
        )
        one.draw(DisplayFrame(Image.new("RGB", (300, 200))))
    assert len(written) == 3 and all(0 <= x < 20 and 0 <= y < 20 and "…" in text for x, y, text in written)


def test_side_by_side_has_boxes_on_both_sides() -> None:
    photo = Image.new("RGB", (300, 200), "white")
    one = detections(style="side-by-side")[1]
    both = one.draw(DisplayFrame(photo))
    (left, top, right, bottom), shift = BOXES[1], both.width - 300
    assert boxes_colors(both, [BOXES[1]]) == boxes_colors(both, [(left + shift, top, right + shift, bottom)])


def test_a_panel_s_photo_has_all_boxes() -> None:
    photo = Image.new("RGB", (300, 200), "white")
    figure = panel([DisplayFrame(photo)], detections(), "a.jpg", "about").image()
    alone = [
        boxes_colors(one.draw(DisplayFrame(photo)), [box])[0]
        for one, box in zip(detections(), BOXES, strict=True)
    ]
    pixels = np.asarray(figure)
    for color in alone:
        places = np.argwhere((pixels == color).all(-1))
        tiles = {int(x) // 316 for _, x in places}
        assert len(tiles) == 2  # the photo's, and that of its own map
    assert 0 in tiles


@pytest.mark.parametrize("shares", [(0.2, 0.1, 0.0, 0.05), (0.9, 0.45, 0.0, 0.225)])
def test_the_bar_of_the_channel_with_the_largest_share_is_the_highest_that_there_is_room_for(
    shares: tuple[float, ...], written: list[tuple[float, float, str]]
) -> None:
    picture = Image.new("RGB", (200, 100), "red")
    both = with_bars(picture, shares)
    assert both.crop((0, 0, 200, 100)).tobytes() == picture.tobytes()
    bars = np.asarray(both)[100:, 25::50] == 150  # in the middle of each
    heights = bars.all(2).sum(0)[: len(shares)]
    assert heights[0] > 25
    assert heights / heights[0] == pytest.approx([1, 0.5, 0, 0.25], abs=0.1)
    assert [(left, number) for left, _, number in written] == [(25, "1"), (75, "2"), (125, "3"), (175, "4")]
