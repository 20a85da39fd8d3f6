"""Maps over clips and volumes: in time, in space, on one scale, signed or not."""

import numpy as np
import pytest
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.figure import contact_sheet
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.planes import Orthogonal
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips, Slices
from ebcli.files.media.medium import DisplayFrame

SIZE = (24, 16)
GRAY = Image.new("RGB", SIZE, (128, 128, 128))


def mapped(values: np.ndarray, noise: float | None = None, name: str = "cup") -> Map:
    subject = Subject(7, name, 0.5)
    values = values.astype(np.float32)
    return Map(subject=subject, layer="5", values=values, mass=1.0, placement=Box(0, 0, *SIZE), noise=noise)


def clip(frames: int) -> Clips:
    return Clips(starts=(0,), frames=frames, frame_rate=1.0, total=frames)


@pytest.mark.parametrize("clips", [None, clip(2)])
@pytest.mark.parametrize("signed", [False, True])
def test_a_map_of_noise_is_faint_on_a_scale_of_its_own_but_not_on_a_fixed_one(
    clips: Clips | None, signed: bool
) -> None:
    values = np.linspace(-0.01, 0.02, 24).reshape((4, 6) if clips is None else (2, 3, 4))
    clear, faint = mapped(values), mapped(values, noise=0.15)
    assert faint.brightness(signed) < 1
    for vmax, is_fixed in ((None, False), (3.0, True)):
        style = DrawingStyle("heatmap", signed=signed, vmax=vmax)
        one, other = (
            FrameMaps.from_map(each, SIZE, clips, style).draw(DisplayFrame(GRAY)) for each in (clear, faint)
        )
        assert (one.tobytes() == other.tobytes()) is is_fixed


@pytest.mark.parametrize("signed", [False, True])
def test_between_the_cells_of_a_clip_maps_are_interpolated_with_their_signs_if_these_are_drawn(
    signed: bool,
) -> None:
    cells = np.array([1.0, -2.0, 3.0])
    maps = FrameMaps.from_map(
        mapped(cells[:, None, None] * np.ones((3, 2, 2))), SIZE, clip(12), DrawingStyle(signed=signed)
    )
    centers = (np.arange(3) + 0.5) * 4  # of the cells, in frames
    drawn = cells if signed else np.maximum(cells, 0)
    for frame in range(12):
        expected = 3 * np.interp(frame + 0.5, centers, drawn)  # three cells in time share what one would have
        np.testing.assert_allclose(
            maps.map_at(DisplayFrame(GRAY, frame, 0, frame)), np.full((2, 2), expected), rtol=1e-6
        )


@pytest.mark.parametrize("signed", [False, True])
def test_the_slices_cross_at_the_greatest_magnitude_if_it_is_drawn(signed: bool) -> None:
    values = np.zeros((4, 2, 3))
    values[1, 0, 2], values[3, 1, 0] = 1, -2
    slices = Slices(starts=(0,), frames=4, frame_rate=1.0, total=4)
    whole = Orthogonal(FrameMaps.from_map(mapped(values), SIZE, slices, DrawingStyle(signed=signed)), slices)
    assert whole.peak == ([3, 12, 4] if signed else [1, 4, 20])  # the middle of that cell


def test_a_sheet_names_the_end_of_the_scale_if_all_rows_have_the_same(
    written: list[tuple[float, float, str]],
) -> None:
    weak, strong = np.full((2, 2, 2), 0.05), np.full((2, 2, 2), 0.05)
    weak[0, 0, 0], strong[0, 0, 0] = 0.1, 0.4
    frames = [DisplayFrame(GRAY, number, 0, number) for number in range(2)]
    for rows, end in (([strong, strong], "3.2"), ([weak, strong], "each map's maximum")):
        maps = [
            FrameMaps.from_map(mapped(one, name=name), SIZE, clip(2), DrawingStyle())
            for one, name in zip(rows, ("cup", "plate"), strict=True)
        ]
        written.clear()
        contact_sheet(frames, maps, "a.mp4", "about").image()
        texts = [text for _, _, text in written]
        assert " ".join(texts[texts.index("0") + 1 :]).startswith(f"{end} Scale and peaks")
