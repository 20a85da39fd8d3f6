"""The contact sheet of a video: some of its frames with their maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.panel import Tile, arranged, on_white, peak_note
from ebcli.files.frame_ranges import Clips
from ebcli.files.media.medium import Shown

MOST_SHOWN = 12  # frames of a contact sheet
_COLUMNS = 4
_TILE = 300  # pixels, the longer side


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


def contact_sheet(shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str) -> Image.Image:
    """Draw some frames of a video with their maps in one RGB figure, with their times.

    Args:
        shown: the frames, reduced by ``small_frame``.
        maps: the maps, row by row.
        name: the video's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    lines: list[tuple[str, list[Tile]]] = []
    several = len({row.map.layer for row in maps}) > 1
    for row in maps:
        style = row.style
        if style.name == "side-by-side":  # would be too wide
            style = replace(style, name="overlay")
        tiles = []
        for one in shown:
            inside = row.map.placement.scaled(row.size, one.image.size)
            note = peak_note(row.at(one), inside, one.image.size, style)
            drawn = on_white(replace(row, style=style).drawn(one))
            tiles.append(Tile(drawn, f"{row.clips.time(one.number):.2f} s" if row.clips else "", (note,)))
        heading = f"{row.map.subject.title}, {row.map.layer}" if several else row.map.subject.title
        for start in range(0, len(tiles), _COLUMNS):
            lines.append(("" if start else heading, tiles[start : start + _COLUMNS]))
    if len({row.style.vmax for row in maps}) > 1:
        style = replace(style, vmax=None)  # each row has its own scale
    return arranged(name, about, lines, style)
