"""Files that are made of all parts of a film: result videos, a table of its frames, and arrays. Imports no torch."""

import csv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from ebcli.errors import ImageError
from ebcli.files.encoding import SOFTWARE
from ebcli.files.naming import array_marks, as_cell
from ebcli.files.records import ClassRecord
from ebcli.files.video_encoding import Chunk, Sound, join
from ebcli.run.film_parts import FilmJob, load_part

_OF_MAP = "index name layer method score value strength evidence".split()
_BOX = "left top width height".split()


class FinishedPart(NamedTuple):
    """A finished part: its number, and when it starts and ends in the video, in seconds."""

    number: int
    start: float
    end: float


def finish(job: FilmJob, finished: Sequence[FinishedPart], raw: dict[str, Any] | None) -> str:
    """Write the results: the videos, the table of frames and, given what else is in it, the file of arrays.

    Returns:
        What was left out, in words; empty if nothing was.
    """
    start = finished[0].start
    sound = None
    if job.film.has_sound and job.source.is_local:
        sound = Sound(job.source.path, start, finished[-1].end)
    problem = ""
    for video in range(job.videos):
        chunks = [
            Chunk(job.chunk(number, video), first - start, end - start) for number, first, end in finished
        ]
        facts = job.facts | job.tracks[video].facts(job.styles[video])
        problem = join(chunks, job.result(str(video)), job.suffix, facts, sound) or problem
    numbers = [span.number for span in finished]
    _write_table(job, numbers)
    if raw is not None:
        _write_arrays(job, numbers, raw)
    return problem


def _write_table(job: FilmJob, numbers: Sequence[int]) -> None:
    """A table with a row for each frame and map, and one for a frame without any."""
    with job.result("csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["time", *_OF_MAP, *_BOX])
        table.writeheader()
        for number in numbers:
            part = load_part(job, number)
            if part is None:
                raise ImageError("its finished parts were removed during the run")
            for time, records in part.rows:
                table.writerows(_cells(time, records))


def _cells(time: float, records: Sequence[ClassRecord]) -> Iterator[dict[str, Any]]:
    row = {"time": round(time, 6)}
    if not records:
        yield row
    for record in records:
        cells = {name: getattr(record, name) for name in _OF_MAP} | {"name": as_cell(record.name or "")}
        if record.box is not None:
            cells |= zip(_BOX, record.box.xywh, strict=True)
        yield row | cells


def _write_arrays(job: FilmJob, numbers: Sequence[int], raw: dict[str, Any]) -> None:
    """The file of arrays: ``maps`` (classes, frames, h, w) of each layer and method, one part at a time in memory."""
    columns: dict[str, list[Any]] = {"times": [], "scores": []}
    for number in numbers:
        with np.load(job.table(number)) as table:
            for name, values in columns.items():
                values.append(table[name])
    times = np.concatenate(columns["times"])
    scores = np.concatenate(columns["scores"], 1).astype(np.float32)
    arrays = {"software": SOFTWARE, **raw, "times": times, "frame_scores": scores}
    with zipfile.ZipFile(job.result("npz"), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                npy.write_array(member, np.asarray(array), allow_pickle=False)
        for key, mark in array_marks((track.layer, track.method) for track in job.tracks).items():
            tracks = [i for i, track in enumerate(job.tracks) if (track.layer, track.method) == key]
            with archive.open(f"maps{mark}.npy", "w", force_zip64=True) as member:
                _write_maps(job, member, numbers, tracks)


def _write_maps(job: FilmJob, file: IO[bytes], numbers: Sequence[int], tracks: Sequence[int]) -> None:
    """The array of the maps of some tracks."""
    shape = (0, 1, 1)
    for number in numbers:
        with np.load(job.table(number)) as table:
            count, *sides = table[f"raw{tracks[0]}"].shape
        shape = (shape[0] + count, *max(shape[1:], tuple(sides)))
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(tracks), *shape)}
    npy.write_array_header_1_0(file, header)
    for track in tracks:
        for number in numbers:
            with np.load(job.table(number)) as table:
                maps = table[f"raw{track}"].astype("<f4")
            file.write(np.broadcast_to(maps, (len(maps), *shape[1:])).tobytes())


def read_thumbnails(job: FilmJob, number: int) -> dict[Path, bytes]:
    """The thumbnails of a part, by their paths below the output directory."""
    with zipfile.ZipFile(job.thumbnails(number)) as archive:
        return {Path(name): archive.read(name) for name in archive.namelist()}
