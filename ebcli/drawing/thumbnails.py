"""Thumbnails for the gallery page: the photo, and each map on its own to be blended over it in the browser."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ebcli.drawing.color_scale import LEVELS, levels, limits, opacity, palette, visible
from ebcli.drawing.explanation import Map
from ebcli.drawing.overlay import covered, interpolated, is_blank_on, shrunk, small_size
from ebcli.drawing.style import DrawingStyle
from ebcli.files.encoding import encode_picture
from ebcli.files.input_spec import Placement
from ebcli.files.media.medium import Shown
from ebcli.files.naming import PAGE, numbered, picture_relpath
from ebcli.files.stamp import Stamp

if TYPE_CHECKING:
    from ebcli.drawing.frames import FrameMaps

THUMBNAILS = PAGE.parent / "thumbnails"

_OUTSIDE_OPACITY = 90  # of 255, of black over the part of the photo that the network did not see
_OUTSIDE, _OUTLINE = 0, 255  # the palette indices of that part and of outlines; the map's own values use the others
_LEVELS = 254


@dataclass(frozen=True)
class ThumbnailNames:
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
        return self._path((), 0, "photo", "jpg")

    def map(self, layer: str, index: int, number: int = 1) -> Path:
        """The map of a class at a layer, transparent where it is 0; with several, that of its ``number``-th object."""
        return self._path(self._computed(layer, number), index, "map", "png")

    def maps(self, maps: Sequence[Map]) -> list[Path]:
        """The paths of an image's maps."""
        return [
            self.map(layer, index, number)
            for (layer, index), number in numbered((map_.layer, map_.subject.index) for map_ in maps)
        ]

    def overlay(self, layer: str, index: int, number: int = 1) -> Path:
        """A reduced copy of the result, for when the map on its own cannot be made."""
        return self._path(self._computed(layer, number), index, "overlay", "jpg")

    def _computed(self, layer: str, number: int) -> tuple[str, ...]:
        return self.configuration, self.method, layer, *([] if number == 1 else [str(number)])

    def _path(self, computed: tuple[str, ...], index: int, kind: str, suffix: str) -> Path:
        facts = (self.relpath, str(self.stamp.bytes), str(self.stamp.mtime_ns), *computed)
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
    for path, one in zip(names.maps([one.map for one in maps]), maps, strict=True):
        if (content := map_thumbnail(one.map, one.at(shown), one.size, one.faded)) is not None:
            files[path] = content
    return files


def map_thumbnail(map_: Map, values: NDArray[np.floating], size: tuple[int, int], style: DrawingStyle) -> bytes | None:
    """The thumbnail of a map with these values (h, w), on an image of a size (width, height); None if it is blank."""
    small = small_size(size)
    if is_blank_on(size, values, map_.placement, style.signed):
        return None
    outlines = [small[0] / size[0] * points for points in map_.subject.outlines]
    return encode_picture(_transparent(values, map_.placement.scaled(size, small), small, style, outlines), "png")


def _transparent(
    saliency: NDArray[np.floating],
    region: Placement,
    size: tuple[int, int],
    style: DrawingStyle,
    outlines: Sequence[NDArray[np.floating]],
) -> Image.Image:
    """A map as a palette image with the colors and opacities of an overlay with alpha 1."""
    box = covered(region, size)
    cells = saliency if style.signed else visible(saliency, style)  # clamp before upsampling
    shades = interpolated(levels(cells, limits(saliency, style), _LEVELS), region, box).clip(0.5, _LEVELS - 0.5)
    picture = Image.new("P", size, _OUTSIDE)
    picture.paste(Image.fromarray((1 + shades).astype(np.uint8)), box[:2])
    for points in outlines:
        ImageDraw.Draw(picture).line([(x, y) for x, y in points], fill=_OUTLINE, width=2)
    chosen = np.linspace(0, LEVELS - 1, _LEVELS).round().astype(int)
    picture.putpalette(bytes(3) + palette(style.colormap)[chosen].tobytes() + bytes([255] * 3))
    opacities = (255 * opacity(style)[chosen] ** 0.6).round().astype(np.uint8)
    picture.info["transparency"] = bytes([_OUTSIDE_OPACITY]) + opacities.tobytes() + bytes([255])
    return picture
