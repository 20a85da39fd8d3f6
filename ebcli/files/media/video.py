"""Frames of videos: files that FFmpeg reads, animations that Pillow reads, and directories of images."""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from functools import partial
from itertools import chain, islice, pairwise
from math import inf, prod
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, ImageError, import_optional
from ebcli.files import images
from ebcli.files.clips import ClipOptions, Clips, clip_starts
from ebcli.files.images import File
from ebcli.files.media.medium import DisplayFrame, DisplayFrames, InputFormat, Pixels, register

_ANIMATION_SUFFIXES = {".gif", ".png", ".apng", ".webp"}
_ANIMATIONS = {"GIF", "PNG", "WEBP"}
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
_DELAY = 0.1  # seconds; browsers show a frame of an animation that long if its delay is 0 to 10 ms
_LARGEST_CLIPS = 1 << 30  # bytes of frames as the network sees them
_LONGEST_ANIMATION = 50  # times the largest image, in pixels; all frames before a part are decoded, too
_MISSING = 4  # frames; a video may end this much earlier than its header says
_NUMBERED_NAME = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


class Frame(NamedTuple):
    """A frame of a video.

    Attributes:
        time: when it is shown, in seconds from the start of the video.
        end: when the next one is expected.
        load: the upright RGB image, with square pixels.
        num_broken: how many broken frames before it are left out.
    """

    time: float
    end: float
    load: Callable[[], Image.Image]
    num_broken: int = 0


def frame_files(folder: Path) -> list[Path]:
    """The files of a directory of frames, in order; none if it is another directory.

    It holds nothing but images, at least two, whose names differ only in a number: ``f8.png``, ``f9.png``, ``f10.png``.
    """
    try:
        paths = list(folder.glob("[!.]*"))
    except OSError:
        return []
    by_number: dict[int, Path] = {}
    affixes = set()
    for path in paths:
        match = _NUMBERED_NAME.fullmatch(path.name)
        if match is None:
            return []
        before, number, after = match.groups()
        affixes.add((before, after))
        by_number[int(number)] = path
    numbers = sorted(by_number)
    if len(affixes) != 1 or not len(numbers) == len(paths) == numbers[-1] - numbers[0] + 1 > 1:
        return []
    if all(map(images.has_image_suffix, paths)) and all(map(isfile, paths)):
        return [by_number[number] for number in numbers]
    return []


class Header(NamedTuple):
    """What the beginning of a video says.

    Attributes:
        rate: frames per second, on average.
        duration: its length in seconds; 0 if it does not say.
        has_sound: whether it has sound.
    """

    rate: float
    duration: float = 0.0
    has_sound: bool = False


def read_header(file: File, frame_rate: float) -> Header:
    """What the beginning of a video says; for the arguments, see ``frames``.

    Raises:
        ImageError: it is no video.
    """
    if isinstance(file, Path) and isdir(file):
        return Header(frame_rate, len(frame_files(file)) / frame_rate)
    with images.reading(file), images.open_file(file) as content:
        if images.is_recognized(content):
            content.seek(0)
            with images.open_image(content) as image:
                return Header(1 / _delay(image))
        content.seek(0)
        av = import_optional("av")
        with _open_video(av, content) as (container, stream):
            rate = float(stream.average_rate or 1 / _DELAY)
            has_sound = bool(container.streams.audio)
            return Header(rate, _announced_end(container, stream, rate), has_sound)


def is_animation(file: File) -> bool:
    """Whether a file is an animated GIF, PNG or WebP."""
    with (
        suppress(Exception),
        images.open_image(file) as image,
    ):  # broken files make Pillow raise nearly anything
        return image.format in _ANIMATIONS and getattr(image, "n_frames", 1) > 1
    return False


def is_video(file: File) -> bool:
    """Whether FFmpeg reads a file as a video."""
    with suppress(ImageError, ConfigurationError), images.open_file(file) as content:
        av = import_optional("av")
        with _open_video(av, content):
            return True
    return False


def frames(file: File, frame_rate: float, start: float = 0.0) -> Iterator[Frame]:
    """The frames of a video in order, from the one at ``start`` or an earlier one.

    Args:
        file: a file or its bytes, or a directory of frames.
        frame_rate: that of a directory of frames.
        start: seconds.

    Raises:
        ImageError: it is no video, is broken or truncated, or has too many pixels.
    """
    if isinstance(file, Path) and isdir(file):
        files = frame_files(file)
        for i, path in enumerate(files):
            yield Frame(i / frame_rate, (i + 1) / frame_rate, partial(_frame_of, path))
        if not files:
            raise ImageError("it is not a directory of frames: number its images consecutively")
        return
    with images.reading(file), images.open_file(file) as content:
        is_picture = images.is_recognized(content)
        content.seek(0)
        if is_picture:
            yield from _of_animation(content)
        else:
            yield from _of_video(content, start)


def sample_frames(file: File, rate: float, part: ClipOptions) -> Generator[Frame]:
    """The frame that is shown at each tick of a frame rate, in a part of a video.

    Raises:
        ImageError: see ``frames``; or the video ends before that part.
    """
    start = part.start
    end = start + (part.duration or inf)
    count = 0
    last_time = 0.0
    source_frames: Iterator[Frame | None] = frames(file, rate, start)
    for frame, after in pairwise(chain(source_frames, [None])):
        assert frame is not None
        last_time = frame.end if after is None else after.time
        # a hundredth of a tick for rounded time stamps
        while start + count / rate < min(end, last_time) - 0.01 / rate:
            yield frame
            count += 1
        if last_time >= end:
            break
    if not last_time:
        raise ImageError("it has no frames")
    if not count:
        raise ImageError(f"it ends after {last_time:.1f} s: lower --start")


class Frames(InputFormat):
    """A video, cut into clips for the network."""

    unit = "video"
    network = "a network for video, such as --model r3d_18"
    axes = "THW"
    files = staticmethod(frame_files)
    suffixes = VIDEO_SUFFIXES

    def recognizes(self, path: Path) -> bool:
        if isdir(path):
            return bool(frame_files(path))
        with suppress(Exception):  # broken files make Pillow raise nearly anything
            return path.suffix.lower() in _ANIMATION_SUFFIXES and isfile(path) and images.pages(path) > 1
        return False

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> Pixels:
        """The clips, (clips, frames, crop, crop, 3), the frames' width and height, and which clips these are.

        Raises:
            ImageError: see ``sample_frames``; or the clips do not fit into memory.
        """
        assert spec.frames is not None
        length = spec.frames
        step = part.every
        crops: dict[int, NDArray[np.uint8]] = {}
        size = (0, 0)
        last_frame = None
        limit = _LARGEST_CLIPS // (spec.channels * prod(spec.shape[1:]))
        for i, frame in enumerate(sample_frames(file, spec.rate, part)):
            if i // length % step:
                continue
            if frame is not last_frame:  # which may be shown for minutes
                image = frame.load()
                pixels = spec.read(image)
                last_frame = frame
            if not crops:
                size = image.size
            crops[i] = pixels
            if len(crops) > limit:
                remedy = "explain a part with --duration, or less with --every"
                raise ImageError(f"its clips do not fit into memory: {remedy}")
        total = i + 1
        starts = clip_starts(total, length, step)
        chosen = [crops[min(number, i)] for start in starts for number in range(start, start + length)]
        pixels = np.stack(chosen).reshape(len(starts), length, *chosen[0].shape)
        clips = Clips(starts=starts, frames=length, frame_rate=spec.rate, total=total, start=part.start)
        return pixels, size, clips

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        assert clips is not None
        by_number = {frame.number: frame for frame in clips.explained_frames()}
        with closing(sample_frames(file, spec.rate, part)) as ticks:
            for number, frame in enumerate(islice(ticks, max(by_number) + 1)):
                if number in by_number:
                    yield DisplayFrame(frame.load(), *by_number[number])


def _frame_of(path: Path) -> Image.Image:
    try:
        return images.decode(path)
    except ImageError as error:
        raise ImageError(f"its frame {path.name}: {error}") from error


def _of_animation(file: BinaryIO) -> Iterator[Frame]:
    """The frames of an animated GIF, PNG or WebP."""
    with images.open_image(file) as image:
        count = getattr(image, "n_frames", 1)
        if count < 2:
            raise ImageError(
                "it is a still image: give a video, an animation or a directory of numbered frames"
            )
        images.check_pixels((image.width, image.height * count // _LONGEST_ANIMATION))
        time = 0.0
        for picture in ImageSequence.Iterator(image):
            picture.load()
            end = time + _delay(picture)
            yield Frame(time, end, partial(images.to_rgb, picture.copy()))
            time = end


def _delay(picture: Image.Image) -> float:
    """How long a frame of an animation is shown, in seconds."""
    delay: float = picture.info.get("duration", 0) / 1000
    return delay if delay > 0.01 else _DELAY


@contextmanager
def _open_video(av: Any, file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """A video file, and the stream of its pictures. Raises ImageError if it is none."""
    try:
        container = images.open_container(av, file)
    except (av.FFmpegError, ValueError, EOFError) as error:
        raise ImageError("it is not a video that FFmpeg can read, or is truncated") from error
    with container:
        stream = container.streams.best("video")
        if stream is None:
            raise ImageError("it has no video stream, or is truncated")
        yield container, stream


def _of_video(file: BinaryIO, start: float) -> Iterator[Frame]:
    """The frames of a video file; the first ones may be skipped."""
    av = import_optional("av")
    end = time = 0.0
    try:
        with _open_video(av, file) as (container, stream):
            rate = float(stream.average_rate or 0)
            tick = 1 / rate if rate else _DELAY
            zero = _seconds(stream.start_time, stream.time_base)
            if start > 1 and container.size > 0:
                container.seek(int((start + zero) * av.time_base))
            aspect = float(stream.sample_aspect_ratio or 1)
            num_broken = 0
            for i, frame in enumerate(_decode(av, container, stream)):
                if frame is None or frame.is_corrupt:
                    num_broken += 1
                    continue
                if frame.time is None and not rate:
                    raise ImageError("it has no frame rate")
                images.check_pixels((frame.width, frame.height))
                since_start = i / rate if frame.time is None else frame.time - zero
                time = max(time, since_start)
                end = time + (_seconds(frame.duration, frame.time_base) or tick)
                yield Frame(time, end, partial(_upright, frame, aspect), num_broken)
                num_broken = 0
            duration = _announced_end(container, stream, rate)
    except (av.FFmpegError, ValueError, EOFError) as error:
        if not end:
            raise ImageError("it is not a video that FFmpeg can read, or is truncated") from error
        raise ImageError(_cut_short(end)) from error
    if end < duration - _MISSING * tick:
        raise ImageError(_cut_short(end, f" of {duration:.1f}"))


def _decode(av: Any, container: Any, stream: Any) -> Iterator[Any]:
    """The frames of a stream; None for a packet that is broken."""
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except av.InvalidDataError:
            if packet.size:  # else the decoder was asked for what it had left
                yield None


def _seconds(ticks: int | None, unit: Fraction | None) -> float:
    """A time in units of a stream, in seconds; 0 if it is unknown."""
    if not ticks or not unit:
        return 0.0
    return float(ticks * unit)


def _announced_end(container: Any, stream: Any, rate: float) -> float:
    """When a video ends according to its header, in seconds; 0 if it does not say."""
    duration = _seconds(stream.duration, stream.time_base)
    if rate:
        duration = max(duration, stream.frames / rate)
    match = re.match(r"(\d+):(\d+):(\d+\.?\d*)", stream.metadata.get("DURATION", ""))  # of Matroska and WebM
    if match:
        hours, minutes, seconds = map(float, match.groups())
        return max(duration, 3600 * hours + 60 * minutes + seconds)
    if len(container.streams) == 1:  # sound may last longer
        return max(duration, (container.duration or 0) / 1e6)
    return duration


def _cut_short(end: float, total: str = "") -> str:
    return (
        f"it ends after {end:.1f}{total} s, so it is truncated or broken: "
        "copy it again, or explain the intact part with --duration"
    )


def _upright(frame: Any, aspect: float) -> Image.Image:
    """The image of a frame whose pixels have this width, divided by their height, turned as its file says."""
    image: Image.Image = frame.to_image()
    if aspect != 1:
        image = image.resize((max(1, round(image.width * aspect)), image.height))
    if frame.rotation:
        return image.rotate(frame.rotation, expand=True)
    return image


register(Frames())
