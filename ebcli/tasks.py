"""What is done for one image at a time, in worker processes: before the network, and after it. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.errors import ImageError
from ebcli.images import Geometry, decode, has_image_suffix, is_recognised, network_view, placement
from ebcli.inputs import Source
from ebcli.output import encode_arrays, encode_picture
from ebcli.overlay import overlay


@dataclass(frozen=True)
class Stamp:
    """What tells one state of a file from another: its size in bytes, and when it was last changed."""

    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The state now. Raises OSError where there is no such file."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Seen:
    """An image as the network gets it: (crop, crop, 3) bytes; and how long that took."""

    pixels: NDArray[np.uint8]
    stamp: Stamp
    seconds: float


@dataclass(frozen=True)
class Style:
    """How results look; the fields of a ``RunPlan``."""

    cmap: str
    alpha: float
    format: str


def look(source: Source, geometry: Geometry) -> Seen | None:
    """Decode an image and cut out what the network sees; None for a file in a directory that is no image.

    Raises:
        ImageError: it cannot be decoded.
    """
    start = time.perf_counter()
    path = source.path
    if not (source.named or has_image_suffix(path) or is_recognised(path)):
        return None
    try:
        stamp = Stamp.of(path)
    except OSError as error:
        raise ImageError(error.strerror or str(error)) from error
    pixels = np.asarray(network_view(decode(path), geometry))
    return Seen(pixels, stamp, time.perf_counter() - start)


def draw(
    path: Path,
    stamp: Stamp,
    geometry: Geometry,
    style: Style,
    maps: NDArray[np.float32],
    raw: Mapping[str, ArrayLike] | None,
) -> list[bytes]:
    """The contents of one image's result files: a picture for each of its maps (K, h, w), then its arrays.

    The image is decoded once more, for to keep thousands of them until the network is done with them would take
    far more memory than decoding takes time.

    Raises:
        ImageError: it is not what it was when the network saw it, or the format cannot hold the picture.
    """
    image = decode(path)
    if Stamp.of(path) != stamp:
        raise ImageError("it was changed while it was being worked on")
    place = placement(image.size, geometry)
    files = [encode_picture(overlay(image, map_, place, style.cmap, style.alpha), style.format) for map_ in maps]
    if raw is not None:
        crop = np.array([place.left, place.top, place.right, place.bottom])
        files.append(encode_arrays({**raw, "maps": maps, "crop": crop, "image_size": np.array(image.size)}))
    return files
