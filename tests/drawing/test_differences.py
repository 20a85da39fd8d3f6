"""What is drawn differs from the photo the more, the higher the value: overlays, legends of panels, gallery pages."""

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from galleries import framed, mapped
from lightness import VALUES, difference, even, lab, middle
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.figure import panel
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.planes import Orthogonal
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.files.clips import Clips, Slices
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.paths import FileState

SAMPLES = sorted(Path(__file__).parents[2].joinpath("sample_images").glob("*.jpg"))
SIGNED = DrawingStyle(signed=True)
SIGNS = {"unsigned": (DrawingStyle(), 1), "for": (SIGNED, 1), "against": (SIGNED, -1)}
NAMES = ThumbnailNames("photo.png", FileState(1, 2), "c0ffee", "contrastive EB")
LEAST, FACTOR = (
    8,
    1.5,
)  # of the difference from the photo: from one fifth of the scale to the next; at the top
SIZE, GRADIENT = (180, 120), Image.linear_gradient("L")


def patches(seed: int, darkest: int, lightest: int) -> Image.Image:
    """A photo of random colors that change smoothly, like those of a garden at night, at dusk or in the sun."""
    colors = np.random.default_rng(seed).integers(darkest, lightest, (6, 9, 3), dtype=np.uint8, endpoint=True)
    return Image.fromarray(colors).resize(SIZE, Image.Resampling.BICUBIC)


def opened(content: bytes | Path, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content).convert(mode)


PHOTOS = {
    **{f"gray {value}": Image.new("RGB", SIZE, (value, value, value)) for value in (0, 64, 128, 192, 255)},
    **{f"colorful {seed}": patches(seed, 0, 255) for seed in range(4)},
    **{f"dark {seed}": patches(seed, 0, 90) for seed in range(3)},
    **{f"bright {seed}": patches(seed, 165, 255) for seed in range(3)},
    "every hue": Image.merge(
        "HSV", [GRADIENT.resize(SIZE), Image.new("L", SIZE, 200), GRADIENT.rotate(90).resize(SIZE)]
    ).convert("RGB"),
    **{path.stem: opened(path).resize(SIZE) for path in SAMPLES},
}  # fmt: skip


def even_map(image: Image.Image, value: float, style: DrawingStyle) -> FrameMaps:
    place = Box(0, 0, *image.size)
    (framed_map,) = framed(mapped({"5": even(value)[None]}, [7], place), image.size, style)
    return framed_map


def differences(image: Image.Image, sign: str) -> np.ndarray:
    """The mean difference of a photo from its overlay, at each of ``VALUES``."""
    style, side = SIGNS[sign]
    drawn = [even_map(image, side * value, style).draw(DisplayFrame(image)) for value in VALUES]
    return np.array([difference(middle(one), middle(image)).mean() for one in drawn])


def test_differences_are_those_of_known_colors() -> None:
    colors = [(0, 0, 0), (255, 255, 255), (119, 119, 119), (255, 0, 0), (0, 255, 0), (0, 0, 255)]
    expected = [
        (0, 0, 0),
        (100, 0, 0),
        (50, 0, 0),
        (53.2, 80.1, 67.2),
        (87.7, -86.2, 83.2),
        (32.3, 79.2, -107.9),
    ]
    np.testing.assert_allclose(lab(colors), expected, atol=0.2)  # as color science has them
    assert difference((255, 255, 255), (0, 0, 0)) == pytest.approx(100, abs=0.1)


def test_samples_are_there() -> None:
    assert len(SAMPLES) >= 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("name", PHOTOS)
def test_an_overlay_leaves_its_photo_alone_at_zero_and_differs_more_with_the_value(
    name: str, sign: str
) -> None:
    seen = differences(PHOTOS[name], sign)
    assert seen[0] < 1
    assert (np.diff(seen) > 0).all()
    assert (np.diff(seen[::2]) >= LEAST).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sign", SIGNS)
def test_the_top_of_the_scale_is_equally_strong_on_all_photos(sign: str) -> None:
    tops = [differences(photo, sign)[-1] for photo in PHOTOS.values()]
    assert max(tops) <= FACTOR * min(tops)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("name", ["gray 0", "gray 255", "colorful 0", "rocket"])
def test_a_gallery_page_s_thumbnails_blended_as_the_page_does_it_are_the_exported_overlay(
    name: str, sign: str
) -> None:
    image, (style, side) = PHOTOS[name], SIGNS[sign]
    for value in VALUES:
        one = even_map(image, side * value, style)
        files = thumbnails(NAMES, DisplayFrame(image), [one])
        below = np.asarray(opened(files[NAMES.photo])).astype(float)
        over = np.asarray(opened(files[NAMES.map("5", 7)], "RGBA")).astype(float)
        share = 0.85 * over[..., 3:] / 255
        blended = Image.fromarray((share * over[..., :3] + (1 - share) * below).round().astype(np.uint8))
        exported = opened(encode_picture(one.draw(DisplayFrame(image)), "png"))
        apart = np.abs(np.asarray(middle(blended)).astype(int) - np.asarray(middle(exported)).astype(int))
        assert apart.mean() < 2.5  # the thumbnail of the photo is a JPEG


@pytest.mark.parametrize("signed", [False, True])
def test_a_panel_s_legend_has_the_colors_of_overlays(
    signed: bool, written: list[tuple[float, float, str]]
) -> None:
    style, gray = DrawingStyle(signed=signed), Image.new("RGB", (360, 240), (150, 150, 150))
    figure = np.asarray(panel([DisplayFrame(gray)], [even_map(gray, 0.5, style)], "a.jpg", "about").image())
    top = written[-2][1]  # of the upper end, beside the bar
    row = figure[int(top) + 8]
    parts = np.split(row, np.flatnonzero(np.diff((row != 255).any(-1))) + 1)
    bar = max((part for part in parts if (part[0] != 255).any()), key=len)
    ends = (-1, 1) if signed else (0, 1)
    for at, value in enumerate(np.linspace(*ends, 11)):
        overlay = np.asarray(even_map(gray, value, style).draw(DisplayFrame(gray))).astype(int)[120, 180]
        assert bar[round(at / 10 * (len(bar) - 1))].astype(int) == pytest.approx(overlay, abs=4)


@pytest.mark.parametrize("kind", [Clips, Slices])
def test_a_clip_that_only_speaks_against_its_class_is_drawn_in_the_frame_where_it_does(
    kind: type[Clips],
) -> None:
    values = np.zeros((2, 3, 3), np.float32)
    values[1] = -1
    place, image = Box(0, 0, *SIZE), PHOTOS["gray 128"]
    map_ = Map(subject=Subject(7, None, 0.5), layer="5", values=values, mass=0.5, placement=place)
    clips = kind(starts=(0,), frames=2, frame_rate=1.0, total=2)
    for style in (SIGNED, DrawingStyle()):
        maps = FrameMaps.from_map(map_, SIZE, clips, style)
        assert maps.is_blank is (not style.signed)
        frames = [maps.draw(DisplayFrame(image, number, 0, number)) for number in range(2)]
        assert (frames[0].tobytes() == frames[1].tobytes()) is maps.is_blank


@pytest.mark.parametrize("shape", [(2, 3, 6), (4, 2, 3)])
def test_the_slices_of_a_volume_cross_at_its_peak_and_have_one_scale(shape: tuple[int, int, int]) -> None:
    """A volume of 8 slices of 18 rows and 24 columns, where each pixel tells its place."""
    sides, style = (8, 18, 24), DrawingStyle(vmax=4.0 * math.prod(shape))
    slices = Slices(starts=(0,), frames=8, frame_rate=1.0, total=8)
    values = np.ones(shape, np.float32)

    def planes(values: np.ndarray, told: bool) -> list[np.ndarray]:
        map_ = Map(
            subject=Subject(7, None, 0.5), layer="5", values=values, mass=0.5, placement=Box(0, 0, 24, 18)
        )
        maps = FrameMaps.from_map(map_, (24, 18), slices, style if not told else replace(style, alpha=0.0))
        whole = Orthogonal(maps, slices)
        for z in range(8):
            y, x = np.mgrid[:18, :24]
            pixels = np.stack([x * 10, y * 10, np.full_like(x, z * 30)], -1).astype(np.uint8)
            whole.add(DisplayFrame(Image.fromarray(pixels if told else np.full_like(pixels, 128)), z, 0, z))
        return [np.asarray(picture).astype(int) for _, _, picture in whole.figure().pictures[:3]]

    colors = [part[20, part.shape[1] // 2] for part in planes(values, told=False)]
    assert np.abs(np.diff(colors, axis=0)).max() <= 1  # an even map has one color
    values[1, 1, 2] = 2
    axial, of_row, of_column = planes(values, told=True)
    z, y, x = (
        (2 * at + 1) * side // (2 * count) for at, side, count in zip((1, 1, 2), sides, shape, strict=True)
    )
    for part, channel, at in ((axial, 2, z * 30), (of_row, 1, y * 10), (of_column, 0, x * 10)):
        assert abs(part[20, part.shape[1] // 2, channel] - at) <= 1
