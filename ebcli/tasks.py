"""What is done for one image at a time, in worker processes: before the network, and after it. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.errors import ImageError
from ebcli.explained import Explained
from ebcli.images import Geometry, decode, has_image_suffix, is_recognised, network_view, placement
from ebcli.inputs import Source
from ebcli.look import Look
from ebcli.output import encode_arrays, encode_picture
from ebcli.overlay import is_blank_on, picture
from ebcli.panel import panel
from ebcli.report.thumbnails import ThumbnailNames, thumbnails
from ebcli.storage import Stamp, url_of


@dataclass(frozen=True)
class Seen:
    """An image as the network gets it: (crop, crop, 3) bytes; and how long that took."""

    pixels: NDArray[np.uint8]
    stamp: Stamp
    seconds: float


@dataclass(frozen=True)
class Drawing:
    """How results look.

    Attributes:
        look: how a map is laid on its photo.
        format: the pictures' format.
        panel: one figure of all maps in place of a picture for each.
        about: what the maps are computed with, in words.
        facts: the same for the raw files, by the arrays' names; None for no such files.
    """

    look: Look
    format: str
    panel: bool
    about: str
    facts: Mapping[str, NDArray[np.str_]] | None


@dataclass(frozen=True)
class Drawn:
    """The contents of one image's result files; whether its maps, as of ``each_map``, are blank; and thumbnails."""

    files: list[bytes]
    blank: list[bool]
    thumbnails: dict[Path, bytes]


def look(source: Source, geometry: Geometry) -> Seen | None:
    """Decode an image and cut out what the network sees; None for a file in a directory that is no image.

    Raises:
        ImageError: it is not there, or cannot be decoded.
    """
    start = time.perf_counter()
    if not is_image(source):
        return None
    stamp, file = source.opened()
    pixels = np.asarray(network_view(decode(file), geometry))
    return Seen(pixels, stamp, time.perf_counter() - start)


def is_image(source: Source) -> bool:
    """Whether to work on a file: it was named, or looks like an image."""
    if source.named or has_image_suffix(source.path):
        return True
    # to look at the first bytes of each label and description behind a URL would take longer than the images
    return source.span is None and url_of(source.path) is None and is_recognised(source.path)


def draw(
    source: Source,
    stamp: Stamp,
    geometry: Geometry,
    drawing: Drawing,
    explained: Explained,
    names: ThumbnailNames | None,
) -> Drawn:
    """One image's result files: a picture for each of its maps or a panel of all, then its arrays.

    With ``names``, its thumbnails for the page as well.

    The image is decoded once more, for to keep thousands of them until the network is done with them would take
    far more memory than decoding takes time.

    Raises:
        ImageError: it is not what it was when the network saw it, or the format cannot hold the picture.
    """
    now, file = source.opened()
    image = decode(file)
    if now != stamp:
        raise ImageError("it was changed while it was being worked on")
    place, style = placement(image.size, geometry), drawing.look
    maps = [at.maps[k] for k, at in explained.each_map()]
    if drawing.panel:
        pictures = iter([panel(image, place, explained, style, source.name, drawing.about)])
    else:
        pictures = (picture(image, map_, place, style) for map_ in maps)
    files = [encode_picture(shown, drawing.format) for shown in pictures]
    if drawing.facts is not None:
        crop = np.array([place.left, place.top, place.right, place.bottom])
        facts = {**drawing.facts, "crop": crop, "image_size": np.array(image.size)}
        files.append(encode_arrays(facts | _arrays(explained)))
    small = {} if names is None else thumbnails(names, image, place, explained, style)
    return Drawn(files, [is_blank_on(image.size, map_, place, style.signed) for map_ in maps], small)


def _arrays(explained: Explained) -> dict[str, ArrayLike]:
    """What was explained, for a raw file; with several layers, each layer's name stands in its arrays' names."""
    arrays: dict[str, ArrayLike] = {
        "classes": np.array(explained.classes),
        "names": np.array([name or "" for name in explained.names]),
        "scores": np.array(explained.scores, np.float32),
    }
    for at in explained.layers:
        where = f"@{at.layer}" if len(explained.layers) > 1 else ""
        arrays[f"maps{where}"] = at.maps
        arrays[f"mass{where}"] = np.array(at.mass, np.float32)
        if at.relevance is not None:
            arrays[f"relevance{where}"] = at.relevance
    return arrays
