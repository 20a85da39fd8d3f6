"""Videos for networks for images: one question about all frames, explained part by part while others are drawn.

At any time, only a few parts are in memory. Finished ones are kept beside the results until all are, so that the same
command resumes a killed run. Imports no torch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Box, Map
from ebcli.drawing.film import scale_end
from ebcli.drawing.painters import rounded_up
from ebcli.drawing.style import ATLAS, DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.errors import ImageError, OutputError, import_optional, plural
from ebcli.files.media.film import Film, FilmPart
from ebcli.files.naming import MOVING_FORMATS, STDOUT, MapName, sha256
from ebcli.files.paths import file_digest
from ebcli.files.private import private_directory
from ebcli.files.records import ClassRecord, Record
from ebcli.files.sources import Source
from ebcli.files.unfinished import unfinished_work
from ebcli.files.video_encoding import MP4, WEBP
from ebcli.imports import installed_version
from ebcli.methods.table import PICTURE
from ebcli.models.keywords import INPUT
from ebcli.run import film_files, film_rendering
from ebcli.run.film_files import FinishedPart
from ebcli.run.film_parts import DrawnPart, FilmJob, Reel, Row, ScoresOverTime, Track, load_part, read_film
from ebcli.run.plan import RunPlan
from ebcli.run.reading import NetworkInput, sample_inputs
from ebcli.run.rendering import file_name

if TYPE_CHECKING:
    from ebcli.run.explainer import Explainer
    from ebcli.run.pipeline import Run

_AHEAD = 2  # parts that are read, and others that are drawn, while the network is busy
_POINTS = 24  # of the curve of scores, for each part
_MEANS = ("score", "value", "strength", "times_noise", "mass")


class _Part(NamedTuple):
    """A part that is explained: what was read of it, the maps of each frame unless they are drawn, and for averages."""

    number: int
    read: FilmPart
    maps: list[Sequence[Map]] | None
    reel: Reel


def explain_film(run: Run, explainer: Explainer, source: Source, film: Film) -> Record:
    """Explain a video, and write its results and its record.

    Raises:
        CancelledError: the run was stopped; finished parts are kept.
        ImageError: the plan is for photos only, or nothing of the video can be read, or written in its format.
        OutputError: the results cannot be written.
    """
    _check(run.plan)
    suffix = _suffix(run.plan, source)
    import_optional("av")  # chunks are encoded by it, whatever they become
    stamp, content = source.open_content()
    sample = sample_inputs(film)
    explainer, predicted = explainer.for_film(sample, source.label)
    explanations = explainer.explain(sample, run.stopping)
    sample_maps = [[] if isinstance(item, ImageError) else [*item.maps] for item in explanations]
    tracks = _tracks(run.plan, explainer, sample_maps)
    styles = [_style(run, track, sample_maps) for track in tracks]
    has_objects = bool(tracks) and tracks[0].class_index is None
    names = run.options.names.of_film(suffix, has_objects)
    facts = {**run.options.provenance, "input": file_name(source)}
    record = run.record(
        source,
        "done",
        input_bytes=stamp.bytes,
        input_mtime_ns=stamp.mtime_ns,
        label=source.label,
        predicted=predicted,
    )
    thumbnail_names = None
    if run.plan.output.report:
        thumbnail_names = ThumbnailNames(record.place, stamp, record.configuration, record.method)
    key = (
        *(source.name, stamp, record.configuration, film.size, film.rate),
        *(tracks, styles, suffix, names, thumbnail_names),
    )
    packages = [installed_version(name) for name in ("eb-saliency", "pillow")]
    workplace = run.sink.workplace
    if workplace is None:
        work = private_directory()
    else:
        work = unfinished_work(workplace, source.name, sha256(repr((key, packages)).encode()))
    with work as folder:
        local = source
        if not isinstance(content, Path):  # each process reads it from there
            local = Source(folder / f"source{source.path.suffix}")
            local.path.write_bytes(content.getvalue())
        job = FilmJob(
            source=local,
            stamp=local.open_content()[0],
            film=replace(film, sample=[]),
            reader=run.reader,
            options=replace(run.options, names=names),
            tracks=tracks,
            styles=styles,
            suffix=suffix,
            facts=facts,
            folder=folder,
            thumbnail_names=thumbnail_names,
        )
        return _FilmRun(run, explainer, source, record, job).finished_record()


def _check(plan: RunPlan) -> None:
    """Raise ImageError if the plan has options that are for photos only."""
    maps = plan.maps
    options = {
        "--style mask": plan.style.name == "mask",
        "--style atlas": plan.style.name == ATLAS,
        "--candidates": maps.candidates is not None,
        "--sufficiency": maps.sufficiency,
        "--compare-with": bool(maps.beside),
        "--annotations": plan.output.annotations is not None,
        "ask": plan.words is not None,
    }
    for name, is_chosen in options.items():
        if is_chosen:
            raise ImageError(f"it is a video, but {name} is for photos: explain it in a run of its own")


def _tracks(plan: RunPlan, explainer: Explainer, sample: Sequence[Sequence[Map]]) -> list[Track]:
    """What each result video shows: a class that is asked about in all frames, or all objects of each frame."""
    maps = [map_ for frame_maps in sample for map_ in frame_maps]
    if explainer.has_classes:
        tracks = (Track(map_.layer, map_.method, map_.subject.index, map_.subject.name) for map_ in maps)
        return [*dict.fromkeys(tracks)]
    places = product(explainer.network.layers, plan.maps.method_entries)
    pairs = ((INPUT if method.place == PICTURE else layer, method.name) for layer, method in places)
    return [Track(*pair) for pair in dict.fromkeys(pairs)]


def _style(run: Run, track: Track, sample: Sequence[Sequence[Map]]) -> DrawingStyle:
    """The style of a result video: its color scale ends at the largest value in a sample of its frames."""
    style = run.options.style
    if style.vmax is not None:
        return style
    maps = [map_ for frame_maps in sample for map_ in track.maps(frame_maps)]
    end = rounded_up(scale_end(maps, style))
    return replace(style, vmax=max(end, 1.01 * style.vmin), percentile=None)


def _suffix(plan: RunPlan, source: Source) -> str:
    """The format of result videos: that of the only file, else the one that is asked for, else that of the source.

    Raises:
        OutputError: the only file cannot hold a video.
    """
    output = plan.output
    suffix = MOVING_FORMATS.get(source.path.suffix.lower(), MP4)
    if output.directory == STDOUT:
        suffix = MOVING_FORMATS.get(f".{output.format}", "")
        if not suffix:
            raise OutputError(
                "for a video on stdout, add --format webp, or name a file with -o, such as out.mp4"
            )
    elif output.is_file:
        suffix = MOVING_FORMATS.get(output.directory.suffix.lower(), "")
        if not suffix:
            raise OutputError(
                f"'{output.directory}' cannot hold a video: choose .mp4, .webm, .gif, .webp or .apng"
            )
    elif output.format == WEBP:
        suffix = WEBP
    return suffix


class _FilmRun:
    """The run of a video.

    Args:
        run: the run that it belongs to.
        explainer: the network, asked about the same classes in all frames.
        source: the video.
        record: what is known of its record so far.
        job: how its parts are drawn.
    """

    def __init__(self, run: Run, explainer: Explainer, source: Source, record: Record, job: FilmJob) -> None:
        self._run = run
        self._explainer = explainer
        self._source = source
        self._record = record
        self._job = job
        self._near = deque[Reel]()  # whose maps may be averaged with those of a part that is not drawn yet
        self._past: list[ScoresOverTime] = []
        self._drawing = deque[Future[DrawnPart]]()
        self._finished: list[FinishedPart] = []
        self._totals = _Totals()
        self._best = (-1.0, 0)  # the evidence of the poster frame, and its part
        self._place: Box | None = None
        self._num_frames = 0
        self._num_broken = 0
        self._num_unexplained = 0
        self._problem = ""
        self._start = perf_counter()

    def finished_record(self) -> Record:
        """Explain and draw all parts, and write the results and the record."""
        self._draw_parts()
        if self._run.stopping.is_set():
            raise CancelledError
        if not self._finished:
            raise ImageError(self._problem or "it has no frames")
        classes = self._totals.records
        files: dict[Path, bytes | Path] = {}
        if classes:
            files = self._finish()
        paths = {path: content for path, content in files.items() if isinstance(content, Path)}
        record = replace(
            self._record,
            film={
                "frames": self._num_frames,
                "broken": self._num_broken,
                "start": self._finished[0].start,
                "end": self._finished[-1].end,
            },
            output=tuple(map(str, paths)),
            output_bytes=tuple(path.stat().st_size for path in paths.values()),
            output_sha256=tuple(map(file_digest, paths.values())),
            classes=tuple(classes),
            problem=self._words_of_problem(),
            seconds=round(perf_counter() - self._start, 4),
        )
        return self._run.store(files, record)

    def _words_of_problem(self) -> str:
        """What could not be explained, in words."""
        problems = [self._problem]
        if self._num_broken:
            frames = plural(self._num_broken, "broken frame")
            problems.append(f"{frames} left out: the frame before stays")
        if self._num_unexplained:
            problems.append(
                f"{plural(self._num_unexplained, 'frame')} without a map, as scores are not finite"
            )
        return "; ".join(filter(None, problems))

    def _call(self, function: Any, *arguments: Any) -> Future[Any]:
        """Call a function in a worker process."""
        return self._run.workers.submit(self._run.workers.call, function, self._job, *arguments)

    def _draw_parts(self) -> None:
        """Draw each part as soon as all frames are explained that its maps are averaged with."""
        smooth = self._job.part.smooth
        waiting = deque[_Part]()
        for part in self._parts():
            self._near.append(part.reel)
            if part.maps is not None:
                waiting.append(part)
            while waiting and waiting[0].reel.times[-1] + smooth < part.reel.times[-1]:
                self._draw(waiting.popleft())
        while waiting:
            self._draw(waiting.popleft())
        for future in self._drawing:
            self._add(future.result())
        self._finished.sort()  # those of an earlier run came before others

    def _draw(self, part: _Part) -> None:
        smooth = self._job.part.smooth
        first, last = part.reel.times[[0, -1]]
        while self._near[0].times[-1] < first - smooth:
            self._past.append(self._near.popleft().scores_over_time(_POINTS))
        context = Reel.joined([reel for reel in self._near if reel.times[0] <= last + smooth])
        arguments = part.number, part.read, part.maps, part.reel, context, [*self._past]
        self._drawing.append(self._call(film_rendering.draw_part, *arguments))
        while len(self._drawing) > _AHEAD:
            self._add(self._drawing.popleft().result())

    def _add(self, part: DrawnPart) -> None:
        """Count a part that is drawn."""
        self._finished.append(FinishedPart(part.number, part.read.times[0], part.read.end))
        self._place = self._place or part.reel.place
        for row in part.rows:
            self._totals.add(row)
            evidence = film_rendering.evidence_of(row)
            if evidence > self._best[0]:
                self._best = evidence, part.number
        if self._explainer.has_classes:
            self._num_unexplained += sum(not records for _, records in part.rows)

    def _parts(self) -> Iterator[_Part]:
        """The parts in order, as they are explained; those that an earlier run finished without their maps."""
        reading: dict[int, Future[FilmPart]] = {}
        is_last = False
        for number in count():
            part = None
            if not (is_last or self._run.stopping.is_set()):
                part = self._finished_part(number) or self._explained_part(number, reading)
            if part is None:
                break
            self._num_broken += part.read.num_broken
            self._problem = part.read.problem
            is_last = part.read.is_last or bool(part.read.problem)
            if part.read.times:
                yield part
        for future in reading.values():
            future.cancel()

    def _finished_part(self, number: int) -> _Part | None:
        """A part that an earlier run finished."""
        drawn = load_part(self._job, number)
        if drawn is None:
            return None
        if not self._num_frames and self._run.on_resume is not None:
            self._run.on_resume(self._source.name)
        self._add(drawn)
        self._count(len(drawn.read.times))
        return _Part(number, drawn.read, None, drawn.reel)

    def _explained_part(self, number: int, reading: dict[int, Future[FilmPart]]) -> _Part | None:
        """A part that is explained while the next ones are read; None after a stop."""
        for following in range(number, number + 1 + _AHEAD):
            is_needed = following == number or not self._job.table(following).exists()
            if is_needed and following not in reading:
                reading[following] = self._call(read_film, following)
        read = reading.pop(number).result()
        maps = self._explain(read.pixels)
        if maps is None:
            return None
        reel = Reel.of_frames(read.times, maps, self._job.tracks, self._job.styles)
        return _Part(number, read._replace(pixels=[]), maps, reel)

    def _explain(self, pixels: Sequence[AnyArray]) -> list[Sequence[Map]] | None:
        """The maps of frames, batch by batch; None after a stop."""
        size = self._explainer.batch_size
        maps: list[Sequence[Map]] = []
        for first in range(0, len(pixels), size):
            if self._run.stopping.is_set():
                return None
            batch = [
                NetworkInput(pixels=image, size=self._job.film.size, path=self._source.name)
                for image in pixels[first : first + size]
            ]
            for result in self._explainer.explain(batch, self._run.stopping):
                maps.append([] if isinstance(result, ImageError) else result.maps)
            self._count(len(batch))
        return maps

    def _count(self, frames: int) -> None:
        """Count frames that are explained."""
        self._num_frames += frames
        film = self._job.film
        total = None
        if film.duration:
            total = round(film.duration * film.rate / self._job.part.every)
        if self._run.on_frames is not None:
            self._run.on_frames(self._source.name, self._num_frames, total)

    def _finish(self) -> dict[Path, bytes | Path]:
        """The results by their paths below the output directory."""
        job = self._job
        raw = None
        if job.options.raw_provenance is not None:
            raw = job.options.raw_provenance | self._raw_fields()
        left_out = self._call(film_files.finish, self._finished, raw).result()
        if left_out:
            self._problem = "; ".join(filter(None, (self._problem, left_out)))
        maps = [
            MapName(track.class_index or 0, track.name, track.layer, track.method) for track in job.tracks
        ]
        kinds = [*map(str, range(job.videos)), "csv"]
        if raw is not None:
            kinds.append("npz")
        paths = job.options.names.relpaths(self._source.relpath, maps)
        files: dict[Path, bytes | Path] = dict(zip(paths, map(job.result, kinds), strict=True))
        if job.thumbnail_names is not None:
            files |= film_files.read_thumbnails(job, self._best[1])
        return files

    def _raw_fields(self) -> dict[str, Any]:
        """What the file of arrays has beside maps; see ``ebcli.run.rendering.arrays_of``."""
        tracks = [*{track[2:]: track for track in self._job.tracks}.values()]
        means: dict[int | None, float] = {record.index: record.number for record in self._totals.records}
        return {
            "image_size": self._job.film.size,
            "crop": self._place or (0, 0, *self._job.film.size),
            "classes": [-1 if track.class_index is None else track.class_index for track in tracks],
            "names": [track.name or "" for track in tracks],
            "scores": np.array([means.get(track.class_index, np.nan) for track in tracks], np.float32),
        }


class _Sums:
    """What is known of a class in all frames.

    Args:
        record: its record in the first one.
    """

    def __init__(self, record: ClassRecord) -> None:
        self._best = record
        self._count = 0
        self._sums: Counter[str] = Counter()
        self._evidence: Counter[str | None] = Counter()

    def add(self, record: ClassRecord) -> None:
        """Count a frame."""
        self._count += 1
        self._evidence[record.evidence] += 1
        for name in _MEANS:
            self._sums[name] += getattr(record, name) or 0
        if (record.peak or 0) > (self._best.peak or 0):
            self._best = record

    @property
    def record(self) -> ClassRecord:
        """The record of the class: that of the frame with the strongest cell, with means over all frames."""
        best = self._best
        means: dict[str, Any] = {
            name: self._sums[name] / self._count for name in _MEANS if getattr(best, name) is not None
        }
        (evidence, _), *_ = self._evidence.most_common(1)
        return replace(best, box=None, evidence=evidence, **means)


class _Totals:
    """The records of the classes of a video."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], _Sums] = {}

    def add(self, row: Row) -> None:
        """Count a frame."""
        for record in row[1]:
            key = record.index, record.layer, record.method
            self._sums.setdefault(key, _Sums(record)).add(record)

    @property
    def records(self) -> tuple[ClassRecord, ...]:
        """The record of each class, layer and method."""
        return tuple(sums.record for sums in self._sums.values())
