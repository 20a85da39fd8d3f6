"""The planes of a volume: where the patient's left, front and top are, and what is written of it."""

import io
import itertools
import re
from dataclasses import replace

import nibabel
import numpy as np
import pytest
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.figure import Figure, contact_sheet
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.planes import Orthogonal
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, volume_thumbnails
from ebcli.files.clips import Slices
from ebcli.files.coordinates import Affine
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.paths import FileState

MARK = np.array([-35.0, 50.0, 30.0])  # mm to the right, the front and the top: the patient's left upper front
HALF = np.array([60.0, 80.0, 70.0])  # mm, of the volume, whose center is at 0
STEP = np.array([6.0, 5.0, 7.0])  # mm
NAMES = "axial", "coronal", "sagittal"


def affine_of(axes: tuple[int, int, int], signs: tuple[int, int, int], angle: float = 0.0) -> np.ndarray:
    """That of a volume whose x, y and z follow these axes of space in these directions, turned by an angle."""
    matrix = np.eye(4)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    for number, (axis, sign) in enumerate(zip(axes, signs, strict=True)):
        matrix[:3, number] = turn[:, axis] * sign * STEP[axis]
    counts = [2 * HALF[axis] / STEP[axis] for axis in axes]
    matrix[:3, 3] = -matrix[:3, :3] @ (np.array(counts) / 2)
    return matrix


def volume(affine: np.ndarray, axes: tuple[int, int, int]) -> np.ndarray:
    """(z, y, x), bright at the mark."""
    shape = [int(2 * HALF[axis] / STEP[axis]) + 1 for axis in axes]
    cells = np.moveaxis(np.indices(shape[::-1]), 0, -1)[..., ::-1]
    places = cells @ affine[:3, :3].T + affine[:3, 3]
    return np.exp(-(((places - MARK) / 8) ** 2).sum(-1))


def planes(
    values: np.ndarray, affine: Affine | None, red: bool = False, **style: object
) -> tuple[Orthogonal, Figure]:
    """The planes of a volume that is gray, or as red as its values, with the same values as its map."""
    depth, height, width = values.shape
    slices = Slices(starts=(0,), frames=depth, frame_rate=1.0, total=depth, affine=affine)
    map_ = Map(
        subject=Subject(7, "mark", 0.5),
        layer="5",
        values=values.astype(np.float32),
        mass=1.0,
        placement=Box(0, 0, width, height),
    )
    maps = FrameMaps.from_map(map_, (width, height), slices, DrawingStyle(**style))
    whole = Orthogonal(maps, slices)
    colors = np.full((*values.shape, 3), 128, np.uint8)
    if red:
        colors = np.stack([255 * slices.upright(values), *np.zeros((2, *values.shape))], -1).astype(np.uint8)
    for number, pixels in enumerate(colors):
        whole.add(DisplayFrame(Image.fromarray(pixels), number, 0, number))
    return whole, whole.figure()


def mark_in(picture: Image.Image) -> tuple[float, float]:
    """Where the map is on a plane, as shares of its width and height; letters have no color."""
    pixels = np.asarray(picture).astype(int)
    saturation = np.ptp(pixels, axis=-1)
    rows, columns = np.nonzero(saturation > 0.9 * saturation.max())
    return (columns.mean() + 0.5) / picture.width, (rows.mean() + 0.5) / picture.height


ORIENTATIONS = list(itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("angle", [0.0, 0.3])
@pytest.mark.parametrize(("axes", "signs"), ORIENTATIONS[::5])
def test_the_left_upper_front_is_where_radiologists_see_it(
    axes: tuple[int, int, int],
    signs: tuple[int, int, int],
    angle: float,
    written: list[tuple[float, float, str]],
) -> None:
    affine = affine_of(axes, signs, angle)
    values = volume(affine, axes)
    written.clear()
    _, figure = planes(values, Affine(affine))
    letters = [item for item in written if len(item[2]) == 1]
    assert "".join(text for _, _, text in letters) == "RLAP" + "RLSI" + "APSI"
    for first in range(0, len(letters), 4):  # on the left, on the right, above and below
        (left, *_), (right, *_), (_, top, _), (_, foot, _) = letters[first : first + 4]
        assert (left < right, top < foot) == (True, True)
    words = [words.text for words in figure.words]
    assert [word for word in words if word in NAMES] == list(NAMES)
    _, of_volume = planes(values, Affine(affine), red=True, alpha=0.0)
    pictures = [picture for _, _, picture in figure.pictures[:3] + of_volume.pictures[:3]]
    lengths = [(int(2 * half / step) + 1) * step for half, step in zip(HALF, STEP, strict=True)]
    for picture, (across, down) in zip(pictures, ((0, 1), (0, 2), (1, 2)) * 2, strict=True):
        assert picture.width / picture.height == pytest.approx(lengths[across] / lengths[down], rel=0.02)
        x, y = mark_in(picture)
        if (
            not angle
        ):  # to the patient's left, which is on the right; the front and the top are on the left and above
            ends = 0.5 - 0.5 * MARK / (HALF + STEP / 2)
            assert x == pytest.approx(ends[across], abs=0.06)
            assert y == pytest.approx(ends[down], abs=0.06)
        assert (x > 0.5) == (across == 0)
        assert y < 0.5
    numbers = [int(word.split()[1]) for word in words if word.startswith("slice")]
    for number, normal in zip(numbers, (2, 1, 0), strict=True):  # of slices in the file, from 1
        axis = axes.index(normal)
        cell = np.linalg.solve(affine[:3, :3], MARK - affine[:3, 3])[axis]
        assert abs(number - 1 - cell) <= 0.75


def test_letters_are_those_of_nibabel() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        rotation, _ = np.linalg.qr(generator.standard_normal((3, 3)))
        matrix = np.eye(4)
        matrix[:3, :3] = rotation * generator.uniform(0.3, 9, 3)
        assert Affine(matrix).codes == "".join(nibabel.aff2axcodes(matrix))
    sagittal = np.array([[0, 0, 4, 0], [-2, 0, 0, 0], [0, -2, 0, 0], [0, 0, 0, 1.0]])
    assert Affine(sagittal).codes == "PIR"


@pytest.mark.parametrize(
    "affine", [None, Affine(affine_of((0, 1, 2), (1, 1, 1)), is_oriented=False), Affine(np.zeros((4, 4)))]
)
def test_without_directions_there_are_no_letters_and_axes_have_numbers(
    affine: Affine | None, written: list[tuple[float, float, str]]
) -> None:
    values = np.zeros((10, 8, 6))
    values[2, 5, 1] = 1
    written.clear()
    _, figure = planes(values, affine)
    assert not [text for _, _, text in written if len(text) == 1]
    words = [words.text for words in figure.words]
    assert words[:6] == ["axis 1", "slice 3 of 10", "axis 2", "slice 6 of 8", "axis 3", "slice 2 of 6"]
    x, y = mark_in(figure.pictures[0][2])  # rows from top to bottom, as they are stored
    assert (x < 0.5, y > 0.5) == (True, True)


@pytest.mark.parametrize("unit", ["mm", "micron"])
def test_the_scale_is_as_long_as_it_says(unit: str) -> None:
    matrix = affine_of((0, 1, 2), (1, 1, 1))
    values = volume(matrix, (0, 1, 2))
    _, figure = planes(values, Affine(matrix, unit))
    axial, ruler = figure.pictures[0][2], figure.pictures[-1][2]
    length, name = figure.words[-1].text.split()
    assert name == {"mm": "mm", "micron": "µm"}[unit]
    assert ruler.width / float(length) == pytest.approx(axial.width / (values.shape[2] * STEP[0]), rel=0.02)
    _, unknown = planes(values, None)
    assert len(unknown.pictures) == len(figure.pictures) - 1


def test_the_color_scale_is_in_the_picture_or_in_its_caption() -> None:
    values = volume(affine_of((0, 1, 2), (1, 1, 1)), (0, 1, 2))
    values /= values.sum()
    _, figure = planes(values, None, percentile=100.0)
    texts = [words.text for words in figure.words]
    assert texts[6:8] == ["0", f"{values.max() * values.size:.3g}"]
    _, captioned = planes(values, None, caption=True)
    assert [words.text for words in captioned.words] == texts[:6]


def test_slices_of_a_sheet_say_of_which_plane_they_are(written: list[tuple[float, float, str]]) -> None:
    axes = (1, 2, 0)  # slices from left to right
    affine = affine_of(axes, (-1, -1, 1))
    values = volume(affine, axes)
    whole, _ = planes(values, Affine(affine))
    frames = [DisplayFrame(Image.new("RGB", (9, 9)), number, 0, number) for number in range(2)]
    written.clear()
    contact_sheet(frames, [whole._maps], "scan", "about").image()
    texts = [text for _, _, text in written]
    words = " ".join(texts)  # in lines, as slices are narrow
    assert re.findall(r"sagittal, slice \d+ of \d+", words) == [
        f"sagittal, slice {number} of {len(values)}" for number in (1, 2)
    ]
    assert [text for text in texts if len(text) == 1 and text.isalpha()] == [*"APSI"] * 2


def test_a_report_shows_all_maps_in_the_planes_of_the_first() -> None:
    """The second map is at the patient's right front, and has its maximum at the right back."""
    axes = (1, 2, 0)
    affine = affine_of(axes, (-1, -1, 1))
    values = volume(affine, axes)
    halves = np.zeros(values.shape, np.float32)
    _, _, depth = halves.shape  # slices follow each other to the right, and columns to the back
    halves[len(halves) // 2 + 1 :, :, : depth // 2] = 1
    halves[-2, -2, -2] = 2
    whole, _ = planes(values, Affine(affine))
    first = whole._maps
    second = FrameMaps.from_map(replace(first.map, values=halves), first.size, first.clips, first.style)
    names = ThumbnailNames("scan", FileState(1, 1), "", "")
    other = replace(second, map=replace(second.map, subject=Subject(8, "right", 0.5)))
    files = volume_thumbnails(names, whole, [first, other])
    photo = Image.open(io.BytesIO(files[names.photo]))
    assert max(photo.size) <= 512
    alpha = []
    for index in (7, 8):
        picture = Image.open(io.BytesIO(files[names.map("5", index)]))
        assert picture.size == photo.size
        alpha.append(np.asarray(picture.convert("RGBA"))[..., 3])
    parts = whole.figure(448, has_map=False).pictures[:3]
    for (left, top, plane), (across, down) in zip(parts, ((0, 1), (0, 2), (1, 2)), strict=True):
        mark, right = (layer[top : top + plane.height, left : left + plane.width] for layer in alpha)
        row, column = np.unravel_index(mark.argmax(), mark.shape)
        ends = 0.5 - 0.5 * MARK / (HALF + STEP / 2)
        assert column / plane.width == pytest.approx(ends[across], abs=0.08)
        assert row / plane.height == pytest.approx(ends[down], abs=0.08)
        middle = plane.width // 2
        if across == 0:
            assert right[: plane.height // 3, : middle - 15].min() > 50  # the right is on the left
            assert right[:, middle + 15 :].max() == 0
        else:
            assert right.max() == 0  # this plane is on the patient's left
