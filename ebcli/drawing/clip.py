"""Maps of videos: the map of each frame, on one color scale, and the contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.color_scale import limits, visible
from ebcli.drawing.overlay import is_blank_on, picture
from ebcli.drawing.panel import Tile, arranged, on_white, peak_note
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips
from ebcli.files.input_spec import Placement

MOST_SHOWN = 12  # frames of a contact sheet
_COLUMNS = 4
_TILE = 300  # pixels, the longer side

Shown = tuple[Image.Image, int, int, int]  # a frame, its number, its clip, and its place there


@dataclass(frozen=True)
class ClipMap:
    """The map of a class at a layer over a whole video.

    Attributes:
        cells: (clips t, h, w), signed, all clips one after another; the sum over everything is that of a map.
        clips: which clips.
        style: how it is drawn, with one color scale for all frames.
        is_blank: whether there is nothing to draw in any frame.
    """

    cells: NDArray[np.float32]
    clips: Clips
    style: DrawingStyle
    is_blank: bool

    @classmethod
    def of(
        cls, cells: NDArray[np.float32], clips: Clips, size: tuple[int, int], region: Placement, style: DrawingStyle
    ) -> ClipMap:
        """Find the color scale of a map.

        Args:
            cells, clips: see above.
            size: the width and height of frames.
            region: the rectangle of frames that the map covers.
            style: how it is drawn.
        """
        is_blank = is_blank_on(size, np.abs(cells).max(0) if style.signed else cells.max(0), region)
        if not is_blank and style.vmax is None:
            high = float(f"{limits(cells, style)[1] * cells.size:.3g}")
            style = replace(style, vmax=max(high, style.vmin * (1 + 1e-6)), percentile=100.0)
        return cls(cells, clips, style, is_blank)

    def frame(self, clip: int, place: int) -> NDArray[np.float32]:
        """The map (h, w) of a frame, given its clip and its place there, multiplied by the number of cells in time.

        So the ends of the scale mean the same for one frame as for the whole video. Cells are interpolated linearly in
        time, from center to center; a clip's maps do not mix with another's.
        """
        depth = len(self.cells) // len(self.clips.starts)
        cells = self.cells[clip * depth : (clip + 1) * depth]
        position = min(max((place + 0.5) * depth / self.clips.frames - 0.5, 0.0), depth - 1.0)
        before = int(position)
        one, other = cells[before], cells[min(before + 1, depth - 1)]
        if not self.style.signed:  # clamp before interpolating
            one, other = visible(one, self.style), visible(other, self.style)
        return ((one + (position - before) * (other - one)) * len(self.cells)).astype(np.float32)

    def drawn(self, photo: Image.Image, region: Placement, clip: int, place: int) -> Image.Image:
        """A frame with its map over it; ``region`` is in its pixels."""
        return picture(photo, self.frame(clip, place), region, self.style, is_blank=self.is_blank)


def sheet_frames(clips: Clips) -> list[int]:
    """The numbers of the frames that a contact sheet shows, evenly spread over those that have maps."""
    frames = [frame for frame, _, _ in clips.explained()]
    chosen = np.linspace(0, len(frames) - 1, min(MOST_SHOWN, len(frames)))
    return [frames[i] for i in np.unique(chosen.round().astype(int))]


def small_frame(image: Image.Image) -> Image.Image:
    """A frame at the size of a contact sheet."""
    scale = _TILE / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


def contact_sheet(
    shown: Sequence[Shown],
    size: tuple[int, int],
    region: Placement,
    rows: Sequence[tuple[str, ClipMap]],
    name: str,
    about: str,
) -> Image.Image:
    """Draw some frames of a video with their maps in one RGB figure, with their times.

    Args:
        shown: the frames, reduced by ``small_frame``.
        size: the width and height of frames in the video.
        region: the rectangle of frames that the maps cover.
        rows: the headings and maps.
        name: the video's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    lines: list[tuple[str, list[Tile]]] = []
    for heading, row in rows:
        style = row.style
        if style.name == "side-by-side":  # would be too wide
            style = replace(style, name="overlay")
        map_, tiles = replace(row, style=style), []
        for small, number, *at in shown:
            inside = region.scaled(size, small.size)
            note = peak_note(map_.frame(*at), inside, small.size, style)
            drawn = on_white(map_.drawn(small, inside, *at))
            tiles.append(Tile(drawn, f"{map_.clips.time(number):.2f} s", (note,)))
        for start in range(0, len(tiles), _COLUMNS):
            lines.append(("" if start else heading, tiles[start : start + _COLUMNS]))
    if len({row.style.vmax for _, row in rows}) > 1:
        style = replace(style, vmax=None)  # each row has its own scale
    return arranged(name, about, lines, style)
