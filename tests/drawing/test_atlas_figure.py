"""Atlases: which pixels are tinted how, and labels that do not collide."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from lightness import difference
from PIL import Image

from ebcli.datatypes.atlas import Atlas
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.atlas import COLORS, AtlasRegion, atlas_figure, places_of_labels, regions
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import font
from ebcli.drawing.style import DrawingStyle
from ebcli.files.media.medium import DisplayFrame

# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB
SEEN = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(colors, how):
    share = np.asarray(colors) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    found = (linear @ np.array(SEEN[how]).T).clip(0, 1)
    return 255 * np.where(found <= 0.0031308, 12.92 * found, 1.055 * found ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("how", SEEN)
def test_color_blind_readers_tell_the_colors_apart(how):
    """Of regions and of the legend; 2 is just seen."""
    for one, other in itertools.combinations(seen(COLORS, how), 2):
        assert difference(one, other) > 10, (one, other)


def maps(*values, size=(80, 40)):
    names = ["left", "right", "nowhere", "a class with a name that is longer than the picture is wide " * 3]
    return [
        FrameMaps.from_map(
            Map(
                subject=Subject(i, names[i], 1.0),
                layer="l",
                values=np.array(value, np.float32),
                mass=1.0,
                placement=Box(0, 0, *size),
            ),
            size,
            None,
            DrawingStyle("atlas", cell_size=80),
            i,
        )
        for i, value in enumerate(values)
    ]


def test_a_region_is_where_a_class_leads():
    atlas = Atlas.from_maps([one.map for one in maps([[1, 0, 0, 0]], [[0, 0, 0, 0.5]], [[0.5, 0, 0, 0.2]])])
    left, right = regions(atlas, (80, 40), (160, 80))
    assert (left.name, right.name) == ("left", "right")
    # cells are 20 wide; the lead of "left" falls from 0.5 at 10 to 0 at 30, and that of "right" rises from 0 at 50 to
    # 0.3 at 70; from 0.1 on, it is clear
    for region, leads in ((left, lambda x: x < 26), (right, lambda x: x > 56.6)):
        x = (np.arange(160) + 0.5) / 2
        np.testing.assert_array_equal(region.lead > 0, np.tile(leads(x), (80, 1)))
    assert left.share == pytest.approx(26 / 80, abs=0.01)


def test_a_single_class_has_a_region_and_a_blank_photo_none():
    (one,) = regions(Atlas.from_maps([maps([[1, 1]])[0].map]), (80, 40), (80, 40))
    assert one.share == 1
    assert regions(Atlas.from_maps([maps([[0, 0]])[0].map]), (80, 40), (80, 40)) == []


def test_pixels_of_regions_are_tinted_and_others_as_they_are():
    photo = Image.new("RGB", (80, 40), (128, 128, 128))
    both = maps([[1, 0, 0, 0]], [[0, 0, 0, 0.5]])
    figure = atlas_figure([DisplayFrame(photo)], both, "photo", "about", pixel=(40, 20))
    (_, _, drawn), *swatches = figure.pictures
    drawn = np.asarray(drawn, float)
    assert (drawn[2, 45] == 128).all()  # between the regions
    for x, color in ((2, COLORS[0]), (78, COLORS[1])):
        assert difference(drawn[35, x], np.array(color)) < difference(np.array([128] * 3), np.array(color))
    assert [each.getpixel((0, 0)) for *_, each in swatches] == [*COLORS[:2]]
    assert len({tuple(pixel) for pixel in drawn[12:28, 32:48].reshape(-1, 3)}) > 1  # the mark
    words = [one.text for one in figure.words]
    assert words.count("right") >= 1 and any("unmarked" in text for text in words)


def test_labels_and_the_legend_name_the_region_of_their_color():
    photo = Image.new("RGB", (80, 40), (128, 128, 128))
    style = DrawingStyle("atlas", cell_size=400)
    both = [replace(one, style=style) for one in maps([[1, 0, 0, 0]], [[0, 0, 0, 0.3]])]
    figure = atlas_figure([DisplayFrame(photo)], both, "photo", "about")
    (start, _, drawn), *swatches = figure.pictures
    names = [words for words in figure.words if words.text in ("left", "right")]
    labels = {one.text: one.left - start for one in names if one.left < start + drawn.width}
    assert labels["left"] < 26 / 80 * drawn.width
    assert labels["right"] > 0.6 * drawn.width
    lines = sorted((one.top, one.text) for one in names if one.left >= start + drawn.width)
    colors = sorted((top, swatch.getpixel((0, 0))) for _, top, swatch in swatches)
    assert [text for _, text in lines] == ["left", "right"]  # the largest region first
    assert [color for _, color in colors] == [*COLORS[:2]]
    shares = [words.text for words in figure.words if "of the photo" in words.text]
    assert shares[1] == "29% of the photo, score 1.000"  # evidence 0.1 is at 56.7 of 80


@pytest.mark.parametrize("at", [(0, 0), (120, 20), (159, 79)])
def test_the_mark_is_around_the_pixel_that_is_asked_for(at):
    """Of a photo that is drawn at half its size."""
    photo, both = (
        Image.new("RGB", (160, 80), (128, 128, 128)),
        maps([[1, 0, 0, 0]], [[0, 0, 0, 0.5]], size=(160, 80)),
    )
    plain, marked = (
        atlas_figure([DisplayFrame(photo)], both, "", "", where).pictures[0][2] for where in (None, at)
    )
    assert plain.size == (80, 40)
    changed = np.argwhere((np.asarray(plain) != np.asarray(marked)).any(2))[:, ::-1]
    middle = (np.array(at) + 0.5) / 2
    assert np.abs(changed + 0.5 - middle).max() < 12  # a ring of 6 pixels, and its halo
    assert np.hypot(*(changed + 0.5 - middle).T).min() > 2


def test_words_stay_in_the_figure():
    for count in range(1, 5):
        values = [[[float(i == k) for k in range(count)]] for i in range(count)]
        figure = atlas_figure([DisplayFrame(Image.new("RGB", (80, 40)))], maps(*values), "x" * 300, "y" * 300)
        for one in figure.words:
            assert one.left + font(one.size, one.bold).getlength(one.text) <= figure.width
            assert one.top + one.size <= figure.height


@pytest.mark.parametrize("seed", range(20))
def test_labels_do_not_collide_and_stand_in_their_regions(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 8))
    evidence = generator.random((count, 5, 6)).astype(np.float32) ** 3
    subjects = [Subject(i, "x", 0.5) for i in range(count)]
    atlas = Atlas(subjects, evidence / evidence.max(), placement=Box(0, 0, 300, 200))
    found = regions(atlas, (300, 200), (300, 200))
    sizes = [(int(generator.integers(20, 120)), 18) for _ in found]
    boxes = []
    for region, (width, height), place in zip(found, sizes, places_of_labels(found, sizes), strict=True):
        if place is not None:
            left, top = place
            boxes.append((left, top, left + width, top + height))
            assert min(left, top) >= 0 and left + width <= 300 and top + height <= 200
            assert region.lead[top + height // 2, left + width // 2] > 0
    assert boxes
    for one, other in itertools.combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_label_is_left_out_if_there_is_no_room():
    lead = np.ones((20, 30), np.float32)
    region = AtlasRegion(Subject(0, "x", 1.0), lead)
    assert places_of_labels([region], [(31, 10)]) == [None]
    first, second = places_of_labels([region, region], [(30, 18), (30, 18)])
    assert (first is None) != (second is None)
