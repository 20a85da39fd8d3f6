"""One image's stages before and after the network, in any process and on any machine. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.explanation import Explanation
from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.errors import EbcliError, ImageError, OutputError
from ebcli.files.clips import Clips
from ebcli.files.images import Geometry, decode, has_image_suffix, is_recognized, limit_pixels, network_view
from ebcli.files.naming import output_relpath
from ebcli.files.records import ClassRecord, Record
from ebcli.files.remote import url_of
from ebcli.files.sources import Source
from ebcli.files.stamp import Stamp
from ebcli.files.video import has_video_suffix
from ebcli.run.rendering import RenderedFiles, RenderOptions, record_box, render

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
    ) -> tuple[Record, dict[Path, bytes]]:
        """Render one image's results; returns its record, and the contents of its files by path below the directory.

        Args:
            source, loaded, explanation: the image and its maps, or why it has none.
            call: as for ``load``.
        """
        start = perf_counter()
        if isinstance(explanation, ImageError):
            return self._failed(source, explanation, loaded.seconds), {}
        if not explanation.classes:  # no class scores above the threshold
            empty = replace(
                self._record(source),
                status="done",
                seconds=round(loaded.seconds + explanation.seconds, 4),
                input_bytes=loaded.stamp.bytes,
                input_mtime_ns=loaded.stamp.mtime_ns,
            )
            return empty, {}
        relpath, names = output_relpath(source.path), None
        if self.thumbnails:
            names = ThumbnailNames(str(relpath), loaded.stamp, self.common.configuration, self.common.method)
        try:
            rendered = self._rendered(source, loaded, explanation, names, call)
        except Exception as error:
            return self._failed(source, error, loaded.seconds + explanation.seconds + perf_counter() - start), {}
        maps = [(explanation.classes[k], explanation.names[k], at.layer) for k, at in explanation.each_map()]
        results = self.options.names.of(relpath, maps)
        spent = {
            **rendered.spent,
            "decode": loaded.seconds + rendered.spent["decode"],
            "network": explanation.seconds,
            "waiting": loaded.waited,
        }
        record = replace(
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
                    record_box(explanation, k),
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
        return record, dict(zip(results, rendered.files, strict=True)) | rendered.thumbnails

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
