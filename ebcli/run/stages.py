"""What becomes of one image before and behind the network, on whichever machine: the same for all engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.drawing.color_scale import DrawingStyle
from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import is_blank_on, picture
from ebcli.drawing.panel import panel
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.errors import EbcliError, ImageError, OutputError
from ebcli.files.images import Geometry, decode, has_image_suffix, is_recognised, network_view, placement
from ebcli.files.naming import encode_arrays, encode_picture, output_relpath, panel_place, picture_place, raw_place
from ebcli.files.records import ClassRecord, Record
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp, url_of


@dataclass(frozen=True)
class NetworkInput:
    """An image as the network gets it: (crop, crop, 3) bytes; and how long that took."""

    pixels: NDArray[np.uint8]
    stamp: Stamp
    seconds: float


@dataclass(frozen=True)
class RenderOptions:
    """How results look.

    Attributes:
        look: how a map is laid on its photo.
        format: the pictures' format.
        panel: one figure of all maps in place of a picture for each.
        about: what the maps are computed with, in words.
        facts: the same for the raw files, by the arrays' names; None for no such files.
    """

    look: DrawingStyle
    format: str
    panel: bool
    about: str
    facts: Mapping[str, NDArray[np.str_]] | None


@dataclass(frozen=True)
class RenderedFiles:
    """The contents of one image's result files; whether its maps, as of ``each_map``, are blank; and thumbnails."""

    files: list[bytes]
    blank: list[bool]
    thumbnails: dict[Path, bytes]


def look(source: Source, geometry: Geometry) -> NetworkInput | None:
    """Decode an image and cut out what the network sees; None for a file in a directory that is no image.

    Raises:
        ImageError: it is not there, or cannot be decoded.
    """
    start = time.perf_counter()
    if not is_image(source):
        return None
    stamp, file = source.opened()
    pixels = np.asarray(network_view(decode(file), geometry))
    return NetworkInput(pixels, stamp, time.perf_counter() - start)


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
    drawing: RenderOptions,
    explained: Explanation,
    names: ThumbnailNames | None,
) -> RenderedFiles:
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
    return RenderedFiles(files, [is_blank_on(image.size, map_, place, style.signed) for map_ in maps], small)


def _arrays(explained: Explanation) -> dict[str, ArrayLike]:
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


Call = Callable[..., Any]


@dataclass(frozen=True)
class ImageStages:
    """What all images of a run share. Needs no torch, and can be sent to other processes.

    Attributes:
        geometry: what the network sees of an image.
        drawing: how results look.
        shown: the output directory as its files are named in the records.
        common: a record with the fields that are the same for all images.
        report: also make the thumbnails of the page.
    """

    geometry: Geometry
    drawing: RenderOptions
    shown: Path
    common: Record
    report: bool

    def look(self, source: Source, call: Call) -> NetworkInput | Record:
        """What the network gets of an image; the record of one that failed, or that is none.

        Args:
            source: the file.
            call: calls a function with arguments, in another process perhaps; as ``Workers.call``.
        """
        start = perf_counter()
        try:
            seen: NetworkInput | None = call(look, source, self.geometry)
        except Exception as error:
            return self._failed(source, error, perf_counter() - start)
        if seen is None:
            return replace(self._record(source), status="not an image")
        return seen

    def finish(
        self,
        source: Source,
        seen: NetworkInput,
        explained: Explanation,
        call: Call,
        write: Callable[[Mapping[Path, bytes]], None],
    ) -> Record:
        """Draw one image's results and write them; its record.

        Args:
            source, seen, explained: the image, and what came of it so far.
            call: as for ``look``.
            write: writes files, given by their paths below the output directory.

        Raises:
            OutputError: they cannot be written.
        """
        start = perf_counter()
        place, names = output_relpath(source.path), None
        if self.report:
            names = ThumbnailNames(str(place), seen.stamp, self.common.configuration, self.common.method)
        try:
            drawn = call(draw, source, seen.stamp, self.geometry, self.drawing, explained, names)
        except Exception as error:
            return self._failed(source, error, seen.seconds + explained.seconds + perf_counter() - start)
        results = self._results(place, explained)
        write(dict(zip(results, drawn.files, strict=True)) | drawn.thumbnails)
        return replace(
            self._record(source),
            status="done",
            output=tuple(str(self.shown / result) for result in results),
            output_bytes=tuple(map(len, drawn.files)),
            classes=tuple(
                ClassRecord(
                    explained.classes[k],
                    explained.names[k],
                    explained.scores[k],
                    at.mass[k],
                    blank,
                    None if at.losses is None else {site: lost[k] for site, lost in at.losses.items()},
                    at.layer,
                    float(at.maps[k].max()) * at.maps[k].size,
                )
                for (k, at), blank in zip(explained.each_map(), drawn.blank, strict=True)
            ),
            seconds=round(seen.seconds + explained.seconds + perf_counter() - start, 4),
            input_bytes=seen.stamp.bytes,
            input_mtime_ns=seen.stamp.mtime_ns,
        )

    def _results(self, place: Path, explained: Explanation) -> list[Path]:
        """Where the files go that ``draw`` makes."""
        suffix = self.drawing.format
        if self.drawing.panel:
            results = [panel_place(place, suffix)]
        else:
            results = [
                picture_place(
                    place,
                    explained.classes[k],
                    explained.names[k],
                    suffix,
                    at.layer if len(explained.layers) > 1 else None,
                )
                for k, at in explained.each_map()
            ]
        return [*results, *([raw_place(place)] if self.drawing.facts is not None else [])]

    def _record(self, source: Source) -> Record:
        return replace(self.common, input=source.name, place=str(output_relpath(source.path)))

    def _failed(self, source: Source, error: Exception, seconds: float) -> Record:
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        reason = str(error) if isinstance(error, EbcliError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            reason = "there is not enough memory to decode and draw it"
        return replace(self._record(source), status="failed", error=" ".join(reason.split()), seconds=round(seconds, 4))
