"""What becomes of one image before and behind the network, on whichever machine: the same for all engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ebcli.errors import EbcliError, OutputError
from ebcli.explained import Explained
from ebcli.images import Geometry
from ebcli.inputs import Source
from ebcli.output import mirrored, panel_place, picture_place, raw_place
from ebcli.records import ClassRecord, Record
from ebcli.report.thumbnails import ThumbnailNames
from ebcli.tasks import Drawing, Seen, draw, look

Call = Callable[..., Any]


@dataclass(frozen=True)
class Steps:
    """What all images of a run share. Needs no torch, and can be sent to other processes.

    Attributes:
        geometry: what the network sees of an image.
        drawing: how results look.
        shown: the output directory as its files are named in the records.
        common: a record with the fields that are the same for all images.
        report: also make the thumbnails of the page.
    """

    geometry: Geometry
    drawing: Drawing
    shown: Path
    common: Record
    report: bool

    def look(self, source: Source, call: Call) -> Seen | Record:
        """What the network gets of an image; the record of one that failed, or that is none.

        Args:
            source: the file.
            call: calls a function with arguments, in another process perhaps; as ``Workers.call``.
        """
        start = perf_counter()
        try:
            seen: Seen | None = call(look, source, self.geometry)
        except Exception as error:
            return self._failed(source, error, perf_counter() - start)
        if seen is None:
            return replace(self._record(source), status="not an image")
        return seen

    def finish(
        self,
        source: Source,
        seen: Seen,
        explained: Explained,
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
        place, names = mirrored(source.path), None
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

    def _results(self, place: Path, explained: Explained) -> list[Path]:
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
        return replace(self.common, input=source.name, place=str(mirrored(source.path)))

    def _failed(self, source: Source, error: Exception, seconds: float) -> Record:
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        reason = str(error) if isinstance(error, EbcliError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            reason = "there is not enough memory to decode and draw it"
        return replace(self._record(source), status="failed", error=" ".join(reason.split()), seconds=round(seconds, 4))
