"""Small pictures for the page: the photo, and each map alone, to be laid over it in the browser."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from ebcli.images import Placement
from ebcli.output import encode_picture, picture_place
from ebcli.overlay import is_blank, palette, upsample
from ebcli.tasks import Stamp

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
        configuration, layer, method: what its maps were computed with, as in its record.
    """

    place: str
    stamp: Stamp
    configuration: str
    layer: str
    method: str

    @property
    def photo(self) -> Path:
        return self._path((), 0, "photo", "jpg")

    def map(self, index: int) -> Path:
        """The map of a class, transparent where it is 0."""
        return self._path((self.configuration, self.layer, self.method), index, "map", "png")

    def overlay(self, index: int) -> Path:
        """A class's result as the run drew it, smaller, for lack of the map alone."""
        return self._path((self.configuration, self.layer, self.method), index, "overlay", "jpg")

    def _path(self, computed: tuple[str, ...], index: int, kind: str, suffix: str) -> Path:
        facts = (self.place, str(self.stamp.bytes), str(self.stamp.mtime_ns), *computed)
        name = hashlib.sha256(b"\0".join(map(os.fsencode, facts))).hexdigest()[:32]
        return picture_place(THUMBNAILS / name[:2] / name, index, kind, suffix)


def thumbnails(
    names: ThumbnailNames,
    image: Image.Image,
    classes: Sequence[int],
    maps: ArrayLike,
    place: Placement,
    cmap: str = "inferno",
    signed: bool = False,
) -> dict[Path, bytes]:
    """One image's thumbnails: paths relative to the output directory, and the files' contents.

    All have the same size, at most 512 pixels a side, so that one laid over the other is aligned. A blank map
    (``overlay.is_blank``) has none.

    Args:
        names: where they lie.
        image: RGB.
        classes: (K,) class indices.
        maps: (K, h, w), signed.
        place: the rectangle of the image that the maps cover.
        cmap: a matplotlib colormap's name.
        signed: show what is below 0 as well, with 0 in the middle of the colormap.

    Raises:
        ConfigurationError: matplotlib has no colormap of that name.
    """
    small = shrunk(image)
    files = {names.photo: encode_picture(small, "jpg")}
    return files | map_thumbnails(names, image.size, small.size, classes, maps, place, cmap, signed)


def map_thumbnails(
    names: ThumbnailNames,
    size: tuple[int, int],
    small: tuple[int, int],
    classes: Sequence[int],
    maps: ArrayLike,
    place: Placement,
    cmap: str,
    signed: bool = False,
) -> dict[Path, bytes]:
    """As ``thumbnails``, without the photo; ``size`` is its (width, height), and ``small`` its thumbnail's."""
    x, y = small[0] / size[0], small[1] / size[1]
    scaled = Placement(place.left * x, place.top * y, place.right * x, place.bottom * y)
    return {
        names.map(index): encode_picture(_transparent(map_, scaled, small, cmap, signed), "png")
        for index, map_ in zip(classes, np.asarray(maps), strict=True)
        if not is_blank(map_)
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


def _transparent(saliency: ArrayLike, place: Placement, size: tuple[int, int], cmap: str, signed: bool) -> Image.Image:
    """A map as a picture with a colour table, scaled by its greatest magnitude m.

    Where it is v, the colour is that of v / m, and its opacity ``|v / m| ** 0.6``, as in ``overlay``.
    """
    values = np.asarray(saliency, dtype=np.float32)
    fine, (left, top) = upsample(values, place, size)
    greatest = values.max()
    if signed:  # what is below 0, which up-sampling leaves out, is above 0 in the negative
        fine = fine - upsample(-values, place, size)[0]
        greatest = np.abs(values).max()
    low = -1.0 if signed else 0.0
    shares = np.linspace(low, 1, 255)

    picture = Image.new("P", size, _OUTSIDE)
    # between the cells the bicubic curve swings a little above the map's maximum
    levels = 1 + np.round((np.clip(fine / greatest, low, 1) - low) / (1 - low) * 254)
    picture.paste(Image.fromarray(levels.astype(np.uint8)), (left, top))
    colours = palette(cmap)[np.round((shares - low) / (1 - low) * 255).astype(int)]
    picture.putpalette(bytes(3) + colours.tobytes())
    opacities = np.round(255 * np.abs(shares) ** 0.6).astype(np.uint8)
    picture.info["transparency"] = bytes([_OUTSIDE_OPACITY]) + opacities.tobytes()
    return picture
