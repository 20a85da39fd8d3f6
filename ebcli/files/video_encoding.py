"""Result videos, which say that this program made them: frames in, a file out; and chunks of one joined, with sound.

A video that takes hours is encoded in chunks, so that a killed run loses one of them. Chunks are MP4 files in which no
frame refers to a later one, so joining them copies packets and nothing is encoded again.
"""

import heapq
import io
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from ebcli.datatypes.explanation import Size
from ebcli.errors import ConfigurationError, ImageError, import_optional, sides
from ebcli.files.encoding import SOFTWARE, Facts, as_texts, made_by, shorten
from ebcli.files.images import open_container

MP4 = "mp4"
WEBM = "webm"
WEBP = "webp"
GIF = "gif"
PNG = "png"

_TICKS = 90_000  # a second, which hold the times of all common frame rates


class _Codec(NamedTuple):
    """An encoder of FFmpeg, the format of its pixels, and its options."""

    name: str
    pixels: str
    options: dict[str, str]


# of which the first one that this FFmpeg has is taken
_H264 = [
    _Codec("libx264", "yuv420p", {"crf": "20", "preset": "veryfast", "bf": "0"}),
    _Codec("mpeg4", "yuv420p", {"b": "8M", "bf": "0"}),
]
_VP9 = [_Codec("libvpx-vp9", "yuv420p", {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "7"})]
_LOSSLESS = [  # of chunks that are encoded again as an animation
    _Codec("libx264rgb", "rgb24", {"qp": "0", "preset": "ultrafast", "bf": "0"}),
    *_H264,
]
_CODECS = {MP4: _H264, WEBM: _VP9}
_SOUND = {MP4: "aac", WEBM: "libopus"}
_ANIMATIONS: dict[str, dict[str, Any]] = {
    WEBP: {"format": "WEBP", "quality": 80},
    GIF: {"format": "GIF", "loop": 0, "disposal": 1},
    PNG: {"format": "PNG", "compress_type": Image.RLE},
}


def video_format(picture_format: str) -> str:
    """The format of result videos: WebP if pictures are, or if the package ``av`` is missing; else MP4."""
    if picture_format == WEBP:
        return WEBP
    try:
        import_optional("av")
    except ConfigurationError:
        return WEBP
    return MP4


def video_writer(suffix: str, frame_rate: float, facts: Facts) -> "Video | Animation":
    """What encodes a video of a format frame by frame.

    Args:
        suffix: ``mp4`` or ``webp``.
        frame_rate: frames per second.
        facts: how the video was made, some of ``ebcli.files.encoding.FACTS``.
    """
    if suffix == MP4:
        return Video(io.BytesIO(), suffix, frame_rate, facts)
    return Animation(suffix, frame_rate, facts)


class Video:
    """A video in MP4; its metadata are a comment, and this program as the description.

    Args:
        target: where it is written.
        suffix: the format that it is for: H.264 for ``mp4``, VP9 for ``webm``, and without loss for animations.
        frame_rate: frames per second.
        facts: how it was made.
    """

    def __init__(self, target: BinaryIO, suffix: str, frame_rate: float, facts: Facts) -> None:
        self._av = import_optional("av")
        self._codec = _available(self._av, _CODECS.get(suffix, _LOSSLESS))
        self._rate = Fraction(frame_rate).limit_denominator(1000)
        self._target = target
        self._container = self._av.open(target, "w", format=MP4)
        self._container.metadata.update(_metadata(facts))
        self._stream: Any = None
        self._count = 0

    def add(self, frame: Image.Image, time: float | None = None) -> None:
        """Append a frame, RGB; all have the same size.

        Args:
            frame: the frame.
            time: when it is shown, in seconds; None for a constant frame rate.
        """
        if self._codec.pixels != "rgb24":  # color is stored for two pixels a side
            width, height = (side + side % 2 for side in frame.size)
            if (width, height) != frame.size:
                frame = frame.resize((width, height))
        try:
            if self._stream is None:
                self._stream = self._add_stream(frame.size)
            picture = self._av.VideoFrame.from_image(frame)
            seconds = self._count / self._rate if time is None else time
            picture.pts = round(seconds * _TICKS)
            picture.time_base = Fraction(1, _TICKS)
            self._container.mux(self._stream.encode(picture))
        except (self._av.FFmpegError, ValueError) as error:
            problem = f"its frames of {sides(frame.size)} pixels cannot be encoded"
            raise ImageError(f"{problem}: use --max-side") from error
        self._count += 1

    def _add_stream(self, size: Size) -> Any:
        stream = self._container.add_stream(self._codec.name, rate=self._rate, options=self._codec.options)
        stream.width, stream.height = size
        stream.pix_fmt = self._codec.pixels
        stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS)
        stream.codec_context.thread_count = 1  # each thread would hold frames
        return stream

    def close(self) -> None:
        """Write what is left."""
        if self._stream is not None:
            self._container.mux(self._stream.encode())
        self._container.close()

    def finish(self) -> bytes:
        """The content of the file, which is a buffer."""
        self.close()
        assert isinstance(self._target, io.BytesIO)
        return self._target.getvalue()


def _available(av: Any, codecs: Sequence[_Codec]) -> _Codec:
    """The first encoder that FFmpeg has."""
    for codec in codecs:
        if codec.name in av.codecs_available:
            return codec
    names = " or ".join(codec.name for codec in codecs)
    raise ConfigurationError(f"the FFmpeg of the package av lacks {names}: pip install av, or choose .mp4")


def _metadata(facts: Facts) -> dict[str, str]:
    return {"comment": json.dumps(shorten(facts)), "description": SOFTWARE}


class Animation:
    """An animation by Pillow, which takes all frames at the end: until then, they are in a temporary file.

    Args:
        suffix: ``webp``, ``gif`` or ``png``.
        frame_rate: frames per second.
        facts: how it was made.
    """

    def __init__(self, suffix: str, frame_rate: float, facts: Facts) -> None:
        self._suffix = suffix
        self._rate = frame_rate
        self._facts = facts
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
        self._size = (0, 0)
        self._times: list[float] = []

    def add(self, frame: Image.Image, time: float | None = None) -> None:
        """Append a frame, RGB; all have the same size; see ``Video.add``."""
        self._size = frame.size
        self._times.append(len(self._times) / self._rate if time is None else time)
        self._file.write(frame.tobytes())

    def finish(self, end: float | None = None) -> bytes:
        """The content of the file; the last frame is shown until this time, in seconds."""
        buffer = io.BytesIO()
        times = [*self._times, end or self._times[-1] + 1 / self._rate]
        delays = np.diff([round(1000 * (time - times[0])) for time in times]).tolist()
        options = _ANIMATIONS[self._suffix] | {"exif": made_by(self._facts)}
        if self._suffix == GIF:  # it has no EXIF data
            options["comment"] = json.dumps(_metadata(self._facts))
        elif self._suffix == PNG:
            options["pnginfo"] = as_texts(self._facts)
        with self._file:
            frames = _FrameFile(self._file, self._size, len(self._times))
            try:
                frames.save(buffer, save_all=True, duration=delays, **options)
            except (OSError, ValueError) as error:
                problem = f"its frames of {sides(self._size)} pixels do not fit into {options['format']}"
                raise ImageError(f"{problem} ({error}): use --max-side") from error
        return buffer.getvalue()


class _FrameFile(Image.Image):
    """An animation whose frames are read from a file when Pillow seeks them."""

    def __init__(self, file: Any, size: Size, count: int) -> None:
        super().__init__()
        self._file = file
        self._bytes = 3 * math.prod(size)
        self._mode = "RGB"
        self._size = size
        self.n_frames = count
        self.seek(0)

    def seek(self, frame: int) -> None:
        if frame >= self.n_frames:
            raise EOFError
        self._file.seek(frame * self._bytes)
        self.im = Image.frombytes("RGB", self._size, self._file.read(self._bytes)).im


class Chunk(NamedTuple):
    """A part of a video: its file, when it starts in the whole, and when it ends, in seconds."""

    path: Path
    start: float
    end: float


class Sound(NamedTuple):
    """The sound of a part of a video file, between two times in seconds."""

    path: Path
    start: float
    end: float


def join(chunks: Sequence[Chunk], target: Path, suffix: str, facts: Facts, sound: Sound | None) -> str:
    """Join chunks to one file.

    The sound is copied if the format takes it, and else encoded again. Animations have none.

    Args:
        chunks: the chunks, one after another; the first one starts at 0 seconds.
        target: the file.
        suffix: its format.
        facts: how it was made.
        sound: the sound; None if there is none.

    Returns:
        What was left out, in words; empty if nothing was.
    """
    if suffix in _ANIMATIONS:
        target.write_bytes(_join_animation(chunks, suffix, facts))
        return ""
    av = import_optional("av")
    problem = ""
    try:
        _mux(av, chunks, target, suffix, facts, sound)
    except (av.FFmpegError, ValueError, NotImplementedError):
        if sound is None:
            raise
        _mux(av, chunks, target, suffix, facts, None)
        problem = "its sound cannot be read, so it is left out"
    return problem


def _mux(
    av: Any, chunks: Sequence[Chunk], target: Path, suffix: str, facts: Facts, sound: Sound | None
) -> None:
    options = {"movflags": "faststart"} if suffix == MP4 else {}
    with av.open(target, "w", format=suffix, options=options) as container:
        container.metadata.update(_metadata(facts))
        with av.open(chunks[0].path) as first:
            picture_stream = container.add_stream_from_template(first.streams.video[0])
        packets = [_pictures(av, chunks, picture_stream)]
        if sound is not None:
            packets.append(_sound(av, sound, container, _SOUND[suffix]))
        # the muxer would keep all packets of one stream until there are some of the other
        for _, packet in heapq.merge(*packets, key=lambda item: item[0]):
            container.mux(packet)


def _join_animation(chunks: Sequence[Chunk], suffix: str, facts: Facts) -> bytes:
    av = import_optional("av")
    animation = Animation(suffix, 1.0, facts)
    for chunk in chunks:
        with av.open(chunk.path) as container:
            for frame in container.decode(video=0):
                animation.add(frame.to_image(), chunk.start + frame.time)
    return animation.finish(chunks[-1].end)


_Packets = Iterator[tuple[float, Any]]  # with their times in seconds


def _pictures(av: Any, chunks: Sequence[Chunk], stream: Any) -> _Packets:
    """The packets of chunks, on the time scale of the whole."""
    ends = [chunk.start for chunk in chunks[1:]] + [chunks[-1].end]
    for chunk, end in zip(chunks, ends, strict=True):
        with av.open(chunk.path) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
            times = [chunk.start + float(packet.pts * packet.time_base) for packet in packets]
            for packet, (time, following) in zip(packets, pairwise([*times, end]), strict=True):
                packet.pts = packet.dts = round(time * _TICKS)
                packet.duration = max(0, round(following * _TICKS) - packet.pts)
                packet.time_base = Fraction(1, _TICKS)
                packet.stream = stream
                yield time, packet


def _sound(av: Any, sound: Sound, container: Any, codec: str) -> _Packets:
    """The packets of a sound. The stream is added to the container at once, before the first packet is asked for."""
    source = open_container(av, sound.path)
    stream = source.streams.best("audio")
    if stream is None:
        source.close()
        return iter(())
    try:
        copy = container.add_stream_from_template(stream)
        return _copied(av, sound, source, stream, copy)
    except ValueError:  # the format does not take it
        rate = 48_000 if codec == "libopus" else stream.codec_context.sample_rate
        encoder = container.add_stream(codec, rate=rate)
        return _encoded(av, sound, source, stream, encoder)


def _copied(av: Any, sound: Sound, source: Any, stream: Any, copy: Any) -> _Packets:
    with closing(source), suppress(av.FFmpegError):  # of a truncated file, what there is
        _seek(av, sound, source)
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            time = float(packet.dts * packet.time_base) - sound.start
            if time >= sound.end - sound.start:
                return
            if time >= 0 or not sound.start:  # what prepares the decoder comes before the first sound
                shift = round(sound.start / packet.time_base)
                packet.dts -= shift
                packet.pts = packet.dts
                packet.stream = copy
                yield time, packet


def _encoded(av: Any, sound: Sound, source: Any, stream: Any, encoder: Any) -> _Packets:
    resampler = av.AudioResampler(encoder.format, encoder.layout, encoder.rate)
    with closing(source), suppress(av.FFmpegError):
        _seek(av, sound, source)
        for frame in source.decode(stream):
            if frame.time >= sound.end:
                break
            if frame.time < sound.start:
                continue
            frame.pts -= round(sound.start / frame.time_base)
            for part in resampler.resample(frame):
                yield from _timed(encoder.encode(part))
    yield from _timed(encoder.encode())


def _timed(packets: Sequence[Any]) -> _Packets:
    for packet in packets:
        yield float(packet.dts * packet.time_base), packet


def _seek(av: Any, sound: Sound, source: Any) -> None:
    if sound.start > 1:
        source.seek(int(sound.start * av.time_base))
