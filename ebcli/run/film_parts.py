"""Parts of a film: what its result videos show, and what is kept of a part until all are finished. Imports no torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from ebcli.datatypes.arrays import DoubleArray, FloatArray
from ebcli.datatypes.explanation import Box, Map
from ebcli.drawing.film import merge
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.errors import ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.encoding import encode_arrays
from ebcli.files.images import File
from ebcli.files.media.film import Film, FilmPart, read_part
from ebcli.files.naming import OBJECTS
from ebcli.files.paths import FileState
from ebcli.files.records import ClassRecord, finite
from ebcli.files.sources import Source
from ebcli.run.reading import Reader

if TYPE_CHECKING:
    from ebcli.run.rendering import RenderOptions

ScoresOverTime = tuple[DoubleArray, DoubleArray]  # times (n,) and the scores of each track (tracks, n)


class Track(NamedTuple):
    """What one result video shows: the maps of a class, or those of all objects in one picture.

    Attributes:
        layer, method: those of the maps.
        class_index: the class; None for all objects.
        name: the name of the class.
    """

    layer: str
    method: str
    class_index: int | None = None
    name: str | None = None

    def facts(self, style: DrawingStyle) -> dict[str, str]:
        """What its video says: the layer, the class and the color scale."""
        facts = {"layer": self.layer, "scale": f"{style.vmin:g} to {style.vmax:g}"}
        if self.class_index is not None:
            facts["class"] = f"{self.class_index} {self.name or ''}".rstrip()
        return facts

    def maps(self, maps: Sequence[Map]) -> list[Map]:
        """Those of a frame's maps that it shows."""
        return [
            map_
            for map_ in maps
            if self.class_index in (None, map_.subject.index) and (map_.layer, map_.method) == self[:2]
        ]


class Reel(NamedTuple):
    """The maps of some frames, which averages are made of.

    Attributes:
        times: of the frames, in seconds, (n,).
        values: for each track, the values that are drawn, (n, h, w).
        scores: for each track, the score of its class or of its best object, NaN for none, (tracks, n).
        place: the rectangle of the image that maps cover; None if there are no maps.
    """

    times: DoubleArray
    values: list[FloatArray]
    scores: DoubleArray
    place: Box | None

    @classmethod
    def of_frames(
        cls,
        times: Sequence[float],
        maps: Sequence[Sequence[Map]],
        tracks: Sequence[Track],
        styles: Sequence[DrawingStyle],
    ) -> Reel:
        """That of the maps of frames, as they are drawn."""
        values = []
        scores = np.full((len(tracks), len(times)), np.nan)
        for number, (track, style) in enumerate(zip(tracks, styles, strict=True)):
            rows = [track.maps(frame_maps) for frame_maps in maps]
            shape = next((row[0].values.shape for row in rows if row), (1, 1))
            array = np.zeros((len(times), *shape), np.float32)
            for i, row in enumerate(rows):
                if row:
                    array[i] = merge(row, style.signed)
                    scores[number, i] = max(map_.subject.score for map_ in row)
            values.append(array)
        place = next((map_.placement for frame_maps in maps for map_ in frame_maps), None)
        return cls(np.array(times), values, scores, place)

    def scores_over_time(self, points: int) -> ScoresOverTime:
        """The times and scores of at most so many frames."""
        step = max(1, len(self.times) // points)
        return self.times[::step], self.scores[:, ::step]

    @classmethod
    def joined(cls, reels: Sequence[Reel]) -> Reel:
        """Several, one after another."""
        times = np.concatenate([reel.times for reel in reels])
        columns = zip(*(reel.values for reel in reels), strict=True)
        values = [np.concatenate(_of_one_shape(arrays)) for arrays in columns]
        scores = np.concatenate([reel.scores for reel in reels], axis=1)
        place = next((reel.place for reel in reels if reel.place is not None), None)
        return cls(times, values, scores, place)


def _of_one_shape(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    """Arrays (n, h, w), of which those without any map, (n, 1, 1), get the shape of the others."""
    shape = max(array.shape[1:] for array in arrays)
    return [np.broadcast_to(array, (len(array), *shape)) for array in arrays]


@dataclass(frozen=True, kw_only=True)
class FilmJob:
    """What is drawn of a film, and how.

    Attributes:
        source: the video.
        stamp: its state.
        film: what is known of it.
        reader: how it is read.
        options: how it is drawn, and the names of results.
        tracks: what each result video shows.
        styles: the style of each, with the video's color scale.
        suffix: the format of result videos.
        facts: what they say about their making.
        folder: where the chunks are.
        thumbnail_names: those of the video's thumbnails; None for none.
    """

    source: Source
    stamp: FileState
    film: Film
    reader: Reader
    options: RenderOptions
    tracks: Sequence[Track]
    styles: Sequence[DrawingStyle]
    suffix: str
    facts: dict[str, str]
    folder: Path
    thumbnail_names: ThumbnailNames | None = None

    def open(self) -> File:
        """The content of the video, which this process decodes as the run says from here on.

        Raises:
            ImageError: it changed during the run, or cannot be read any more.
        """
        self.reader.set_limits()
        stamp, file = self.source.open_content()
        if stamp != self.stamp:
            raise ImageError("the file changed during the run")
        return file

    @property
    def part(self) -> ClipOptions:
        """Which part of the video is explained."""
        return self.reader.part

    @property
    def videos(self) -> int:
        """The number of result videos."""
        return 1 if self.options.names.figure else len(self.tracks)

    @property
    def is_panel(self) -> bool:
        """Whether all tracks are side by side in one video."""
        return self.options.names.figure not in ("", OBJECTS) or self.videos < len(self.tracks)

    def chunk(self, part: int, video: int) -> Path:
        """The file of a part of a result video."""
        return self.folder / f"{part:06}.{video}.mp4"

    def table(self, part: int) -> Path:
        """The file with the maps and rows of a part, which is written when its chunks are."""
        return self.folder / f"{part:06}.npz"

    def thumbnails(self, part: int) -> Path:
        """The file with the thumbnails of the frame of a part that has the most evidence."""
        return self.folder / f"{part:06}.zip"

    def result(self, name: str) -> Path:
        """A result that is made of all parts."""
        return self.folder / f"result.{name}"


Row = tuple[float, list[ClassRecord]]  # the time of a frame, and its maps


class DrawnPart(NamedTuple):
    """A part of a film that is finished.

    Attributes:
        number: its number.
        read: what was read of the file, without pixels.
        reel: its maps.
        rows: what is recorded of each frame.
    """

    number: int
    read: FilmPart
    reel: Reel
    rows: list[Row]


def read_film(job: FilmJob, number: int) -> FilmPart:
    """What the network gets of a part."""
    return read_part(job.open(), job.film, job.reader.spec, job.part, number)


def save_part(job: FilmJob, drawn: DrawnPart, maps: Sequence[Sequence[Map]]) -> None:
    """Keep what a resumed run and the final files need of a part."""
    reel = drawn.reel
    arrays: dict[str, Any] = {f"values{i}": values for i, values in enumerate(reel.values)}
    for i, track in enumerate(job.tracks):
        arrays[f"raw{i}"] = _raw([track.maps(frame_maps) for frame_maps in maps])
    rows = [(time, [finite(asdict(record)) for record in records]) for time, records in drawn.rows]
    arrays |= {
        "scores": reel.scores,
        "place": reel.place or (),
        "times": drawn.read.times,
        "end": drawn.read.end,
        "rest": json.dumps([*drawn.read[3:], rows]),
    }
    with complete_file(job.table(drawn.number)) as file:
        file.write(encode_arrays(arrays))


def _raw(rows: Sequence[Sequence[Map]]) -> FloatArray:
    """The maps of frames as they are, (n, h, w): of several objects, the greatest value in each cell."""
    shape = next((row[0].values.shape for row in rows if row), (1, 1))
    return np.stack(
        [np.max([map_.values for map_ in row], 0) if row else np.zeros(shape, np.float32) for row in rows]
    )


def load_part(job: FilmJob, number: int) -> DrawnPart | None:
    """A part that an earlier run finished; None if there is none."""
    if not all(job.chunk(number, video).exists() for video in range(job.videos)):
        return None
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(job.table(number)) as arrays:
        num_broken, is_last, problem, rows = json.loads(str(arrays["rest"]))
        times = arrays["times"].tolist()
        part = FilmPart(times, float(arrays["end"]), [], num_broken, is_last, problem)
        place = Box(*arrays["place"].tolist()) if len(arrays["place"]) else None
        values = [arrays[f"values{i}"] for i in range(len(job.tracks))]
        reel = Reel(np.array(times), values, arrays["scores"], place)
        records = [(time, [ClassRecord.parse(values) for values in row]) for time, row in rows]
        return DrawnPart(number, part, reel, records)
    return None


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which is at its path when it is complete."""
    temporary = path.with_suffix(".part")
    with temporary.open("w+b") as file:
        yield file
    temporary.replace(path)
