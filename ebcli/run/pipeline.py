"""Images on their way: loaded ahead of the network, rendered behind it, only a few batches in flight."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ebcli.drawing.explanation import Explanation
from ebcli.errors import ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.reading import NetworkInput
from ebcli.run.stages import ImageStages
from ebcli.run.workers import Workers

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer

_BATCHES_AHEAD = 2  # loaded while the network is busy
_BATCHES_BEHIND = 2  # rendered and written meanwhile
_NO_FILES: Mapping[Path, bytes] = {}


@dataclass(frozen=True)
class Pipeline:
    """What all images of a run share.

    Attributes:
        explainer: the network; None if none of the files can be read.
        files: writes results and records.
        workers: the processes that load and render images.
        stages: how they do it.
        fail_fast: stop at the first failure.
        stopping: set it, from any thread, to finish the images in progress and start no others.
        recorded: counts the records written, by status.
    """

    explainer: Explainer | None
    files: OutputFolder
    workers: Workers
    stages: ImageStages
    fail_fast: bool
    stopping: threading.Event = field(default_factory=threading.Event)
    recorded: Counter[str] = field(default_factory=Counter)

    def run(self, sources: Iterable[Source]) -> Iterator[Record]:
        """The record of each file, in order; none for files that were not started before a stop.

        Raises:
            OutputError: a result cannot be written; finished records are yielded first.
            EbcliError: the network cannot continue; likewise.
        """
        error: Exception | None = None
        waiting: deque[Future[Record]] = deque()
        limit = _BATCHES_BEHIND * (self.explainer.batch_size if self.explainer else 1)
        try:
            for future in self._started(sources):
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
                    yield _awaited(future)
                except Exception as caught:
                    error = error or caught
        if error is not None:
            raise error

    def _taken(self, future: Future[Record]) -> Record:
        record = _awaited(future)
        if self.fail_fast and record.status == "failed":
            self.stopping.set()
        return record

    def _started(self, sources: Iterable[Source]) -> Iterator[Future[Record]]:
        """The futures of all images, in order, each as soon as the network is done with it."""
        rest = iter(sources)
        batch_size = self.explainer.batch_size if self.explainer else 1
        ahead: deque[list[tuple[Source, Future[NetworkInput | Record]]]] = deque()
        while True:
            if not self.stopping.is_set():
                while len(ahead) <= _BATCHES_AHEAD and (batch := list(islice(rest, batch_size))):
                    ahead.append([(source, self.workers.submit(self._load, source)) for source in batch])
            if not ahead:
                return
            loading = ahead.popleft()
            if self.stopping.is_set():  # failures are recorded already, so they must be reported
                loading = [(source, future) for source, future in loading if not future.cancel()]
            loaded = [(source, _loaded(future)) for source, future in loading]
            if self.stopping.is_set():
                loaded = [(source, item) for source, item in loaded if isinstance(item, Record)]
            yield from self._explained(loaded)

    def _explained(self, loaded: Sequence[tuple[Source, NetworkInput | Record]]) -> Iterator[Future[Record]]:
        images = [item for _, item in loaded if isinstance(item, NetworkInput)]
        explanations = iter(self.explainer.explain(images) if self.explainer else ())
        for source, item in loaded:
            if isinstance(item, Record):
                known: Future[Record] = Future()
                known.set_result(item)
                yield known
            elif self.explainer is not None:  # else the file has appeared since, and is left to the next run
                yield self.workers.submit(self._render, source, item, next(explanations))

    def _load(self, source: Source) -> NetworkInput | Record:
        loaded = self.stages.load(source, self.workers.call)
        if isinstance(loaded, Record) and loaded.status == "failed":
            self._record(loaded)
        return loaded

    def _render(self, source: Source, loaded: NetworkInput, explanation: Explanation | ImageError) -> Record:
        """Render and write one image's results, then its record."""
        record, files = self.stages.render(source, loaded, explanation, self.workers.call)
        start = perf_counter()
        self._record(record, files)
        return replace(record, spent={**record.spent, "write": perf_counter() - start})

    def _record(self, record: Record, files: Mapping[Path, bytes] = _NO_FILES) -> None:
        self.files.write(files, record)
        self.recorded[record.status] += 1


def _loaded(future: Future[NetworkInput | Record]) -> NetworkInput | Record:
    """Wait for an image; it then says for how long."""
    start = perf_counter()
    item = future.result()
    return replace(item, waited=perf_counter() - start) if isinstance(item, NetworkInput) else item


def _awaited(future: Future[Record]) -> Record:
    """Wait for a record; this counts as well."""
    start = perf_counter()
    record = future.result()
    waited = record.spent.get("waiting", 0.0) + perf_counter() - start
    return replace(record, spent={**record.spent, "waiting": waited})
