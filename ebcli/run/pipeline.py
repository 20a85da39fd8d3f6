"""Images on their way: loaded ahead of the network, rendered behind it, only a few batches in flight.

Imports no torch.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ebcli.datatypes.explanation import Explanation
from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.errors import EbcliError, ImageError, OutputError, in_words, reason
from ebcli.files.clips import Slices
from ebcli.files.images import decoding_memory
from ebcli.files.media.film import Film
from ebcli.files.naming import sha256
from ebcli.files.records import Record
from ebcli.files.sink import Files, Sink
from ebcli.files.sources import Source
from ebcli.models.loaded import configuration_hash
from ebcli.run.plan import PREFIX, RunPlan, as_settings
from ebcli.run.reading import NetworkInput, Reader, has_films
from ebcli.run.rendering import RenderOptions, render
from ebcli.workers import Workers, enough_for

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer

_BATCHES_AHEAD = 2  # loaded while the network is busy
_BATCHES_BEHIND = 2  # rendered and written meanwhile
_BATCHES_APART = 8  # an image waits no longer for others of its size, as records come in order
_LARGE = 1 << 23  # bytes; larger images do not wait at all
_Loading = tuple[int, Source, Future[NetworkInput | Film | Record]]
_Rendering = tuple[int, Future[Any]]  # of a record


class _NumberedInput(NamedTuple):
    """An image that waits for the network, and its number in the list of files."""

    number: int
    source: Source
    item: NetworkInput


@dataclass(kw_only=True)
class Run:
    """A run that is ready to start.

    Attributes:
        plan: what is asked.
        sink: where results go.
        explainer: the network; None if nothing is to be done with it.
        reader: how files are read.
        options: how results are rendered.
        common: a record with the fields that all images share.
        sources: the files to work on; some may turn out not to be images.
        configurations: of the records of all files, see ``configuration_of``.
        skipped: the inputs whose results are up to date.
        task: what the network does.
        device: the device, or those of a cluster, in words.
        stopping: set it, from any thread or a signal handler, to finish the images in progress and start no others.
        counts: the number of records written so far, by status; after an interrupt more than were yielded.
        workers: the processes that load and render images, while there are results.
        on_frames: gets the name of a video, and how many of its frames are explained, and there are, if that is known.
        on_resume: gets the name of a video of which an earlier run finished some parts.
        orientations: of the volumes so far, such as ``RAS``, each with the name of its first file.
    """

    plan: RunPlan
    sink: Sink
    explainer: Explainer | None
    reader: Reader
    options: RenderOptions
    common: Record
    sources: Sequence[Source]
    skipped: Sequence[Path]
    configurations: Set[str]
    task: str
    device: str
    stopping: Event = field(default_factory=Event)
    counts: Counter[str] = field(default_factory=Counter)
    workers: Workers = field(init=False)
    on_frames: Callable[[str, int, int | None], None] | None = None
    on_resume: Callable[[str], None] | None = None
    orientations: dict[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Generator[Record]:
        """Works on the files while it is iterated, and yields the record of each, in order.

        Raises:
            OutputError: a result cannot be written; finished records are yielded first.
            EbcliError: the network cannot continue; likewise.
        """
        if self.plan.execution.dry_run:
            yield from map(self._planned, self.sources)
        elif self.sources:
            count = len(self.sources) if self.explainer else 0
            if has_films(self.sources):  # which keep all processes busy
                count = sys.maxsize
            # those of the command
            settings = as_settings(self.plan) if self.plan.words is None else None
            with self.sink, workers_for(self.plan, count) as self.workers:
                self.sink.start(settings)
                yield from self.process(self.sources)

    def _planned(self, source: Source) -> Record:
        """What a run would do with a file, as far as that is known without opening it."""
        if source.problem is not None:
            return self.record(source, "failed", error=source.problem)
        try:
            if source.is_local:
                source.stamp()
        except OSError as error:
            return self.record(source, "failed", error=reason(error))
        return self.record(source, "planned" if self.reader.accepts(source) else "not an image")

    def record(self, source: Source, status: str, **fields: Any) -> Record:
        """The record of a file, with these fields."""
        fields |= {"input": source.name, "place": str(source.relpath), "status": status}
        if source.query is not None:
            fields |= {**source.query._asdict(), "answer_given": source.query.answer is not None} | fields
        return replace(self.common, configuration=configuration_of(source, self.common), **fields)

    def process(self, sources: Iterable[Source]) -> Iterator[Record]:
        """The record of each file, in order; none for files that were not started before a stop. See ``results``."""
        error: Exception | None = None
        waiting = deque[_Rendering]()
        ready: dict[int, Record] = {}
        following = 0
        limit = _BATCHES_BEHIND * self._batch_size
        try:
            for number, future in self._submit(sources):
                waiting.append((number, future))
                while waiting and (len(waiting) > limit or waiting[0][1].done()):
                    first, done = waiting.popleft()
                    ready[first] = done.result()
                    if self.plan.execution.fail_fast and ready[first].status == "failed":
                        self.stopping.set()
                while following in ready:
                    yield ready.pop(following)
                    following += 1
        except Exception as caught:
            error = caught
        # otherwise what was explained is still drawn
        if isinstance(error, OutputError) or self.stopping.is_set():
            for _, future in waiting:
                future.cancel()
        for number, future in waiting:
            if not future.cancelled():
                try:
                    ready[number] = future.result()
                except Exception as caught:
                    error = error or caught
        yield from (ready[number] for number in sorted(ready))
        if error is not None:
            raise error

    def _submit(self, sources: Iterable[Source]) -> Iterator[_Rendering]:
        """The number and the future of each image, as soon as the network is done with it.

        An image waits for others of its size, so that the network gets full batches.
        """
        batch_size = self._batch_size
        groups: dict[tuple[object, ...], list[_NumberedInput]] = {}
        for number, source, loading in self._read(sources):
            item = loading.result()
            if isinstance(item, Record):
                yield number, loading
                continue
            if isinstance(item, Film):
                yield from self._explain_film(number, source, item)
                continue
            self._check_orientation(source, item)
            groups.setdefault(item.form, []).append(_NumberedInput(number, source, item))
            oldest = number - _BATCHES_APART * batch_size
            for form, group in [*groups.items()]:
                is_large = group[-1].number == number and item.pixels.nbytes > _LARGE
                if len(group) == batch_size or is_large or group[0].number <= oldest:
                    yield from self._explain(groups.pop(form))
        for group in groups.values():
            yield from self._explain(group)

    def _check_orientation(self, source: Source, item: NetworkInput) -> None:
        """Warn of the first volume whose axes lead to other directions than those of the volumes before."""
        slices = item.clips
        if not isinstance(slices, Slices) or not slices.codes or len(self.orientations) > 1:
            return
        self.orientations.setdefault(slices.codes, source.name)
        if len(self.orientations) > 1:
            files = " and ".join(f"'{name}' is {codes}" for codes, name in self.orientations.items())
            problem = f"{files}, but the network gets voxels as they are stored"
            warnings.warn(f"{problem}: set {PREFIX}ORIENTATION to that of its training data", stacklevel=2)

    def _read(self, sources: Iterable[Source]) -> Iterator[_Loading]:
        """Each image that is loaded, in order."""
        remaining = iter(enumerate(sources))
        ahead = deque[list[_Loading]]()
        while True:
            while not self.stopping.is_set() and len(ahead) <= _BATCHES_AHEAD:
                batch = [*islice(remaining, self._batch_size)]
                if not batch:
                    break
                ahead.append([(n, source, self.workers.submit(self._load, source)) for n, source in batch])
            if not ahead:
                return
            for loading in ahead.popleft():
                # failures are recorded already, so they must be reported
                if not (self.stopping.is_set() and loading[-1].cancel()):
                    yield loading

    def _explain(self, images: Sequence[_NumberedInput]) -> Iterator[_Rendering]:
        # without a network, these have appeared since, and are left to the next run
        if self.stopping.is_set() or self.explainer is None:
            return
        try:
            explanations = self.explainer.explain([image.item for image in images], self.stopping)
        except CancelledError:
            return
        for (number, source, item), explanation in zip(images, explanations, strict=True):
            yield number, self.workers.submit(self._render, source, item, explanation)

    def _explain_film(self, number: int, source: Source, film: Film) -> Iterator[_Rendering]:
        """The record of a video whose frames are explained as images; none after a stop."""
        if self.stopping.is_set() or self.explainer is None:
            return
        from ebcli.run.films import explain_film

        start = perf_counter()
        done: Future[Record] = Future()
        try:
            done.set_result(explain_film(self, self.explainer, source, film))
        except CancelledError:
            return
        except Exception as error:
            done.set_result(self.failed(source, error, perf_counter() - start))
        yield number, done

    @property
    def _batch_size(self) -> int:
        return self.explainer.batch_size if self.explainer else 1

    def _load(self, source: Source) -> NetworkInput | Film | Record:
        """What the network gets of an image or a video; or the record of a file that failed, or is not an image."""
        start = perf_counter()
        try:
            network_input: NetworkInput | Film | None = self.workers.call(self.reader.open, source)
        except Exception as error:
            return self.failed(source, error, perf_counter() - start)
        return network_input or self.record(source, "not an image")

    def _render(
        self, source: Source, network_input: NetworkInput, explanation: Explanation | ImageError
    ) -> Record:
        """Render and write one image's results, then its record."""
        if isinstance(explanation, ImageError):
            return self.failed(source, explanation, network_input.seconds)
        start = perf_counter() - network_input.seconds - explanation.seconds
        stamp = network_input.stamp
        common = self.record(
            source,
            "done",
            input_bytes=stamp.bytes,
            input_mtime_ns=stamp.mtime_ns,
            label=explanation.label,
            predicted=explanation.predicted,
            other_inputs=explanation.other_inputs,
        )
        if not explanation.maps:  # no class scores above the threshold, or the prediction is right
            if explanation.answer is not None:
                common = replace(common, status="not said", answer=explanation.answer)
            return self.store({}, replace(common, seconds=round(perf_counter() - start, 4)))
        names = None
        if self.plan.output.report or (source.query is not None and len(self.sources) > 1):
            names = ThumbnailNames(common.place, stamp, common.configuration, common.method)
        # rendering needs none
        without_pixels = replace(network_input, pixels=np.empty(0, np.uint8), windows=None)
        arguments = source, without_pixels, self.reader, self.options, explanation, names
        try:
            rendered = self.workers.call(render, *arguments)
        except Exception as error:
            return self.failed(source, error, perf_counter() - start)
        files = rendered.files
        if self.options.regions is not None:
            common = replace(common, image_size=network_input.size)
        if network_input.video_clips is not None:
            common = replace(common, clips=asdict(network_input.video_clips))
        record = replace(
            common,
            output=tuple(map(str, files)),
            output_bytes=tuple(map(len, files.values())),
            output_sha256=tuple(map(sha256, files.values())),
            classes=rendered.classes,
            seconds=round(perf_counter() - start, 4),
            tiles=explanation.tiles,
            seen=round(explanation.maps[0].placement.share_of(network_input.size), 4),
            pages=network_input.pages,
            notes=network_input.notes,
            answer=explanation.answer,
        )
        return self.store(files | rendered.thumbnails, record)

    def failed(self, source: Source, error: Exception, seconds: float) -> Record:
        """The record of a file that failed. Raises errors that are those of the run."""
        if isinstance(error, (OutputError, CancelledError)):
            raise error
        words = in_words(error)
        if isinstance(error, EbcliError):
            words = " ".join(str(error).split())
        elif isinstance(error, MemoryError):
            words = "not enough memory to decode and draw it"
        return self.store({}, self.record(source, "failed", error=words, seconds=round(seconds, 4)))

    def store(self, files: Files, record: Record) -> Record:
        """Write the results of a file, then its record."""
        stored_record = self.sink.write(files, record)
        self.counts[record.status] += 1
        return stored_record


def configuration_of(source: Source, common: Record) -> str:
    """A hash of all settings that the results of a file depend on, with what is asked about it.

    Args:
        source: the file.
        common: a record with the settings that all files share.
    """
    if source.query is None:
        return common.configuration
    return configuration_hash({"run": common.configuration, **source.query._asdict()})


def workers_for(plan: RunPlan, files: int) -> Workers:
    """The processes that load and render so many files."""
    execution = plan.execution
    count = execution.workers
    if not files:
        count = 0
    elif count is None:
        count = enough_for(files)
    return Workers(count, execution.image_timeout, decoding_memory(plan.inputs.max_pixels))
