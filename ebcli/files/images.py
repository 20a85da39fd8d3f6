"""Decoded, upright RGB images, masks of them, and what libraries get of a file that is not trusted.

That is its bytes without its name, and no more than it may unpack to.
"""

import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import inf
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ebcli.datatypes.explanation import Box, Size
from ebcli.errors import ConfigurationError, EbcliError, ImageError, import_optional, missing, reason, sides
from ebcli.files.paths import safe_open

File = Path | BinaryIO

# Formats that Pillow only identifies, or passes to other programs, as EPS to Ghostscript
_NEVER_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}

_MEMORY = 3 << 30  # bytes
_MEMORY_PER_PIXEL = 32  # bytes; floats in TIFF take 28
_USUAL_PIXELS = Image.MAX_IMAGE_PIXELS or 0
_HEIF = {".heic", ".heif"}
_MULTIPAGE = {"GIF", "PNG", "WEBP", "TIFF"}
_PACKED_CHUNK = 1 << 14  # bytes at a time
_UNPACKED_CHUNK = 1 << 22  # deflate makes at most 1032 bytes of one
TOO_MANY = "it has too many pixels: raise EB_SALIENCY_MAX_PIXELS"


def has_image_suffix(path: Path) -> bool:
    """Whether the suffix is one of an image format that Pillow reads."""
    formats = _formats()
    suffix = path.suffix.lower()
    return suffix in _HEIF or Image.registered_extensions().get(suffix) in formats


def is_recognized(file: File) -> bool:
    """Whether the first bytes are those of a format that Pillow reads, whatever the name is."""
    if isinstance(file, Path) and not isfile(file):
        return False
    try:
        with open_image(file):
            return True
    except (UnidentifiedImageError, ImageError):
        return False
    except Exception:  # recognized, but broken or not readable: ``decode`` reports it
        return True


def limit_pixels(count: int | None) -> None:
    """Make this process refuse images with more pixels; None keeps Pillow's own limit, 179 million."""
    if count is not None:
        Image.MAX_IMAGE_PIXELS = count // 2  # Pillow warns above this, and refuses above twice as much


def decode(file: File) -> Image.Image:
    """The image upright (EXIF orientation applied) and in RGB; of an animation, the first frame.

    Transparent pixels become white; 16-bit values are scaled to 8 bits.

    Raises:
        ImageError: the file does not exist, is not an image, is broken, or has more pixels than Pillow's
            ``Image.MAX_IMAGE_PIXELS`` allows.
    """
    with reading(file), open_image(file) as image:
        ImageOps.exif_transpose(image, in_place=True)  # a copy of a large photo takes a lot of memory
        return to_rgb(image)


@contextmanager
def reading(file: File) -> Iterator[None]:
    """Raise an ImageError, one sentence, for whatever Pillow raises of a file."""
    try:
        yield
    except (EbcliError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        problem = "not an image that Pillow can read"
        if isinstance(file, Path) and file.suffix.lower() in _HEIF and not _add_heif():
            problem = missing("pillow-heif")
        raise ImageError(problem) from error
    except Image.DecompressionBombError as error:
        raise ImageError(TOO_MANY) from error
    except OSError as error:
        raise ImageError(reason(error)) from error
    except Exception as error:  # broken files make Pillow's decoders raise nearly anything
        raise ImageError(f"it is broken: {reason(error)}") from error


def pages(file: File) -> int:
    """The number of frames of an animation, or of pages of a TIFF file; ``decode`` reads the first one."""
    with open_image(file) as image:
        # other formats have previews, depth maps and the like
        if image.format not in _MULTIPAGE:
            return 1
        return int(getattr(image, "n_frames", 1))


def most_pixels() -> float:
    """The number of pixels of the largest image that Pillow decodes."""
    if Image.MAX_IMAGE_PIXELS is None:
        return inf
    return 2 * Image.MAX_IMAGE_PIXELS


def decoding_memory(max_pixels: int | None = None) -> int:
    """The number of bytes that are enough to decode and draw an image of most pixels, or a video."""
    if max_pixels is None:
        max_pixels = 2 * _USUAL_PIXELS
    return _MEMORY + _MEMORY_PER_PIXEL * max_pixels


def check_pixels(size: Size) -> None:
    """Raise ImageError if an image of this size has more pixels than Pillow would decode."""
    if size[0] * size[1] > most_pixels():
        raise ImageError(TOO_MANY)


@contextmanager
def open_image(file: File) -> Iterator[Image.Image]:
    """Open an image of a format that Pillow decodes; any error of Pillow is passed on."""
    with open_file(file) as content, Image.open(content, formats=_formats()) as image:
        yield image


@contextmanager
def open_file(file: File) -> Iterator[BinaryIO]:
    """A file, open at its beginning."""
    if not isinstance(file, Path):
        file.seek(0)
        yield file
    elif isdir(file):
        raise ImageError("the directory cannot be listed")
    else:
        with safe_open(file) as content:
            yield content


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to ``RGB``; transparent pixels become white.

    32-bit integers that fit into 16 bits are read as 16-bit values. Other 32-bit integers and floats have no fixed
    white, so they are scaled from their minimum to their maximum.
    """
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float64)
        values = np.nan_to_num(values, posinf=values[np.isfinite(values)].max(initial=0.0), neginf=0.0)
        low = values.min()
        high = values.max()
        if image.mode != "F" and low >= 0 and high <= 0xFFFF:
            low = 0
            high = 0xFFFF
        levels = (values - low) * (255 / (high - low or 1))
        return Image.fromarray(levels.round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode == "RGB":
        return image
    return image.convert("RGB")


def read_mask(path: Path, size: Size, region: Box, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask of an image, (H, W), where the network sees it: pixels brighter than half are set.

    Args:
        path: an image of the same size.
        size: the image's (width, height).
        region: the rectangle that the network sees.
        shape: (H, W).

    Raises:
        ImageError: the mask cannot be read, or has another size.
    """
    try:
        mask = decode(path).convert("L")
    except ImageError as error:
        raise ImageError(f"cannot read the mask '{path}': {error}") from error
    if mask.size != size:
        raise ImageError(f"the mask '{path}' has {sides(mask.size)} pixels, but the image has {sides(size)}")
    part = mask.transform(shape[::-1], Image.Transform.EXTENT, region, Image.Resampling.NEAREST)
    return np.asarray(part) > 127


@lru_cache
def _add_heif() -> bool:
    """Let Pillow read HEIC and HEIF, the format of many phones; False if the package for it is missing."""
    with suppress(ConfigurationError):
        import_optional("pillow_heif").register_heif_opener()
        return True
    return False


def _formats() -> list[str]:
    _add_heif()
    Image.init()
    return [name for name in Image.OPEN if name not in _NEVER_DECODED]


class Contents:
    """A stream without a name or a descriptor: who reads it can open no other file beside it.

    Args:
        stream: a file, or what unpacks one.
        limit: the number of bytes that may be read of it, which can be raised later; more are an ImageError.
    """

    def __init__(self, stream: Any, limit: int = sys.maxsize) -> None:
        self._stream = stream
        self.limit = limit
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        """Like that of a file."""
        if not 0 <= size <= self._remaining:
            size = self._remaining + 1
        content: bytes = self._stream.read(size)
        self._check()
        return content

    def readinto(self, buffer: Any) -> int:
        """Like that of a file."""
        count: int = self._stream.readinto(memoryview(buffer)[: self._remaining + 1])
        self._check()
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        """Like that of a file."""
        if whence == 0 and offset > self.limit:
            raise ImageError(TOO_MANY)
        position: int = self._stream.seek(offset, whence)
        return position

    @property
    def _remaining(self) -> int:
        position: int = self.tell()
        return self.limit - position

    def _check(self) -> None:
        if self._remaining < 0:
            raise ImageError(TOO_MANY)


def check_deflated(stream: Any, size: int, limit: float, bits: int = zlib.MAX_WBITS) -> None:
    """Raise ImageError if deflated bytes unpack to more than ``limit``.

    Args:
        stream: where they begin.
        size: their number.
        limit: bytes.
        bits: how they are wrapped; see ``zlib.decompressobj``.
    """
    unpacker = zlib.decompressobj(bits)
    while (part := stream.read(min(size, _PACKED_CHUNK))) and not unpacker.eof:
        size -= len(part)
        while part:
            limit -= len(unpacker.decompress(part, _UNPACKED_CHUNK))
            part = unpacker.unconsumed_tail
            if limit < 0:
                raise ImageError(TOO_MANY)
