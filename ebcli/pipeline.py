"""Images on their way: looked at ahead of the network, drawn and written behind it, few of them at any time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

from ebcli.errors import EbcliError, OutputError
from ebcli.explained import Explained
from ebcli.folder import OutputFolder
from ebcli.images import Geometry
from ebcli.inputs import Source
from ebcli.network import Network
from ebcli.output import mirrored, panel_place, picture_place, raw_place
from ebcli.records import ClassRecord, Record
from ebcli.report.thumbnails import ThumbnailNames
from ebcli.tasks import Drawing, Seen, draw, look
from ebcli.workers import Workers

_BATCHES_AHEAD = 2  # looked at while the network is busy
_BATCHES_BEHIND = 2  # drawn and written meanwhile


@dataclass(frozen=True)
class Pipeline:
    """What all images of a run share.

    Attributes:
        network: the network.
        folder: where the results go.
        workers: who decodes and draws.
        geometry, drawing: how.
        shown: the output directory as its files are named in the records.
        common: a record with the fields that are the same for all images.
        report: also make the thumbnails of the page.
        fail_fast: stop at the first failure.
        stopping: set it, from anywhere, and what has begun is finished and nothing else begins.
    """

    network: Network
    folder: OutputFolder
    workers: Workers
    geometry: Geometry
    drawing: Drawing
    shown: Path
    common: Record
    report: bool
    fail_fast: bool
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, sources: Iterable[Source]) -> Iterator[Record]:
        """What becomes of each file, in order; of those that were not begun before a stop, nothing.

        Raises:
            OutputError: a result cannot be written; what could be has been handed out before.
            EbcliError: the network cannot go on, likewise.
        """
        error: Exception | None = None
        waiting: deque[Future[Record]] = deque()
        limit = _BATCHES_BEHIND * self.network.batch_size
        try:
            for future in self._begun(sources):
                waiting.append(future)
                while waiting and (len(waiting) > limit or waiting[0].done()):
                    yield self._taken(waiting.popleft())
        except Exception as caught:
            error = caught
        if error is not None or self.stopping.is_set():
            for future in waiting:
                future.cancel()
        for future in waiting:
            if not future.cancelled():
                try:
                    yield future.result()
                except Exception as caught:
                    error = error or caught
        if error is not None:
            raise error

    def _taken(self, future: Future[Record]) -> Record:
        record = future.result()
        if self.fail_fast and record.status == "failed":
            self.stopping.set()
        return record

    def _begun(self, sources: Iterable[Source]) -> Iterator[Future[Record]]:
        """The futures of all images, in order, each handed out as soon as the network is done with it."""
        rest = iter(sources)
        batch_size = self.network.batch_size
        ahead: deque[list[tuple[Source, Future[Seen | Record]]]] = deque()
        while True:
            if not self.stopping.is_set():
                while len(ahead) <= _BATCHES_AHEAD and (batch := list(islice(rest, batch_size))):
                    ahead.append([(source, self.workers.submit(self._look, source)) for source in batch])
            if not ahead:
                return
            looked = ahead.popleft()
            if self.stopping.is_set():  # those that have failed by now are in the records, so they are told
                looked = [(source, future) for source, future in looked if not future.cancel()]
            found = [(source, future.result()) for source, future in looked]
            if self.stopping.is_set():
                found = [(source, seen) for source, seen in found if isinstance(seen, Record)]
            yield from self._computed(found)

    def _computed(self, looked: Sequence[tuple[Source, Seen | Record]]) -> Iterator[Future[Record]]:
        pixels = [seen.pixels for _, seen in looked if isinstance(seen, Seen)]
        explained = iter(self.network.explain(pixels) if pixels else ())
        for source, seen in looked:
            if isinstance(seen, Seen):
                yield self.workers.submit(self._finish, source, seen, next(explained))
            else:
                known: Future[Record] = Future()
                known.set_result(seen)
                yield known

    def _look(self, source: Source) -> Seen | Record:
        start = perf_counter()
        try:
            seen = self.workers.call(look, source, self.geometry)
        except Exception as error:
            return self._failed(source, error, perf_counter() - start)
        if seen is None:
            return replace(self._record(source), status="not an image")
        return seen

    def _finish(self, source: Source, seen: Seen, explained: Explained) -> Record:
        """Draw and write one image's results, then its record."""
        start = perf_counter()
        place, names = mirrored(source.path), None
        if self.report:
            names = ThumbnailNames(str(place), seen.stamp, self.common.configuration, self.common.method)
        try:
            drawn = self.workers.call(draw, source.path, seen.stamp, self.geometry, self.drawing, explained, names)
        except Exception as error:
            return self._failed(source, error, seen.seconds + explained.seconds + perf_counter() - start)
        results = self._results(place, explained)
        self.folder.write(dict(zip(results, drawn.files, strict=True)) | drawn.thumbnails)
        record = replace(
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
        self.folder.record(record)
        return record

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
        return replace(self.common, input=str(source.path), place=str(mirrored(source.path)))

    def _failed(self, source: Source, error: Exception, seconds: float) -> Record:
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        reason = str(error) if isinstance(error, EbcliError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            reason = "there is not enough memory to decode and draw it"
        record = replace(
            self._record(source), status="failed", error=" ".join(reason.split()), seconds=round(seconds, 4)
        )
        self.folder.record(record)
        return record
