"""Images on their way: loaded ahead of the network, rendered behind it, only a few batches in flight."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ebcli.errors import ImageError, OutputError
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.files.sources import Source
from ebcli.nouns.explanation import Explanation
from ebcli.run.reading import NetworkInput
from ebcli.run.stages import ImageStages
from ebcli.workers import Workers

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer

_BATCHES_AHEAD = 2  # loaded while the network is busy
_BATCHES_BEHIND = 2  # rendered and written meanwhile
_BATCHES_APART = 8  # an image waits no longer for others of its size, as records come in order
_LARGE = 1 << 23  # bytes; larger images do not wait at all
_Numbered = tuple[int, Source, NetworkInput]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What all images of a run share.

    Attributes:
        explainer: the network; None if none of the files can be read.
        sink: where results go.
        workers: the processes that load and render images.
        stages: how they do it.
        fail_fast: stop at the first failure.
        stopping: set it, from any thread, to finish the images in progress and start no others.
        recorded: counts the records written, by status.
    """

    explainer: Explainer | None
    sink: Sink
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
        waiting: deque[tuple[int, Future[Record]]] = deque()
        ready, following = dict[int, Record](), 0
        limit = _BATCHES_BEHIND * self._batch_size
        try:
            for number, future in self._started(sources):
                waiting.append((number, future))
                while waiting and (len(waiting) > limit or waiting[0][1].done()):
                    first, record = waiting.popleft()
                    ready[first] = self._taken(record)
                while following in ready:
                    yield ready.pop(following)
                    following += 1
        except Exception as caught:
            error = caught
        if isinstance(error, OutputError) or self.stopping.is_set():  # otherwise what was explained is still drawn
            for _, future in waiting:
                future.cancel()
        for number, future in waiting:
            if not future.cancelled():
                try:
                    ready[number] = future.result()
                except Exception as caught:
                    error = error or caught
        yield from (record for _, record in sorted(ready.items()))
        if error is not None:
            raise error

    def _taken(self, future: Future[Record]) -> Record:
        record = future.result()
        if self.fail_fast and record.status == "failed":
            self.stopping.set()
        return record

    def _started(self, sources: Iterable[Source]) -> Iterator[tuple[int, Future[Record]]]:
        """The number and the future of each image, as soon as the network is done with it.

        An image waits for others of its size, so that the network gets full batches.
        """
        batch_size = self._batch_size
        groups: dict[tuple[object, ...], list[_Numbered]] = {}
        for number, source, item in self._read(sources):
            if isinstance(item, Record):
                known: Future[Record] = Future()
                known.set_result(item)
                yield number, known
                continue
            group = groups.setdefault(item.form, [])
            group.append((number, source, item))
            oldest = number - _BATCHES_APART * batch_size
            for form, others in [*groups.items()]:
                is_large = item.pixels.nbytes > _LARGE and others is group
                if len(others) == batch_size or is_large or others[0][0] <= oldest:
                    yield from self._explained(groups.pop(form))
        for group in groups.values():
            yield from self._explained(group)

    def _read(self, sources: Iterable[Source]) -> Iterator[tuple[int, Source, NetworkInput | Record]]:
        """Each image and its number, in order."""
        rest = iter(enumerate(sources))
        batch_size = self._batch_size
        ahead: deque[list[tuple[int, Source, Future[NetworkInput | Record]]]] = deque()
        while True:
            if not self.stopping.is_set():
                while len(ahead) <= _BATCHES_AHEAD and (batch := list(islice(rest, batch_size))):
                    ahead.append([(n, source, self.workers.submit(self._load, source)) for n, source in batch])
            if not ahead:
                return
            for number, source, future in ahead.popleft():
                # failures are recorded already, so they must be reported
                if not (self.stopping.is_set() and future.cancel()):
                    yield number, source, future.result()

    def _explained(self, images: Sequence[_Numbered]) -> Iterator[tuple[int, Future[Record]]]:
        if self.stopping.is_set() or self.explainer is None:  # these have appeared since, and are left to the next run
            return
        try:
            explanations = self.explainer.explain([item for *_, item in images], self.stopping)
        except CancelledError:
            return
        for (number, source, item), explanation in zip(images, explanations, strict=True):
            yield number, self.workers.submit(self._render, source, item, explanation)

    @property
    def _batch_size(self) -> int:
        return self.explainer.batch_size if self.explainer else 1

    def _load(self, source: Source) -> NetworkInput | Record:
        loaded = self.stages.load(source, self.workers.call)
        if isinstance(loaded, Record) and loaded.status == "failed":
            return self._written({}, loaded)
        return loaded

    def _render(self, source: Source, loaded: NetworkInput, explanation: Explanation | ImageError) -> Record:
        """Render and write one image's results, then its record."""
        record, files = self.stages.render(source, loaded, explanation, self.workers.call)
        return self._written(files, record)

    def _written(self, files: Mapping[Path, bytes], record: Record) -> Record:
        written = self.sink.write(files, record)
        self.recorded[record.status] += 1
        return written
