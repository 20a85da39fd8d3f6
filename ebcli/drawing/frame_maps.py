"""Maps frame by frame, on one color scale; a photo is a clip of one frame, a volume a clip of its slices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from PIL import Image

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, Map, Size
from ebcli.drawing.legend import add_caption, draw_outlines
from ebcli.drawing.overlay import is_blank_on, peaks_at_border, picture, side_by_side
from ebcli.drawing.painters import limits, visible
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips, Slices
from ebcli.files.media.medium import DisplayFrame

_GAP = 0.02  # of the height, between pictures


def _with_end(style: DrawingStyle, map_: Map) -> DrawingStyle:
    """The style with its scale ending where a map's does, beyond it if evidence is weak, unless the end is set."""
    if style.vmax is not None:
        return style
    cells = map_.display_values
    high = limits(cells, style)[1] / map_.brightness(style.signed) * cells.size
    return replace(style, vmax=max(float(f"{high:.3g}"), style.vmin * (1 + 1e-6)), percentile=None)


@dataclass(frozen=True, kw_only=True)
class FrameMaps:
    """The map of a subject at a layer, frame by frame; a photo is a clip of one frame.

    Attributes:
        map: the map; the sum over all its cells is that of a map.
        size: the width and height of frames.
        clips: which clips of a video they are, or the slices of a volume; None for a photo.
        style: how it is drawn, with one color scale for all frames.
        is_blank: whether there is nothing to draw in any frame.
        number: which of the image's subjects it is, from 0; its outlines have a color of their own.
    """

    map: Map
    size: Size
    clips: Clips | None
    style: DrawingStyle
    is_blank: bool
    number: int = 0

    @classmethod
    def from_map(
        cls, map_: Map, size: Size, clips: Clips | None, style: DrawingStyle, number: int = 0
    ) -> Self:
        """Find the color scale of a map."""
        style = style.for_map(map_.is_two_sided)
        strongest = map_.display_values
        if clips is not None:
            strongest = visible(strongest, style).max(0)
        is_blank = is_blank_on(size, strongest, map_.placement, style.signed)
        if clips is not None and not is_blank:
            style = _with_end(style, map_)
        return cls(map=map_, size=size, clips=clips, style=style, is_blank=is_blank, number=number)

    @property
    def faded_style(self) -> DrawingStyle:
        """The style, on a scale whose upper end a map that rests on little evidence does not reach."""
        if self.map.brightness(self.style.signed) == 1 or self.is_blank:
            return self.style
        return _with_end(self.style, self.map)

    @property
    def at_border(self) -> bool:
        """Whether it peaks at an edge of the center crop."""
        values = self.map.values
        if self.clips is not None:
            values = values.max(0)
        return peaks_at_border(self.size, values, self.map.placement)

    def map_at(self, frame: DisplayFrame) -> FloatArray:
        """The map (h, w) of a frame; of a video, multiplied by the number of cells in time.

        So the ends of the scale mean the same for one frame as for the whole video. Cells are interpolated linearly in
        time, from center to center; a clip's maps do not mix with another's.
        """
        values = self.map.display_values
        if self.clips is None:
            return values
        if isinstance(self.clips, Slices):
            values = self.clips.upright(values)
        count = len(values)
        depth = count // len(self.clips.starts)
        cells = values[frame.clip * depth : (frame.clip + 1) * depth]
        if not self.style.signed:
            cells = visible(cells, self.style)  # clamp before interpolating
        position = (frame.place + 0.5) * depth / self.clips.frames - 0.5
        position = min(max(position, 0.0), depth - 1.0)
        before = int(position)
        earlier = cells[before]
        later = cells[min(before + 1, depth - 1)]
        return ((earlier + (position - before) * (later - earlier)) * count).astype(np.float32)

    @property
    def beside(self) -> list[tuple["FrameMaps", DisplayFrame]]:
        """The maps of other pictures that the network got, and these pictures."""
        pairs = []
        for number, other in enumerate(self.map.pictures, 1):
            height, width = other.values.shape
            map_ = replace(
                self.map,
                layer=other.name,
                values=other.values,
                placement=Box(0, 0, width, height),
                pictures=(),
                stride=1,
            )
            maps = type(self).from_map(map_, (width, height), None, self.style, self.number)
            pairs.append((maps, DisplayFrame(Image.fromarray(other.pixels), number)))
        return pairs

    def draw(self, frame: DisplayFrame) -> Image.Image:
        """A frame with its map over it, at the frame's own size; a caption goes below.

        Other pictures that the network got are beside it, at its height, with their maps on the same color scale.
        """
        image = frame.image
        beside = self.beside
        if not beside:
            return self.caption(self._draw_over(image, self.map_at(frame)))
        maps = [self, *(other for other, _ in beside)]
        ends = [limits(item.map.values, item.style)[1] for item in maps if not item.is_blank]
        high = max(ends, default=1.0) / self.map.brightness(self.style.signed)
        images = [image, *(other.image for _, other in beside)]
        pictures = []
        for item, other in zip(maps, images, strict=True):
            style = self.style
            if style.vmax is None:
                style = replace(style, vmax=high * item.map.values.size, percentile=None)
            width = max(1, round(other.width * image.height / other.height))
            resized = other.resize((width, image.height), Image.Resampling.BICUBIC)
            pictures.append(replace(item, style=style)._draw_over(resized, item.map.display_values))
        return self.caption(side_by_side(pictures, max(2, round(_GAP * image.height))))

    def _draw_over(self, image: Image.Image, values: FloatArray) -> Image.Image:
        region = self.map.placement.rescale(self.size, image.size)
        result = picture(image, values, region, self.faded_style, is_blank=self.is_blank)
        self.draw_outlines(result, image.width)
        return result

    def draw_outlines(self, image: Image.Image, width: int) -> None:
        """Draw the outlines of the subject over a picture, in which frames have this width."""
        draw_outlines(image, self.map.subject, self.number, width / self.size[0], width)

    def caption(self, image: Image.Image) -> Image.Image:
        """A picture of the map with its caption below it, if the style has one."""
        if not self.style.caption:
            return image
        return add_caption(image, self.map, self.faded_style, self.is_blank)


Frames = Sequence[DisplayFrame]  # that a figure shows
MapsOfImage = Sequence[FrameMaps]
