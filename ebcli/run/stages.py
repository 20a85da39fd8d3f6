"""One image's stages before and after the network, in any process and on any machine. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ebcli.drawing.explanation import Explanation
from ebcli.drawing.overlay import is_blank_on, outlined, peaks_at_border, picture, shrunk
from ebcli.drawing.panel import panel
from ebcli.drawing.regions import Region, RegionOptions, largest_region
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.errors import EbcliError, ImageError, OutputError
from ebcli.files.clips import Clips
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.images import Geometry, decode, has_image_suffix, is_recognized, limit_pixels, network_view, placement
from ebcli.files.naming import ResultNames, output_relpath
from ebcli.files.records import ClassRecord, Record
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp, url_of
from ebcli.files.video import has_video_suffix
from ebcli.models.classes import printable

Call = Callable[..., Any]


@dataclass(frozen=True)
class NetworkInput:
    """An image or a video as the network gets it.

    Attributes:
        pixels: (crop, crop, 3), or (height, width, 3) for networks that see whole images; 8 bits. Of a video,
            (clips, frames, crop, crop, 3).
        stamp: the state of the file that was read.
        seconds: the time that loading took.
        size: the image's width and height.
        waited: the time that the network was idle before it had this image.
        clips: which clips of a video these are.
    """

    pixels: NDArray[np.uint8]
    stamp: Stamp
    seconds: float
    size: tuple[int, int]
    waited: float = 0.0
    clips: Clips | None = None


@dataclass(frozen=True)
class RenderOptions:
    """How the results of a run are rendered.

    Attributes:
        style: how maps are drawn.
        names: the names of the result files, and so what is rendered: pictures or a panel, and in which format.
        about: the subtitle of panels: model, layer and method.
        provenance: what pictures say about their making; see ``ebcli.files.encoding.FACTS``.
        facts: the same as arrays by name, for raw files; None if none are written.
        regions: how regions are found; None if they are not.
        max_side: pictures are drawn over photos reduced to this longest side; panels have a size of their own.
    """

    style: DrawingStyle
    names: ResultNames
    about: str
    provenance: Mapping[str, str]
    facts: Mapping[str, NDArray[np.str_]] | None
    regions: RegionOptions | None = None
    max_side: int | None = None


@dataclass(frozen=True)
class RenderedFiles:
    """One image's results in memory.

    Attributes:
        files: the contents of the result files.
        blank: whether each map is blank, in the order of ``Explanation.each_map``.
        thumbnails: their contents by path.
        regions: the region of each map, if requested.
        size: the image's width and height.
        at_border: whether each map peaks at an edge of the center crop.
        spent: the seconds of decoding, drawing and encoding; see ``ebcli.files.records.STAGES``.
    """

    files: list[bytes]
    blank: list[bool]
    thumbnails: dict[Path, bytes]
    regions: list[Region | None]
    size: tuple[int, int]
    at_border: list[bool]
    spent: dict[str, float]


def load_image(source: Source, geometry: Geometry, max_pixels: int | None = None) -> NetworkInput | None:
    """Decode an image and crop what the network sees; None for a file in a directory that is not an image.

    Raises:
        ImageError: the file does not exist or cannot be decoded.
    """
    start = perf_counter()
    limit_pixels(max_pixels)
    if not is_image(source):
        return None
    stamp, file = source.opened()
    if has_video_suffix(source.path):
        raise ImageError("it is a video, not an image: choose a network for video, such as --model r3d_18")
    image = decode(file)
    pixels = np.asarray(network_view(image, geometry))
    return NetworkInput(pixels, stamp, perf_counter() - start, image.size)


def is_image(source: Source) -> bool:
    """Whether to work on a file: the user named it, or it looks like an image."""
    if source.named or has_image_suffix(source.path):
        return True
    # remote files are recognized by extension only: opening every one would be slow
    return source.span is None and url_of(source.path) is None and is_recognized(source.path)


def render(
    source: Source,
    stamp: Stamp,
    geometry: Geometry,
    options: RenderOptions,
    explanation: Explanation,
    names: ThumbnailNames | None,
    max_pixels: int | None = None,
) -> RenderedFiles:
    """Render one image's results: a picture per map or one panel, then the arrays; with ``names``, thumbnails too.

    The image is decoded a second time: keeping thousands of photos until the network is done with them would take
    far more memory than decoding takes time.

    Raises:
        ImageError: the file changed since the network saw it, or the format cannot hold the picture.
    """
    laps = Laps()
    limit_pixels(max_pixels)
    now, file = source.opened()
    image = decode(file)
    laps.end("decode")
    if now != stamp:
        raise ImageError("the file changed during the run")
    region, style = explanation.placement or placement(image.size, geometry), options.style
    maps = [at.maps[k] for k, at in explanation.each_map()]
    if options.names.panel:
        pictures = iter([panel(image, region, explanation, style, source.name, options.about)])
    else:
        photo = image if options.max_side is None else shrunk(image, options.max_side)
        inside = region.scaled(image.size, photo.size)
        pictures = (
            outlined(picture(photo, at.maps[k], inside, style), explanation.outline(k), photo.width / image.width)
            for k, at in explanation.each_map()
        )
    common = {**options.provenance, "input": file_name(source)}
    about = about_pictures(explanation, options.names.panel)
    suffix = options.names.suffix(output_relpath(source.path))
    files = []
    for drawn, facts in zip(pictures, about, strict=True):
        laps.end("draw")
        files.append(encode_picture(drawn, suffix, common | facts))
        laps.end("encode")
    if options.facts is not None:
        crop = np.array([region.left, region.top, region.right, region.bottom])
        arrays = {**options.facts, "crop": crop, "image_size": np.array(image.size)}
        files.append(encode_arrays(arrays | arrays_of(explanation)))
        laps.end("encode")
    small = {} if names is None else thumbnails(names, image, region, explanation, style)
    regions: list[Region | None] = [None] * len(maps)
    if options.regions is not None:
        regions = [largest_region(map_, region, image.size, options.regions) for map_ in maps]
    blank = [is_blank_on(image.size, map_, region, style.signed) for map_ in maps]
    at_border = [peaks_at_border(image.size, map_, region) for map_ in maps]
    laps.end("draw")
    return RenderedFiles(files, blank, small, regions, image.size, at_border, laps.spent)


class Laps:
    """A stopwatch: ``end`` adds the time since the last lap to a stage."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._start = perf_counter()

    def end(self, stage: str) -> None:
        now = perf_counter()
        self.spent[stage] += now - self._start
        self._start = now


def file_name(source: Source) -> str:
    """An input's name; without its directory and a URL's query, as pictures are passed on, but these are private."""
    name = output_relpath(source.path).name
    return printable(name if url_of(source.path) is None else name.partition("?")[0])


def about_pictures(explanation: Explanation, panel: bool) -> list[dict[str, str]]:
    """The layer, class and score of each picture, or of all maps in a panel."""
    names = zip(explanation.classes, explanation.names, strict=True)
    classes = [f"{index} {name}" if name else str(index) for index, name in names]
    scores = [f"{score:.4f}" for score in explanation.scores]
    if panel:
        layers = ", ".join(at.layer for at in explanation.layers)
        return [{"layer": layers, "class": "; ".join(classes), "score": ", ".join(scores)}]
    return [{"layer": at.layer, "class": classes[k], "score": scores[k]} for k, at in explanation.each_map()]


def _box(explanation: Explanation, k: int) -> tuple[float, float, float, float] | None:
    """The left, top, width and height of a detection."""
    if not explanation.boxes:
        return None
    left, top, right, bottom = explanation.boxes[k]
    return round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)


def arrays_of(explanation: Explanation) -> dict[str, ArrayLike]:
    """What was explanation, for a raw file; with several layers, each layer's name stands in its arrays' names."""
    arrays: dict[str, ArrayLike] = {
        "classes": np.array(explanation.classes),
        "names": np.array([name or "" for name in explanation.names]),
        "scores": np.array(explanation.scores, np.float32),
    }
    if explanation.boxes:
        arrays["boxes"] = np.array(explanation.boxes, np.float32)
    for at in explanation.layers:
        where = f"@{at.layer}" if len(explanation.layers) > 1 else ""
        arrays[f"maps{where}"] = at.maps
        arrays[f"mass{where}"] = np.array(at.mass, np.float32)
        if at.relevance is not None:
            arrays[f"relevance{where}"] = at.relevance
    return arrays


@dataclass(frozen=True)
class ImageStages:
    """What all images of a run share. Can be sent to other processes.

    Attributes:
        geometry: what the network sees of an image.
        options: how results are rendered.
        output: the output directory as the records name it.
        common: a record with the fields that all images share.
        thumbnails: also make thumbnails for the gallery page.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit.
    """

    geometry: Geometry
    options: RenderOptions
    output: Path
    common: Record
    thumbnails: bool
    max_pixels: int | None = None

    unit: ClassVar[str] = "image"

    def accepts(self, source: Source) -> bool:
        """Whether to work on a file."""
        return is_image(source)

    def load(self, source: Source, call: Call) -> NetworkInput | Record:
        """What the network gets of an image; or the record of a file that failed or is not an image.

        Args:
            source: the file.
            call: calls a function, perhaps in another process; see ``Workers.call``.
        """
        start = perf_counter()
        try:
            loaded = self._loaded(source, call)
        except Exception as error:
            return self._failed(source, error, perf_counter() - start)
        return replace(self._record(source), status="not an image") if loaded is None else loaded

    def render(
        self,
        source: Source,
        loaded: NetworkInput,
        explanation: Explanation | ImageError,
        call: Call,
        write: Callable[[Mapping[Path, bytes]], None],
    ) -> Record:
        """Render one image's results, write them and return its record.

        Args:
            source, loaded, explanation: the image and its maps, or why it has none.
            call: as for ``load``.
            write: writes files, given their contents by path below the output directory.

        Raises:
            OutputError: they cannot be written.
        """
        start = perf_counter()
        if isinstance(explanation, ImageError):
            return self._failed(source, explanation, loaded.seconds)
        if not explanation.classes:  # no class scores above the threshold
            return replace(
                self._record(source),
                status="done",
                seconds=round(loaded.seconds + explanation.seconds, 4),
                input_bytes=loaded.stamp.bytes,
                input_mtime_ns=loaded.stamp.mtime_ns,
            )
        relpath, names = output_relpath(source.path), None
        if self.thumbnails:
            names = ThumbnailNames(str(relpath), loaded.stamp, self.common.configuration, self.common.method)
        try:
            rendered = self._rendered(source, loaded, explanation, names, call)
        except Exception as error:
            return self._failed(source, error, loaded.seconds + explanation.seconds + perf_counter() - start)
        maps = [(explanation.classes[k], explanation.names[k], at.layer) for k, at in explanation.each_map()]
        results = self.options.names.of(relpath, maps)
        writing = perf_counter()
        write(dict(zip(results, rendered.files, strict=True)) | rendered.thumbnails)
        spent = {
            **rendered.spent,
            "decode": loaded.seconds + rendered.spent["decode"],
            "network": explanation.seconds,
            "waiting": loaded.waited,
            "write": perf_counter() - writing,
        }
        return replace(
            self._record(source),
            status="done",
            output=tuple(str(self.output / result) for result in results),
            output_bytes=tuple(map(len, rendered.files)),
            output_sha256=tuple(sha256(content).hexdigest() for content in rendered.files),
            classes=tuple(
                ClassRecord(
                    explanation.classes[k],
                    explanation.names[k],
                    explanation.scores[k],
                    at.mass[k],
                    blank,
                    None if at.lost_mass is None else {site: lost[k] for site, lost in at.lost_mass.items()},
                    at.layer,
                    float(at.maps[k].max()) * at.maps[k].size,
                    None if found is None else asdict(found),
                    at_border,
                    _box(explanation, k),
                )
                for (k, at), blank, found, at_border in zip(
                    explanation.each_map(), rendered.blank, rendered.regions, rendered.at_border, strict=True
                )
            ),
            seconds=round(loaded.seconds + explanation.seconds + perf_counter() - start, 4),
            input_bytes=loaded.stamp.bytes,
            input_mtime_ns=loaded.stamp.mtime_ns,
            image_size=None if self.options.regions is None else rendered.size,
            label=explanation.label,
            predicted=explanation.predicted,
            clips=None if loaded.clips is None else asdict(loaded.clips),
            spent=spent,
        )

    def _loaded(self, source: Source, call: Call) -> NetworkInput | None:
        found: NetworkInput | None = call(load_image, source, self.geometry, self.max_pixels)
        return found

    def _rendered(
        self, source: Source, loaded: NetworkInput, explanation: Explanation, names: ThumbnailNames | None, call: Call
    ) -> RenderedFiles:
        arguments = source, loaded.stamp, self.geometry, self.options, explanation, names, self.max_pixels
        rendered: RenderedFiles = call(render, *arguments)
        return rendered

    def _record(self, source: Source) -> Record:
        return replace(self.common, input=source.name, place=str(output_relpath(source.path)))

    def _failed(self, source: Source, error: Exception, seconds: float) -> Record:
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        reason = str(error) if isinstance(error, EbcliError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            reason = "not enough memory to decode and draw it"
        return replace(self._record(source), status="failed", error=" ".join(reason.split()), seconds=round(seconds, 4))
