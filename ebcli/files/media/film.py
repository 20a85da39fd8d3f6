"""Videos for networks for images, which see each frame: a survey of a video, and its frames part by part.

Parts are spans of time. So each can be read alone, in any process: for the network, again to draw, and by a run that
resumes a killed one.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import NamedTuple

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Size
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.clips import ClipOptions, Clips
from ebcli.files.images import File
from ebcli.files.media.medium import DisplayFrames, Pixels, register
from ebcli.files.media.video import VIDEO_SUFFIXES, Frame, Frames, frames, read_header

SAMPLE = 16  # frames, by which the class and the color scale of a video are chosen
PART = 96  # explained frames
_USUAL_RATE = 10.0  # of animations, whose frames can each have their own delay
_SHORTEST = 1e-4  # seconds between frames; result videos have no two at the same time
_ADVICE = "eb-saliency VIDEO -o out.mp4 explains its frames"


@dataclass(frozen=True, kw_only=True)
class Film:
    """A video of which a network for images explains each frame.

    Attributes:
        size: the width and height of its frames.
        rate: frames per second, on average.
        duration: how many seconds of it are explained; None if the file does not say.
        sample: what the network gets of some frames, spread over that time.
        has_sound: whether it has sound.
    """

    size: Size
    rate: float
    duration: float | None
    sample: list[AnyArray]
    has_sound: bool = False


class FilmPart(NamedTuple):
    """A part of a film.

    Attributes:
        times: when each frame is shown, in seconds from the start of the video.
        end: until when the last one is shown.
        pixels: what the network gets of each.
        num_broken: how many broken frames are left out.
        is_last: whether nothing follows.
        problem: why the rest cannot be read; empty if it can be.
    """

    times: list[float]
    end: float
    pixels: list[AnyArray]
    num_broken: int = 0
    is_last: bool = False
    problem: str = ""


class FilmFormat(Frames):
    """A video or an animation, as networks for images get it, and a directory of frames if the user says so."""

    axes = "HW"
    network = ""
    suffixes = VIDEO_SUFFIXES

    def recognizes(self, path: Path) -> bool:
        return False  # a directory of images is one input only if the user says so, and animations are images first

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> Pixels:
        raise ImageError(f"it is a video, not an image: {_ADVICE}")

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        raise ImageError(f"it is a video, not an image: {_ADVICE}")
        yield


FILM = FilmFormat()
register(FILM)


def survey(file: File, spec: InputSpec, part: ClipOptions) -> Film:
    """Look at some frames of a video, spread over the part that is explained.

    Raises:
        ImageError: no frame can be read.
    """
    header = read_header(file, part.frames or _USUAL_RATE)
    duration = None
    if header.duration:
        duration = min(max(0.0, header.duration - part.start), part.duration or inf)
    if duration is None or duration * header.rate <= SAMPLE * PART:
        sample = _spread(file, header.rate, part)
    else:
        sample = _seek(file, header.rate, part.start, duration)
    if not sample:
        raise ImageError(f"it has no frames after {part.start:g} s: lower --start")
    size, pixels = _read_sample(sample, spec)
    return Film(size=size, rate=header.rate, duration=duration, sample=pixels, has_sound=header.has_sound)


def _seek(file: File, rate: float, start: float, duration: float) -> list[Frame]:
    """Some frames at equal distances in time."""
    times = [start + duration * (i + 0.5) / SAMPLE for i in range(SAMPLE)]
    return [frame for time in times for frame in islice(_from(file, rate, time, inf), 1)]


def _read_sample(sample: Sequence[Frame], spec: InputSpec) -> tuple[Size, list[AnyArray]]:
    """The size of frames and what the network gets of each, without files of a directory that are broken.

    Raises:
        ImageError: all are broken.
    """
    sizes: list[Size] = []
    pixels: list[AnyArray] = []
    problems: list[ImageError] = []
    for frame in sample:
        try:
            picture = frame.load()
        except ImageError as error:
            problems.append(error)
            continue
        sizes.append(picture.size)
        pixels.append(spec.read(picture.resize(sizes[0])))
    if not pixels:
        raise problems[0]
    return sizes[0], pixels


def _spread(file: File, rate: float, part: ClipOptions) -> list[Frame]:
    """Some frames spread over a part of a video whose length need not be known; of a broken one, over what can be read.

    They are equally many frames apart: whenever there are twice as many as needed, every second one is dropped.
    """
    selected: list[Frame] = []
    step = 1
    end = part.start + (part.duration or inf)
    try:
        for number, frame in enumerate(_from(file, rate, part.start, end)):
            if number % step:
                continue
            selected.append(frame)
            if len(selected) == 2 * SAMPLE:
                del selected[1::2]
                step *= 2
    except ImageError:
        if not selected:
            raise
    return selected


def _from(file: File, rate: float, start: float, end: float) -> Iterator[Frame]:
    """The frames that begin in a span of time, or half a frame earlier; of those at the same time, one."""
    margin = 0.5 / rate
    last_time = -inf
    with closing(frames(file, rate, start)) as source:  # type: ignore[type-var]
        for frame in source:
            if frame.time >= end - margin:
                return
            if frame.time >= start - margin and frame.time - last_time > _SHORTEST:
                last_time = frame.time
                yield frame


def part_frames(file: File, film: Film, part: ClipOptions, number: int) -> Iterator[Frame | None]:
    """The frames of a part of a film that are explained, and None if others follow.

    Args:
        file: the file.
        film: what is known of it.
        part: what is explained of it.
        number: the number of the part, from 0.

    Raises:
        ImageError: the file is truncated or broken; the frames before are yielded first.
    """
    length = PART * part.every / film.rate
    first = part.start + number * length
    last = first + length
    end = part.start + (part.duration or inf)
    for count, frame in enumerate(_from(file, film.rate, first, inf)):
        if frame.time >= min(last, end) - 0.5 / film.rate:
            if last < end:
                yield None
            return
        if count % part.every == 0:
            yield frame


def read_part(file: File, film: Film, spec: InputSpec, part: ClipOptions, number: int) -> FilmPart:
    """What the network gets of a part of a film; for the arguments, see ``part_frames``."""
    times: list[float] = []
    pixels: list[AnyArray] = []
    end = 0.0
    limit = part.start + (film.duration or part.duration or inf)
    is_last = True
    problem = ""
    num_broken = 0
    try:
        for frame in part_frames(file, film, part, number):
            if frame is None:
                is_last = False
                break
            num_broken += frame.num_broken
            try:
                pixels.append(spec.read(frame.load().resize(film.size)))
            except ImageError:  # a file of a directory
                num_broken += 1
                continue
            times.append(frame.time)
            end = frame.end
            if part.every > 1:
                end = max(end, min(frame.time + part.every / film.rate, limit))
    except ImageError as error:
        problem = str(error)
    return FilmPart(times, end, pixels, num_broken, is_last, problem)
