"""Maps of videos: the map of each frame, on one color scale, and the contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.color_scale import limits, visible
from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import is_blank_on, picture, small_size
from ebcli.drawing.panel import Tile, arranged, on_white, peak_note
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips
from ebcli.files.images import Placement

MOST_SHOWN = 12  # frames of a contact sheet
_COLUMNS = 4
_TILE = 300  # pixels, the longer side


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
            high = max(limits(cells, style)[1] * cells.size, style.vmin * (1 + 1e-6))
            style = replace(style, vmax=high, percentile=100.0)
        return cls(cells, clips, style, is_blank)

    def frame(self, clip: int, place: int) -> NDArray[np.float32]:
        """The map (h, w) of a frame, given its clip and its place there, in units of which the scale is that of `style`.

        Cells are interpolated linearly in time, from center to center; a clip's maps do not mix with another's.
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
    return image.resize(small_size(image.size, _TILE), Image.Resampling.HAMMING, reducing_gap=2.0)


def contact_sheet(
    shown: Sequence[tuple[Image.Image, int, int, int]],
    size: tuple[int, int],
    region: Placement,
    explanation: Explanation,
    maps: Sequence[tuple[int, int, ClipMap]],
    name: str,
    about: str,
) -> Image.Image:
    """Draw some frames of a video with their maps in one RGB figure, with their times.

    Args:
        shown: the frames, reduced, each with its number, its clip, and its place there.
        size: the width and height of frames.
        region: the rectangle of frames that the maps cover.
        explanation: the classes.
        maps: for each map, its class, its layer, and the map; several have a row of frames each.
        name: the video's name, the title of the figure.
        about: the subtitle: model, layer and method.
    """
    rows: list[tuple[str, list[Tile]]] = []
    for k, at, map_ in maps:
        layer = explanation.layers[at].layer
        title = f"{explanation.names[k] or f'class {explanation.classes[k]}'}, score {explanation.scores[k]:.3f}"
        heading = f"{title}, {layer}" if len(explanation.layers) > 1 else title
        style = replace(map_.style, name="heatmap") if map_.style.name == "side-by-side" else map_.style
        drawing = replace(map_, style=style)
        tiles = []
        for small, number, clip, place in shown:
            inside = region.scaled(size, small.size)
            note = peak_note(map_.frame(clip, place), inside, small.size, style)
            time = f"{map_.clips.time(number):.2f} s"
            tiles.append(Tile(on_white(drawing.drawn(small, inside, clip, place)), time, (note,)))
        for start in range(0, len(tiles), _COLUMNS):
            rows.append((heading if start == 0 else "", tiles[start : start + _COLUMNS]))
    scales = {map_.style.vmax for _, _, map_ in maps}
    style = maps[0][2].style
    if style.name == "side-by-side":
        style = replace(style, name="heatmap")
    return arranged(name, about, rows, style if len(scales) == 1 else replace(style, vmax=None))
