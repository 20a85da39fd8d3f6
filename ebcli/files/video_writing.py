"""The bytes of result videos: MP4, or animated WebP; both say that this program made them."""

import io
import json
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from ebcli.errors import ConfigurationError, ImageError, import_optional
from ebcli.files.encoding import SOFTWARE, made_by, shortened

MP4, WEBP = "mp4", "webp"

_QUALITY = {"crf": "20", "preset": "veryfast"}
_FINEST = 1000  # the denominator of frame rates


def video_format(picture_format: str) -> str:
    """The format of result videos: WebP if pictures are, or if the package ``av`` is missing; else MP4."""
    if picture_format == WEBP:
        return WEBP
    try:
        import_optional("av")
    except ConfigurationError:
        return WEBP
    return MP4


def video_writer(suffix: str, frame_rate: float, facts: Mapping[str, str]) -> "Mp4 | Webp":
    """What encodes a video of a format frame by frame.

    Args:
        suffix: ``mp4`` or ``webp``.
        frame_rate: frames per second.
        facts: how the video was made, some of ``ebcli.files.encoding.FACTS``.
    """
    return (Mp4 if suffix == MP4 else Webp)(frame_rate, facts)


class Mp4:
    """H.264 in MP4; its metadata are a comment, and this program as the description."""

    def __init__(self, frame_rate: float, facts: Mapping[str, str]) -> None:
        self._av = import_optional("av")
        self._rate = Fraction(frame_rate).limit_denominator(_FINEST)
        self._buffer = io.BytesIO()
        self._container = self._av.open(self._buffer, "w", format="mp4")
        self._container.metadata.update(comment=json.dumps(shortened(facts)), description=SOFTWARE)
        self._stream: Any = None

    def add(self, frame: Image.Image) -> None:
        """Append a frame, RGB; all have the same size."""
        even = frame.width + frame.width % 2, frame.height + frame.height % 2  # as H.264 stores color
        if even != frame.size:
            frame = frame.resize(even)
        try:
            if self._stream is None:
                self._stream = self._container.add_stream("libx264", rate=self._rate, options=_QUALITY)
                self._stream.width, self._stream.height = even
                self._stream.pix_fmt = "yuv420p"
                self._stream.codec_context.thread_count = 1  # each thread would hold frames
            self._container.mux(self._stream.encode(self._converted(frame)))
        except (self._av.FFmpegError, ValueError) as error:
            raise ImageError(f"its frames of {even[0]} x {even[1]} pixels cannot be encoded: use --max-side") from error

    def _converted(self, image: Image.Image) -> Any:
        """A frame for the encoder, which also reads the padding of its rows: it is 0, not what memory held."""
        converted = self._av.VideoFrame.from_image(image).reformat(format="yuv420p")
        frame = self._av.VideoFrame(image.width, image.height, "yuv420p")
        for plane, source in zip(frame.planes, converted.planes, strict=True):
            rows = np.zeros((plane.height, plane.line_size), np.uint8)
            given = np.frombuffer(source, np.uint8).reshape(-1, source.line_size)
            rows[:, : plane.width] = given[: plane.height, : plane.width]
            plane.update(rows.tobytes())
        return frame

    def finish(self) -> bytes:
        """The content of the file."""
        self._container.mux(self._stream.encode())
        self._container.close()
        return self._buffer.getvalue()


class Webp:
    """Animated WebP by Pillow, which takes all frames at the end: until then, they are kept in a temporary file."""

    def __init__(self, frame_rate: float, facts: Mapping[str, str]) -> None:
        self._delay, self._facts = 1000 / frame_rate, facts
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
        self._size, self._count = (0, 0), 0

    def add(self, frame: Image.Image) -> None:
        """Append a frame, RGB; all have the same size."""
        self._size, self._count = frame.size, self._count + 1
        self._file.write(frame.tobytes())

    def finish(self) -> bytes:
        """The content of the file."""
        buffer = io.BytesIO()
        with self._file:
            frames = _Stored(self._file, self._size, self._count)
            times = [round(i * self._delay) for i in range(self._count + 1)]
            delays = [after - before for before, after in pairwise(times)]
            try:
                frames.save(buffer, "WEBP", save_all=True, duration=delays, quality=80, exif=made_by(self._facts))
            except (OSError, ValueError) as error:
                size = f"{self._size[0]} x {self._size[1]} pixels"
                raise ImageError(f"its frames of {size} do not fit into WebP ({error}): use --max-side") from error
        return buffer.getvalue()


class _Stored(Image.Image):
    """An animation whose frames are read from a file when Pillow seeks them."""

    def __init__(self, file: Any, size: tuple[int, int], count: int) -> None:
        super().__init__()
        self._file, self._bytes, self.n_frames, self._frame = file, 3 * size[0] * size[1], count, 0
        self._mode, self._size = "RGB", size
        self.seek(0)

    def seek(self, frame: int) -> None:
        self._file.seek(frame * self._bytes)
        self.im = Image.frombytes("RGB", self._size, self._file.read(self._bytes)).im
        self._frame = frame

    def tell(self) -> int:
        return self._frame
