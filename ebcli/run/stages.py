"""One file's stages before and after the network, in any process and on any machine. Imports no torch."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.errors import EbcliError, ImageError, OutputError
from ebcli.files.frame_ranges import Slices
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.nouns.explanation import Explanation
from ebcli.run.reading import NetworkInput, Reader
from ebcli.run.rendering import RenderedFiles, RenderOptions, render

Call = Callable[..., Any]


@dataclass(frozen=True)
class ImageStages:
    """What all images of a run share. Can be sent to other processes.

    Attributes:
        reader: how files are read.
        options: how results are rendered.
        common: a record with the fields that all images share.
        thumbnails: also make thumbnails for the gallery page.
    """

    reader: Reader
    options: RenderOptions
    common: Record
    thumbnails: bool

    def load(self, source: Source, call: Call) -> NetworkInput | Record:
        """What the network gets of an image; or the record of a file that failed or is not an image.

        Args:
            source: the file.
            call: calls a function, perhaps in another process; see ``Workers.call``.
        """
        start = perf_counter()
        try:
            loaded: NetworkInput | None = call(self.reader.load, source)
        except Exception as error:
            return self._failed(source, error, perf_counter() - start)
        return self.record(source, "not an image") if loaded is None else loaded

    def render(
        self, source: Source, loaded: NetworkInput, explanation: Explanation | ImageError, call: Call
    ) -> tuple[Record, dict[Path, bytes]]:
        """Render one image's results; returns its record, and the contents of its files by path below the directory.

        Args:
            source, loaded, explanation: the image and its maps, or why it has none.
            call: as for ``load``.
        """
        start = perf_counter()
        if isinstance(explanation, ImageError):
            return self._failed(source, explanation, loaded.seconds), {}
        before = loaded.seconds + explanation.seconds
        stamp = {"input_bytes": loaded.stamp.bytes, "input_mtime_ns": loaded.stamp.mtime_ns}
        if not explanation.maps:  # no class scores above the threshold
            return self.record(source, "done", seconds=round(before, 4), **stamp), {}
        relpath, names = source.place, None
        if self.thumbnails:
            names = ThumbnailNames(str(relpath), loaded.stamp, self.common.configuration, self.common.method)
        try:
            seen = replace(loaded, pixels=np.empty(0, np.uint8))  # rendering needs none
            rendered: RenderedFiles = call(render, source, seen, self.reader, self.options, explanation, names)
        except Exception as error:
            return self._failed(source, error, before + perf_counter() - start), {}
        maps = [(map_.subject.index, map_.subject.name, map_.layer) for map_ in explanation.maps]
        results = self.options.names.of(relpath, maps, rendered.placed)
        record = self.record(
            source,
            "done",
            output=tuple(map(str, results)),
            output_bytes=tuple(map(len, rendered.files)),
            output_sha256=tuple(sha256(content).hexdigest() for content in rendered.files),
            classes=rendered.classes,
            seconds=round(before + perf_counter() - start, 4),
            **stamp,
            image_size=None if self.options.regions is None else loaded.size,
            label=explanation.label,
            predicted=explanation.predicted,
            clips=None if loaded.clips is None or isinstance(loaded.clips, Slices) else asdict(loaded.clips),
            tiles=explanation.tiles,
            seen=round(explanation.maps[0].placement.share_of(loaded.size), 4),
            pages=loaded.pages,
            question=explanation.question,
            answer=explanation.answer,
        )
        return record, dict(zip(results, rendered.files, strict=True)) | rendered.thumbnails

    def record(self, source: Source, status: str, **known: Any) -> Record:
        """The record of a file, with these fields."""
        place = str(source.place)
        return replace(self.common, input=source.name, place=place, status=status, **known)  # type: ignore[arg-type]

    def _failed(self, source: Source, error: Exception, seconds: float) -> Record:
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        reason = str(error) if isinstance(error, EbcliError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            reason = "not enough memory to decode and draw it"
        return self.record(source, "failed", error=" ".join(reason.split()), seconds=round(seconds, 4))
