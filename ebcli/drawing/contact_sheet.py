"""The contact sheet of a video or a volume: some of its frames or slices with their maps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ebcli.drawing.figure import Figure
from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.panel import COLUMNS, Tile, arranged, map_tile, without_photo_beside, wrapped
from ebcli.files.frame_ranges import Clips
from ebcli.files.media.medium import Shown

MOST_SHOWN = 12  # frames of a contact sheet


def sheet_frames(clips: Clips) -> list[int]:
    """The numbers of the frames that a contact sheet shows, evenly spread over those that have maps."""
    frames = [frame for frame, _, _ in clips.explained()]
    chosen = np.linspace(0, len(frames) - 1, min(MOST_SHOWN, len(frames)))
    return [frames[i] for i in np.unique(chosen.round().astype(int))]


def contact_sheet(shown: Sequence[Shown], maps: Sequence[FrameMaps], name: str, about: str) -> Figure:
    """Draw some frames of a video, or slices of a volume, with their maps in one figure.

    Args:
        shown: the frames, reduced by ``panel.small_frame``.
        maps: the maps, row by row.
        name: the video's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    lines: list[tuple[str, Sequence[Tile]]] = []
    several = len({row.map.layer for row in maps}) > 1
    for row in maps:
        one = replace(row, style=replace(without_photo_beside(row.style, "overlay"), caption=False))
        titles = [row.clips.title(frame.number) if row.clips else "" for frame in shown]
        tiles = [map_tile(one, frame, title) for frame, title in zip(shown, titles, strict=True)]
        heading = f"{row.map.subject.title}, {row.map.layer}" if several else row.map.subject.title
        lines += wrapped(heading, tiles, COLUMNS)
    # of rows with scales of their own, there is no common end
    style = one.faded if len({row.faded.vmax for row in maps}) == 1 else replace(one.style, vmax=None)
    has_faint = any(row.faded != row.style for row in maps)
    return arranged(name, about, lines, style, max(row.map.values.size for row in maps), has_faint=has_faint)
