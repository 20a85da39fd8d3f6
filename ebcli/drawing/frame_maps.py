"""Maps frame by frame, on one color scale; a photo is a clip of one frame, a volume a clip of its slices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box, Map, Size
from ebcli.drawing.legend import add_caption, draw_outlines
from ebcli.drawing.overlay import downscale, is_blank_on, peaks_at_border, picture, side_by_side
from ebcli.drawing.painters import limits, visible
from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import Clips, Slices
from ebcli.files.media.medium import DisplayFrame

_Pixels = NDArray[np.uint8]  # (height, width, 3)

_GAP = 0.02  # of the height, between slices and between pictures
_LEAST = 256  # pixels, of the longer side of the first slice
_MAX_STRETCH = 16  # times; more would be a header that lies


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


class Orthogonal:
    """The slices of a volume through its map's maximum across the depth, the rows and the columns, side by side.

    They have the proportions of the volume in space. Of its slices, only what is drawn is kept.

    Args:
        maps: the map.
        slices: those of the volume.

    Attributes:
        peak: the slice, row and column of the maximum, as they are drawn.
    """

    def __init__(self, maps: FrameMaps, slices: Slices) -> None:
        self._maps = maps
        self._slices = slices
        self._values = slices.upright(maps.map.display_values)
        strength = np.nan_to_num(self._values)
        if maps.style.signed:
            strength = np.abs(strength)
        self._cell = np.array(np.unravel_index(strength.argmax(), strength.shape))
        pixels = (slices.total, *maps.size[::-1])
        self.peak = ((2 * self._cell + 1) * pixels // (2 * np.array(strength.shape))).tolist()
        self._axial: DisplayFrame | None = None
        self._rows: list[_Pixels] = []
        self._columns: list[_Pixels] = []

    def add(self, frame: DisplayFrame) -> None:
        """Keep what is drawn of the next slice."""
        z, y, x = self.peak
        if frame.number == z:
            self._axial = frame
        pixels = np.asarray(frame.image)
        self._rows.append(pixels[y])
        self._columns.append(pixels[:, x])

    def draw(self, longest: int | None = None) -> Image.Image:
        """The picture, reduced to this longest side."""
        assert self._axial is not None
        _, y, x = self._cell
        _, height, width = self._values.shape
        planes = [
            self._plane(np.asarray(self._axial.image), self._maps.map_at(self._axial), (0, 1)),
            self._plane(np.stack(self._rows), self._values[:, y] * height, (0, 2)),
            self._plane(np.stack(self._columns), self._values[:, :, x] * width, (1, 2)),
        ]
        result = side_by_side(planes, max(2, round(_GAP * planes[0].height)))
        if longest is not None:
            result = downscale(result, longest)
        return self._maps.caption(result)

    def _plane(self, pixels: _Pixels, values: FloatArray, axes: tuple[int, int]) -> Image.Image:
        """A slice with its map, of which rows and columns follow two of the axes x, y and z."""
        spacing = self._slices.spacing
        if axes[1] == 2 and self._slices.flips[2]:
            pixels = pixels[::-1]
            values = values[::-1]
        zoom = max(1, _LEAST / max(self._maps.size))
        across, down = (zoom * min(spacing[axis] / min(spacing), _MAX_STRETCH) for axis in axes)
        height, width, _ = pixels.shape
        size = round(width * across), round(height * down)
        image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
        region = Box(0, 0, *size)
        return picture(image, values, region, self._maps.faded_style, is_blank=self._maps.is_blank)
