"""Maps frame by frame, on one color scale; a photo is a clip of one frame, a volume a clip of its slices.

And thumbnails for the gallery page: the photo, and each map on its own to be blended over it in the browser.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ebcli.drawing.legend import COLORS, captioned, outlined, traced
from ebcli.drawing.overlay import beside, covered, interpolated, is_blank_on, peaks_at_border, picture, reduced, shrunk
from ebcli.drawing.painters import FRAME_COLOR, LEVELS, limits, opacity, overlay_colors, scaled, visible
from ebcli.drawing.style import DrawingStyle
from ebcli.files.encoding import encode_picture
from ebcli.files.frame_ranges import Clips, Slices
from ebcli.files.media.medium import Shown
from ebcli.files.naming import PAGE, numbered, picture_relpath
from ebcli.files.paths import Stamp
from ebcli.nouns.explanation import Box, Map

THUMBNAILS = PAGE.parent / "thumbnails"

_GAP = 0.02  # of the height, between slices
_LEAST = 256  # pixels, of the longer side of the first slice
_STRETCHED = 16  # times; more would be a header that lies

# The palette indices of the part that the network did not see, its frame, outlines and their halo; the map's values use
# the others
_OUTSIDE, _FRAME, _OUTLINE, _HALO = 0, 253, 254, 255
_LEVELS = 252


def _ending_at(high: float, cells: int, style: DrawingStyle) -> DrawingStyle:
    """The style with its scale ending at a value, unless the end is set."""
    if style.vmax is not None:
        return style
    return replace(style, vmax=max(float(f"{high * cells:.3g}"), style.vmin * (1 + 1e-6)), percentile=None)


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
    size: tuple[int, int]
    clips: Clips | None
    style: DrawingStyle
    is_blank: bool
    number: int = 0

    @classmethod
    def of(
        cls, map_: Map, size: tuple[int, int], clips: Clips | None, style: DrawingStyle, number: int = 0
    ) -> "FrameMaps":
        """Find the color scale of a map."""
        style = style.of(map_.is_two_sided)
        cells = map_.drawn_values
        flat = cells if clips is None else np.abs(cells).max(0) if style.signed else cells.max(0)
        is_blank = is_blank_on(size, flat, map_.placement, style.signed)
        if clips is not None and not is_blank:
            style = _ending_at(limits(cells, style)[1] / map_.brightness(style.signed), cells.size, style)
        return cls(map=map_, size=size, clips=clips, style=style, is_blank=is_blank, number=number)

    @property
    def faded(self) -> DrawingStyle:
        """The style, on a scale whose upper end a map that rests on little evidence does not reach."""
        brightness = self.map.brightness(self.style.signed)
        if brightness == 1 or self.is_blank:
            return self.style
        cells = self.map.drawn_values
        return _ending_at(limits(cells, self.style)[1] / brightness, cells.size, self.style)

    @property
    def at_border(self) -> bool:
        """Whether it peaks at an edge of the center crop."""
        values = self.map.values if self.clips is None else self.map.values.max(0)
        return peaks_at_border(self.size, values, self.map.placement)

    def at(self, shown: Shown) -> NDArray[np.float32]:
        """The map (h, w) of a frame; of a video, multiplied by the number of cells in time.

        So the ends of the scale mean the same for one frame as for the whole video. Cells are interpolated linearly in
        time, from center to center; a clip's maps do not mix with another's.
        """
        values = self.map.drawn_values
        if self.clips is None:
            return values
        if isinstance(self.clips, Slices):
            values = self.clips.upright(values)
        count = len(values)
        depth = count // len(self.clips.starts)
        cells = values[shown.clip * depth : (shown.clip + 1) * depth]
        position = min(max((shown.place + 0.5) * depth / self.clips.frames - 0.5, 0.0), depth - 1.0)
        before = int(position)
        one, other = cells[before], cells[min(before + 1, depth - 1)]
        if not self.style.signed:  # clamp before interpolating
            one, other = visible(one, self.style), visible(other, self.style)
        return ((one + (position - before) * (other - one)) * count).astype(np.float32)

    def drawn(self, shown: Shown) -> Image.Image:
        """A frame with its map over it, at the frame's own size; a caption goes below."""
        image = shown.image
        region = self.map.placement.scaled(self.size, image.size)
        drawn = picture(image, self.at(shown), region, self.faded, is_blank=self.is_blank)
        outlined(drawn, self.map.subject, self.number, image.width / self.size[0], image.width)
        return captioned(drawn, self.map, self.faded, self.is_blank) if self.style.caption else drawn


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
        self._maps, self._slices = maps, slices
        self._values = slices.upright(maps.map.drawn_values)
        strength = np.nan_to_num(np.abs(self._values) if maps.style.signed else self._values)
        self._cell = [int(i) for i in np.unravel_index(strength.argmax(), strength.shape)]
        sides = zip(self._cell, (slices.total, *maps.size[::-1]), strength.shape, strict=True)
        self.peak = [(2 * i + 1) * side // (2 * count) for i, side, count in sides]
        self._axial: Shown | None = None
        self._rows: list[NDArray[np.uint8]] = []
        self._columns: list[NDArray[np.uint8]] = []

    def add(self, shown: Shown) -> None:
        """Keep what is drawn of the next slice."""
        z, y, x = self.peak
        if shown.number == z:
            self._axial = shown
        pixels = np.asarray(shown.image)
        self._rows.append(pixels[y])
        self._columns.append(pixels[:, x])

    def drawn(self, longest: int | None = None) -> Image.Image:
        """The picture, reduced to this longest side."""
        assert self._axial is not None
        (_, y, x), (_, height, width) = self._cell, self._values.shape
        planes = [
            self._plane(np.asarray(self._axial.image), self._maps.at(self._axial), (0, 1)),
            self._plane(np.stack(self._rows), self._values[:, y] * height, (0, 2)),
            self._plane(np.stack(self._columns), self._values[:, :, x] * width, (1, 2)),
        ]
        whole = beside(planes, max(2, round(_GAP * planes[0].height)))
        whole = whole if longest is None else shrunk(whole, longest)
        style = self._maps.faded
        return captioned(whole, self._maps.map, style, self._maps.is_blank) if style.caption else whole

    def _plane(self, pixels: NDArray[np.uint8], values: NDArray[np.float32], axes: tuple[int, int]) -> Image.Image:
        """A slice with its map, of which rows and columns follow two of the axes x, y and z."""
        if axes[1] == 2 and self._slices.flipped[2]:
            pixels, values = pixels[::-1], values[::-1]
        finest, zoom = min(self._slices.spacing), max(1, _LEAST / max(self._maps.size))
        across, down = (zoom * min(self._slices.spacing[axis] / finest, _STRETCHED) for axis in axes)
        image = Image.fromarray(pixels)
        image = image.resize((round(image.width * across), round(image.height * down)), Image.Resampling.BICUBIC)
        whole = Box(0, 0, *image.size)
        return picture(image, values, whole, self._maps.faded, is_blank=self._maps.is_blank)


class ThumbnailNames(NamedTuple):
    """The paths of one image's thumbnails, relative to the output directory.

    They are hashes of what the thumbnails show: the input's path and state, and for maps the settings. So names never
    collide, never leave the directory, and an edited input or other settings never reuse an old thumbnail.

    Attributes:
        relpath: the input's path below the output directory, ``place`` in its record.
        stamp: the input's state.
        configuration, method: as in its record.
    """

    relpath: str
    stamp: Stamp
    configuration: str
    method: str

    @property
    def photo(self) -> Path:
        return self._path("photo", "jpg")

    def map(self, layer: str, index: int, number: int = 1) -> Path:
        """The map of a class at a layer, transparent where it is 0; with several, that of its ``number``-th object."""
        return self._path("map", "png", index, layer, number)

    def overlay(self, layer: str, index: int, number: int = 1) -> Path:
        """A reduced copy of the result, for when the map on its own cannot be made."""
        return self._path("overlay", "jpg", index, layer, number)

    def _path(self, kind: str, suffix: str, index: int = 0, layer: str | None = None, number: int = 1) -> Path:
        facts = [self.relpath, str(self.stamp.bytes), str(self.stamp.mtime_ns)]
        facts += [] if layer is None else [self.configuration, self.method, layer]
        facts += [str(number)] * (number > 1)
        name = hashlib.sha256(b"\0".join(map(os.fsencode, facts))).hexdigest()[:32]
        return picture_relpath(THUMBNAILS / name[:2] / name, index, kind, suffix)


def thumbnails(names: ThumbnailNames, shown: Shown, maps: Sequence[FrameMaps]) -> dict[Path, bytes]:
    """Make one image's thumbnails: contents by path relative to the output directory.

    All have the same size, at most 512 pixels a side, so they align when stacked. Blank maps get none.

    Args:
        names: their paths.
        shown: the image, or a frame.
        maps: the maps.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    files = {names.photo: encode_picture(shrunk(shown.image), "jpg")}
    each = numbered((one.map.layer, one.map.subject.index) for one in maps)
    for (key, number), one in zip(each, maps, strict=True):
        if (content := map_thumbnail(one, one.at(shown))) is not None:
            files[names.map(*key, number)] = content
    return files


def map_thumbnail(one: FrameMaps, values: NDArray[np.floating]) -> bytes | None:
    """The thumbnail of a map with these values (h, w); None if it is blank."""
    map_, size, style, color = one.map, one.size, one.faded, COLORS[one.number % len(COLORS)]
    if is_blank_on(size, values, map_.placement, style.signed):
        return None
    small = reduced(size)
    region, scale = map_.placement.scaled(size, small), small[0] / size[0]
    box, (cells, zero) = covered(region, small), scaled(values, style, _LEVELS)
    shades = interpolated(cells, region, box, style.cells, zero).clip(0.5, _LEVELS - 0.5)
    # a palette image with the colors and opacities of an overlay with alpha 1
    picture = Image.new("P", small, _OUTSIDE)
    picture.paste(Image.fromarray((1 + shades).astype(np.uint8)), box[:2])
    if box != (0, 0, *small):
        ImageDraw.Draw(picture).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), outline=_FRAME)
    outlines = [[(x * scale, y * scale) for x, y in points] for points in map_.subject.outlines]
    traced(picture, outlines, _HALO, _OUTLINE)
    chosen = np.linspace(0, LEVELS - 1, _LEVELS).round().astype(int)
    picture.putpalette(bytes(3) + overlay_colors(style)[chosen].tobytes() + bytes([*FRAME_COLOR, *color, 0, 0, 0]))
    opacities = (255 * opacity(style)[chosen]).round().astype(np.uint8)
    picture.info["transparency"] = bytes(1) + opacities.tobytes() + bytes([255, 255, 255])
    return encode_picture(picture, "png")
