"""Thumbnails for the gallery page: the photo, and each map on its own to be blended over it in the browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.explanation import Box
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import COLORS, trace
from ebcli.drawing.overlay import (
    covered_pixels,
    downscale,
    draw_frame,
    interpolate,
    is_blank_on,
    reduced_size,
)
from ebcli.drawing.painters import FRAME_COLOR, LEVELS, opacity, overlay_colors, scaled_levels
from ebcli.drawing.style import DrawingStyle
from ebcli.files.encoding import encode_picture
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import PAGE, picture_relpath, sha256, with_numbers
from ebcli.files.paths import FileState

if TYPE_CHECKING:
    from ebcli.drawing.planes import Orthogonal

THUMBNAILS = PAGE.parent / "thumbnails"
# The palette indices of the part that the network did not see, its frame, outlines and their halo; the map's values use
# the others
_OUTSIDE = 0
_FRAME = 253
_OUTLINE = 254
_HALO = 255
_LEVELS = 252
_LONGEST = 448  # pixels, of all planes of a volume together; with the gaps between them 512, unless planes are narrow


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
    stamp: FileState
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

    def _path(
        self, kind: str, suffix: str, index: int = 0, layer: str | None = None, number: int = 1
    ) -> Path:
        facts = [self.relpath, str(self.stamp.bytes), str(self.stamp.mtime_ns)]
        if layer is not None:
            facts += [self.configuration, self.method, layer]
        if number > 1:
            facts.append(str(number))
        name = sha256(b"\0".join(map(os.fsencode, facts)), 32)
        return picture_relpath(THUMBNAILS / name[:2] / name, index, kind, suffix)


def thumbnails(names: ThumbnailNames, frame: DisplayFrame, maps: Sequence[FrameMaps]) -> dict[Path, bytes]:
    """Make one image's thumbnails: contents by path relative to the output directory.

    All have the same size, at most 512 pixels a side, so they align when stacked. Blank maps get none.

    Args:
        names: their paths.
        frame: the image, or a frame.
        maps: the maps.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    files = {names.photo: encode_picture(downscale(frame.image), "jpg")}
    keys = with_numbers((map_.map.layer, map_.map.subject.index) for map_ in maps)
    for (key, number), frame_maps in zip(keys, maps, strict=True):
        content = map_thumbnail(frame_maps, frame_maps.map_at(frame))
        if content is not None:
            files[names.map(*key, number)] = content
    return files


def map_thumbnail(frame_maps: FrameMaps, values: NDArray[np.floating]) -> bytes | None:
    """The thumbnail of a map with these values (h, w); None if it is blank."""
    map_ = frame_maps.map
    size = frame_maps.size
    style = frame_maps.faded_style
    if is_blank_on(size, values, map_.placement, style.signed):
        return None
    small = reduced_size(size)
    region = map_.placement.rescale(size, small)
    picture = Image.new("P", small, _OUTSIDE)
    _paint(picture, values, region, style)
    draw_frame(picture, covered_pixels(region, small), small, _FRAME)
    scale = small[0] / size[0]
    trace(picture, [points * scale for points in map_.subject.outlines], _HALO, _OUTLINE)
    return _encode(picture, frame_maps)


def volume_thumbnails(
    names: ThumbnailNames, planes: Orthogonal, maps: Sequence[FrameMaps]
) -> dict[Path, bytes]:
    """Make the thumbnails of a volume, as ``thumbnails`` those of an image: all show the same planes."""
    figure = planes.figure(_LONGEST, has_map=False)
    photo = figure.image()
    files = {names.photo: encode_picture(photo, "jpg")}
    keys = with_numbers((map_.map.layer, map_.map.subject.index) for map_ in maps)
    for (key, number), frame_maps in zip(keys, maps, strict=True):
        if frame_maps.is_blank:
            continue
        picture = Image.new("P", photo.size, _OUTSIDE)
        for (left, top, plane), values in zip(figure.pictures, planes.values_of(frame_maps), strict=False):
            region = Box(left, top, left + plane.width, top + plane.height)
            _paint(picture, values, region, frame_maps.faded_style)
        files[names.map(*key, number)] = _encode(picture, frame_maps)
    return files


def _paint(picture: Image.Image, values: NDArray[np.floating], region: Box, style: DrawingStyle) -> None:
    """Paint a map (h, w) on a region of a palette image."""
    box = covered_pixels(region, picture.size)
    cells, zero = scaled_levels(values, style, _LEVELS)
    shades = interpolate(cells, region, box, style.cells, zero).clip(0.5, _LEVELS - 0.5)
    picture.paste(Image.fromarray((1 + shades).astype(np.uint8)), box[:2])


def _encode(picture: Image.Image, frame_maps: FrameMaps) -> bytes:
    """A palette image with the colors and opacities of an overlay with alpha 1."""
    style = frame_maps.faded_style
    chosen = np.linspace(0, LEVELS - 1, _LEVELS).round().astype(int)
    color = COLORS[frame_maps.number % len(COLORS)]
    colors = overlay_colors(style)[chosen].tobytes()
    picture.putpalette(bytes(3) + colors + bytes([*FRAME_COLOR, *color, 0, 0, 0]))
    opacities = (255 * opacity(style)[chosen]).round().astype(np.uint8)
    picture.info["transparency"] = bytes(1) + opacities.tobytes() + bytes([255, 255, 255])
    return encode_picture(picture, "png")
