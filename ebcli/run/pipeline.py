"""Images on their way: looked at ahead of the network, drawn and written behind it, few of them at any time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from ebcli.drawing.explanation import Explanation
from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.explainer import Explainer
from ebcli.run.stages import ImageStages, NetworkInput
from ebcli.run.workers import Workers

_BATCHES_AHEAD = 2  # looked at while the network is busy
_BATCHES_BEHIND = 2  # drawn and written meanwhile


@dataclass(frozen=True)
class Pipeline:
    """What all images of a run share.

    Attributes:
        network: the network.
        folder: where the results go.
        workers: who decodes and draws.
        steps: how.
        fail_fast: stop at the first failure.
        stopping: set it, from anywhere, and what has begun is finished and nothing else begins.
    """

    network: Explainer
    folder: OutputFolder
    workers: Workers
    steps: ImageStages
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
        ahead: deque[list[tuple[Source, Future[NetworkInput | Record]]]] = deque()
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

    def _computed(self, looked: Sequence[tuple[Source, NetworkInput | Record]]) -> Iterator[Future[Record]]:
        pixels = [seen.pixels for _, seen in looked if isinstance(seen, NetworkInput)]
        explained = iter(self.network.explain(pixels) if pixels else ())
        for source, seen in looked:
            if isinstance(seen, NetworkInput):
                yield self.workers.submit(self._finish, source, seen, next(explained))
            else:
                known: Future[Record] = Future()
                known.set_result(seen)
                yield known

    def _look(self, source: Source) -> NetworkInput | Record:
        seen = self.steps.look(source, self.workers.call)
        if isinstance(seen, Record) and seen.status == "failed":
            self.folder.record(seen)
        return seen

    def _finish(self, source: Source, seen: NetworkInput, explained: Explanation) -> Record:
        """Draw and write one image's results, then its record."""
        record = self.steps.finish(source, seen, explained, self.workers.call, self.folder.write)
        self.folder.record(record)
        return record
