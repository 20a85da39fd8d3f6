"""The bytes of result files, which say that this program made them: pictures, videos and arrays."""

import html
import io
import json
import math
import re
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PdfParser import PdfParser
from PIL.PngImagePlugin import PngInfo

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import JsonObject, Size
from ebcli.errors import ConfigurationError, EbcliError, ImageError, import_optional, sides
from ebcli.files.images import open_image
from ebcli.files.paths import safe_open

Facts = Mapping[str, str]

MP4 = "mp4"  # of videos
WEBP = "webp"
SOFTWARE = "eb-saliency"
_FACT_NAMES = (
    "input model weights head layer fit tiles method style scale class score output value strength sufficiency "
    "version"
)
FACTS = tuple(_FACT_NAMES.split())

_NO_FACTS: Facts = {}
_SOFTWARE_TAG = 0x0131  # EXIF's Software
_DESCRIPTION_TAG = 0x010E  # EXIF's ImageDescription
_LONGEST_FACT = 300  # characters
_CLASS_ARRAYS = {"classes", "names", "scores"}
_LARGEST_ARRAY = 1 << 28  # bytes
_BEGINNING = 1 << 17  # bytes, in which an SVG file or a page says how it was made
_DESCRIPTION = re.compile(
    rf"<dc:description>([^<]*)</dc:description>.*?<dc:title>{SOFTWARE}</dc:title>"
    rf'|<meta name="generator" content="{SOFTWARE}">.*?<meta name="description" content="([^"]*)">',
    re.DOTALL,
)
_SAVING: dict[str, JsonObject] = {
    # run-length coding takes a quarter of the default's time for files 2% larger
    "png": {"format": "PNG", "compress_type": Image.RLE},
    "jpg": {"format": "JPEG", "quality": 90},
    "webp": {"format": "WEBP", "quality": 90},
}
_QUALITY = {"crf": "20", "preset": "veryfast"}  # of videos
_FINEST = 1000  # the denominator of frame rates


def encode_picture(picture: Image.Image, suffix: str, facts: Facts = _NO_FACTS) -> bytes:
    """The content of a picture file; its EXIF data names this program.

    Args:
        picture: what to encode.
        suffix: ``png``, ``jpg`` or ``webp``.
        facts: how it was made, some of ``FACTS``; stored as text in PNG, as JSON in EXIF's description of other
            formats.

    Raises:
        ImageError: the format cannot hold the picture.
    """
    buffer = io.BytesIO()
    options = dict(_SAVING[suffix])
    if suffix == "png":
        texts = options["pnginfo"] = PngInfo()
        for name, value in shorten(facts).items():
            texts.add_text(name, value)
        facts = _NO_FACTS
    if "dpi" in picture.info:
        options["dpi"] = picture.info["dpi"]
    try:
        picture.save(buffer, exif=made_by(facts), **options)
    except (OSError, ValueError) as error:
        raise ImageError(
            f"its map of {sides(picture.size)} pixels does not fit into the format {suffix} ({error}): use png"
        ) from error
    return buffer.getvalue()


def made_by(facts: Facts) -> Image.Exif:
    """EXIF data that name this program, and say how a picture was made."""
    exif = Image.Exif()
    exif[_SOFTWARE_TAG] = SOFTWARE
    if facts:
        exif[_DESCRIPTION_TAG] = json.dumps(shorten(facts))
    return exif


def shorten(facts: Facts) -> Facts:
    """The facts that fit into a file's metadata."""
    return {name: value[:_LONGEST_FACT] for name, value in facts.items()}


def read_facts(path: Path) -> Facts:
    """How a result was made: those of ``FACTS`` that this program wrote into it; empty for other files.

    Raises:
        OSError: it cannot be read.
        ConfigurationError: it is a video, and the package for videos is missing.
    """
    readers = {".npz": _of_arrays, ".mp4": _of_video, ".pdf": _of_pdf, ".svg": _of_text, ".html": _of_text}
    read = readers.get(path.suffix.lower(), _of_picture)
    with safe_open(path, follow=False) as file:
        try:
            software, facts = read(file)
            if software != SOFTWARE:
                return {}
            if isinstance(facts, str):
                facts = json.loads(facts)
            return {name: str(facts[name]) for name in FACTS if name in facts}
        except EbcliError:
            raise
        except Exception:  # somebody else's file can be broken in any way
            return {}


# What made a file, and the facts or their JSON; KeyError and the like if it does not say
_Facts = tuple[Any, Any]


def _of_arrays(file: BinaryIO) -> _Facts:
    arrays = _arrays(file, ("software", *FACTS, *_CLASS_ARRAYS))
    facts = {name: ", ".join(map(str, array.flat)) for name, array in arrays.items()}
    if arrays.keys() >= _CLASS_ARRAYS:
        titles = zip(arrays["classes"].flat, arrays["names"].flat, strict=False)
        facts["class"] = "; ".join(f"{index} {name}".rstrip() for index, name in titles)
        facts["score"] = ", ".join(f"{score:.4f}" for score in arrays["scores"].flat)
    return facts["software"], facts


def _of_video(file: BinaryIO) -> _Facts:
    with import_optional("av").open(file) as container:
        return container.metadata["description"], container.metadata["comment"]


def _of_pdf(file: BinaryIO) -> _Facts:
    info = PdfParser(f=file).info
    return info.Creator, str(info.Subject)


def _of_text(file: BinaryIO) -> _Facts:
    """From the beginning of an SVG file or a page, without a parser: somebody else's can be an attack on one."""
    match = _DESCRIPTION.search(file.read(_BEGINNING).decode(errors="replace"))
    if match is None:
        return None, {}
    return SOFTWARE, html.unescape(match[1] or match[2])


def _of_picture(file: BinaryIO) -> _Facts:
    with open_image(file) as image:
        exif = Image.Exif()
        # a PNG file without any would be decoded to look for it behind the pixels
        exif.load(image.info["exif"])
        facts = image.info if image.format == "PNG" else exif[_DESCRIPTION_TAG]
        return exif[_SOFTWARE_TAG], facts


def encode_arrays(arrays: Mapping[str, ArrayLike]) -> bytes:
    """The content of a compressed ``.npz`` file; its array ``software`` names this program."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{"software": np.array(SOFTWARE), **arrays})  # type: ignore[arg-type]
    return buffer.getvalue()


def read_arrays(path: Path, names: Collection[str]) -> dict[str, AnyArray]:
    """Those of the named arrays that an ``.npz`` file has; what it stores as Python objects is not loaded.

    Raises:
        OSError, ValueError: it is not an intact file of arrays, or they are larger than a map can be.
    """
    try:
        with safe_open(path, follow=False) as file:
            return _arrays(file, names)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise ValueError(f"it is not an intact .npz file ({error})") from error


def _arrays(file: BinaryIO, names: Collection[str]) -> dict[str, AnyArray]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name in set(archive.namelist()) & {f"{name}.npy" for name in names}:
            size = archive.getinfo(name).file_size
            if size > _LARGEST_ARRAY:
                raise ValueError(f"{name} is too large")
            with archive.open(name) as member:
                npy.read_magic(member)
                shape, _, kind = npy.read_array_header_1_0(member)
            if math.prod(shape) * kind.itemsize > size:
                raise ValueError(f"{name} is too large")
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = npy.read_array(member, allow_pickle=False)
    return arrays


def video_format(picture_format: str) -> str:
    """The format of result videos: WebP if pictures are, or if the package ``av`` is missing; else MP4."""
    if picture_format == WEBP:
        return WEBP
    try:
        import_optional("av")
    except ConfigurationError:
        return WEBP
    return MP4


def video_writer(suffix: str, frame_rate: float, facts: Facts) -> "Mp4 | Webp":
    """What encodes a video of a format frame by frame.

    Args:
        suffix: ``mp4`` or ``webp``.
        frame_rate: frames per second.
        facts: how the video was made, some of ``ebcli.files.encoding.FACTS``.
    """
    if suffix == MP4:
        return Mp4(frame_rate, facts)
    return Webp(frame_rate, facts)


class Mp4:
    """H.264 in MP4; its metadata are a comment, and this program as the description."""

    def __init__(self, frame_rate: float, facts: Facts) -> None:
        self._av = import_optional("av")
        self._rate = Fraction(frame_rate).limit_denominator(_FINEST)
        self._buffer = io.BytesIO()
        self._container = self._av.open(self._buffer, "w", format="mp4")
        self._container.metadata.update(comment=json.dumps(shorten(facts)), description=SOFTWARE)
        self._stream: Any = None

    def add(self, frame: Image.Image) -> None:
        """Append a frame, RGB; all have the same size."""
        width, height = (side + side % 2 for side in frame.size)  # as H.264 stores color
        if (width, height) != frame.size:
            frame = frame.resize((width, height))
        try:
            if self._stream is None:
                self._stream = self._container.add_stream("libx264", rate=self._rate, options=_QUALITY)
                self._stream.width = width
                self._stream.height = height
                self._stream.pix_fmt = "yuv420p"
                self._stream.codec_context.thread_count = 1  # each thread would hold frames
            self._container.mux(self._stream.encode(self._to_yuv(frame)))
        except (self._av.FFmpegError, ValueError) as error:
            problem = f"its frames of {width} x {height} pixels cannot be encoded"
            raise ImageError(f"{problem}: use --max-side") from error

    def _to_yuv(self, image: Image.Image) -> Any:
        """A frame for the encoder, which also reads the padding of its rows: it is 0, not what memory held."""
        yuv = self._av.VideoFrame.from_image(image).reformat(format="yuv420p")
        frame = self._av.VideoFrame(image.width, image.height, "yuv420p")
        for plane, source in zip(frame.planes, yuv.planes, strict=True):
            rows = np.frombuffer(source, np.uint8).reshape(-1, source.line_size)
            content = rows[: plane.height, : plane.width]
            plane.update(np.pad(content, ((0, 0), (0, plane.line_size - plane.width))).tobytes())
        return frame

    def finish(self) -> bytes:
        """The content of the file."""
        self._container.mux(self._stream.encode())
        self._container.close()
        return self._buffer.getvalue()


class Webp:
    """Animated WebP by Pillow, which takes all frames at the end: until then, they are kept in a temporary file."""

    def __init__(self, frame_rate: float, facts: Facts) -> None:
        self._delay = 1000 / frame_rate
        self._facts = facts
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
        self._size = (0, 0)
        self._count = 0

    def add(self, frame: Image.Image) -> None:
        """Append a frame, RGB; all have the same size."""
        self._size = frame.size
        self._count += 1
        self._file.write(frame.tobytes())

    def finish(self) -> bytes:
        """The content of the file."""
        buffer = io.BytesIO()
        with self._file:
            frames = _FrameFile(self._file, self._size, self._count)
            delays = np.diff([round(i * self._delay) for i in range(self._count + 1)]).tolist()
            try:
                frames.save(
                    buffer, "WEBP", save_all=True, duration=delays, quality=80, exif=made_by(self._facts)
                )
            except (OSError, ValueError) as error:
                raise ImageError(
                    f"its frames of {sides(self._size)} pixels do not fit into WebP ({error}): use --max-side"
                ) from error
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
        self._file.seek(frame * self._bytes)
        self.im = Image.frombytes("RGB", self._size, self._file.read(self._bytes)).im
