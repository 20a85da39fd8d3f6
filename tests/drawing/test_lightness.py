"""What is drawn gets lighter with the value, wherever it is drawn: overlays, the legends of panels, gallery pages."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from galleries import framed, mapped
from lightness import VALUES, even, lightness, middle, rises
from PIL import Image

from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.panel import panel
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import Shown
from ebcli.files.stamp import Stamp
from ebcli.nouns.box import Box

SAMPLES = sorted(Path(__file__).parents[2].joinpath("sample_images").glob("*.jpg"))
PHOTOS = {"white": None, "gray": None, "black": None} | {path.stem: path for path in SAMPLES}
SIGNS = [(DrawingStyle(), 1), (DrawingStyle(signed=True), 1), (DrawingStyle(signed=True), -1)]
NAMES = ThumbnailNames("photo.png", Stamp(1, 2), "c0ffee", "contrastive EB")


def photo(name: str) -> Image.Image:
    path = PHOTOS[name]
    if path is None:
        return Image.new("RGB", (360, 240), name)
    with Image.open(path) as opened:
        return opened.convert("RGB").resize((360, 240))


def even_map(image: Image.Image, value: float, style: DrawingStyle) -> FrameMaps:
    place = Box(0, 0, *image.size)
    (framed_map,) = framed(mapped({"5": even(value)[None]}, [7], place), image.size, style)
    return framed_map


def opened(content: bytes, mode: str) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert(mode)


def test_lightness_is_that_of_known_colors() -> None:
    colors = [(0, 0, 0), (255, 255, 255), (119, 119, 119), (255, 0, 0), (0, 255, 0), (0, 0, 255)]
    assert lightness(colors) == pytest.approx([0, 100, 50, 53.2, 87.7, 32.3], abs=0.1)  # as color science has them


def test_samples_are_there() -> None:
    assert len(SAMPLES) >= 4


@pytest.mark.parametrize(("style", "sign"), SIGNS, ids=["unsigned", "for", "against"])
@pytest.mark.parametrize("name", PHOTOS)
def test_of_an_exported_overlay(name: str, style: DrawingStyle, sign: int) -> None:
    """Every pixel, whatever the photo is there."""
    image = photo(name)
    drawn = [even_map(image, sign * value, style).drawn(Shown(image)) for value in VALUES]
    assert rises([middle(opened(encode_picture(one, "png"), "RGB")) for one in drawn])


@pytest.mark.parametrize(("style", "sign"), SIGNS, ids=["unsigned", "for", "against"])
@pytest.mark.parametrize("name", PHOTOS)
def test_of_a_gallery_page_s_thumbnails_blended_as_the_page_does_it(name: str, style: DrawingStyle, sign: int) -> None:
    """The photo through the color matrix of the page's filter, and over it the map at an overlay's opacity."""
    image, blended = photo(name), []
    for value in VALUES:
        files = thumbnails(NAMES, Shown(image), [even_map(image, sign * value, style)])
        below = np.asarray(opened(files[NAMES.photo], "RGB")).astype(float)
        gray = below @ [0.299, 0.587, 0.114]
        muted = 25 + (0.45 * below + 0.55 * gray[..., None]) * 90 / 255
        over = np.asarray(opened(files[NAMES.map("5", 7)], "RGBA")).astype(float)
        share = 0.92 * over[..., 3:] / 255
        seen = share * over[..., :3] + (1 - share) * muted
        blended.append(seen.round().astype(np.uint8))
        exported = np.asarray(middle(even_map(image, sign * value, style).drawn(Shown(image)))).astype(int)
        difference = np.abs(np.asarray(middle(Image.fromarray(blended[-1]))) - exported)
        assert difference.mean() < 2  # the thumbnail of the photo is a JPEG
    assert rises([middle(Image.fromarray(one)) for one in blended])


@pytest.mark.parametrize("signed", [False, True])
def test_of_a_panel_s_legend_whose_colors_are_those_of_overlays(
    signed: bool, written: list[tuple[float, float, str]]
) -> None:
    style, gray = DrawingStyle(signed=signed), Image.new("RGB", (360, 240), (150, 150, 150))
    figure = np.asarray(panel([Shown(gray)], [even_map(gray, 0.5, style)], "a.jpg", "about").image())
    top = written[-2][1]  # of the upper end, beside the bar
    row = figure[int(top) + 8]
    parts = np.split(row, np.flatnonzero(np.diff((row != 255).any(-1))) + 1)
    bar = max((part for part in parts if (part[0] != 255).any()), key=len)
    ends = (-1, 1) if signed else (0, 1)
    drawn = {}
    for at, value in enumerate(np.linspace(*ends, 11)):
        overlay = np.asarray(even_map(gray, value, style).drawn(Shown(gray))).astype(int)[120, 180]
        drawn[value] = bar[round(at / 10 * (len(bar) - 1))].astype(int)
        assert drawn[value] == pytest.approx(overlay, abs=4)
    seen = lightness(list(drawn.values()))
    assert (np.diff(seen[5:] if signed else seen) > 0).all()
    assert not signed or (np.diff(seen[:6]) < 0).all()
