"""Small pictures for the page: the photo, and each map alone, to be laid over it in the browser."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.color_scale import LEVELS, DrawingStyle, palette
from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import covered, interpolated, is_blank_on
from ebcli.files.images import Placement
from ebcli.files.naming import encode_picture, picture_place
from ebcli.files.storage import Stamp

REPORT = Path("report")
THUMBNAILS = REPORT / "thumbnails"

_LONGEST_SIDE = 512  # pixels
_OUTSIDE_OPACITY = 90  # of 255, in black: the photo is darker where the network did not look
_OUTSIDE = 0  # that place's entry in a map's colour table; the map's own values have the other 255


@dataclass(frozen=True)
class ThumbnailNames:
    """Where the thumbnails of one image lie, relative to the output directory.

    They are named by a hash of what they show, so that no two meet whatever the inputs are called, none leaves the
    directory, and none is taken for one of the same input as it was before, or of other settings. A run that comes
    across them knows them as results of this program.

    Attributes:
        place: the input's place, as in its record.
        stamp: the input's state.
        configuration, method: what its maps were computed with, as in its record.
    """

    place: str
    stamp: Stamp
    configuration: str
    method: str

    @property
    def photo(self) -> Path:
        return self._path((), 0, "photo", "jpg")

    def map(self, layer: str, index: int) -> Path:
        """The map of a class at a layer, transparent where it is 0."""
        return self._path((self.configuration, self.method, layer), index, "map", "png")

    def overlay(self, layer: str, index: int) -> Path:
        """The result as the run drew it, smaller, for lack of the map alone."""
        return self._path((self.configuration, self.method, layer), index, "overlay", "jpg")

    def _path(self, computed: tuple[str, ...], index: int, kind: str, suffix: str) -> Path:
        facts = (self.place, str(self.stamp.bytes), str(self.stamp.mtime_ns), *computed)
        name = hashlib.sha256(b"\0".join(map(os.fsencode, facts))).hexdigest()[:32]
        return picture_place(THUMBNAILS / name[:2] / name, index, kind, suffix)


def thumbnails(
    names: ThumbnailNames, image: Image.Image, place: Placement, explained: Explanation, look: DrawingStyle
) -> dict[Path, bytes]:
    """One image's thumbnails: paths relative to the output directory, and the files' contents.

    All have the same size, at most 512 pixels a side, so that one laid over the other is aligned. Maps that are
    blank (``overlay.is_blank_on``) have none.

    Args:
        names: where they lie.
        image: RGB.
        place: the rectangle of the image that the maps cover.
        explained: the maps.
        look: their colours and their scale.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    maps = {names.map(at.layer, explained.classes[k]): at.maps[k] for k, at in explained.each_map()}
    return {names.photo: encode_picture(shrunk(image), "jpg")} | map_thumbnails(maps, image.size, place, look)


def map_thumbnails(
    maps: Mapping[Path, NDArray[np.floating]], size: tuple[int, int], place: Placement, look: DrawingStyle
) -> dict[Path, bytes]:
    """As ``thumbnails``, of maps (h, w) alone; ``size`` is the image's (width, height)."""
    small = small_size(size)
    x, y = small[0] / size[0], small[1] / size[1]
    scaled = Placement(place.left * x, place.top * y, place.right * x, place.bottom * y)
    return {
        path: encode_picture(_transparent(map_, scaled, small, look), "png")
        for path, map_ in maps.items()
        if not is_blank_on(size, map_, place, look.signed)
    }


def shrunk(image: Image.Image) -> Image.Image:
    """An image no larger than thumbnails are."""
    size = small_size(image.size)
    # a whole number of pixels is averaged first, which spares a large photo's copy and most of the time
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


def small_size(size: tuple[int, int]) -> tuple[int, int]:
    """The size (width, height) of an image's thumbnails."""
    scale = min(1, _LONGEST_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _transparent(
    saliency: NDArray[np.floating], place: Placement, size: tuple[int, int], look: DrawingStyle
) -> Image.Image:
    """A map as a picture with a colour table, with the colours and opacities of an overlay whose alpha is 1."""
    box = covered(place, size)
    cells = saliency if look.signed else look.shown(saliency)  # before it is up-sampled: a dip must not dent a peak
    shares = look.normalize(interpolated(cells, place, box), look.limits(saliency))
    picture = Image.new("P", size, _OUTSIDE)
    picture.paste(Image.fromarray((1 + shares * 254).round().astype(np.uint8)), box[:2])
    levels = np.linspace(0, LEVELS - 1, 255).round().astype(int)
    picture.putpalette(bytes(3) + palette(look.cmap)[levels].tobytes())
    opacities = (255 * look.opacity()[levels] ** 0.6).round().astype(np.uint8)
    picture.info["transparency"] = bytes([_OUTSIDE_OPACITY]) + opacities.tobytes()
    return picture
