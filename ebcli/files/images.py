"""Decoded, upright RGB images, masks of them, and what libraries get of a file that is not trusted.

That is its bytes without its name, and no more than it may unpack to.
"""

import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from math import inf
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, ImageFile, ImageOps, UnidentifiedImageError

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Box, Interval, Size
from ebcli.errors import ConfigurationError, EbcliError, ImageError, import_optional, missing, reason, sides
from ebcli.files.paths import safe_open

File = Path | BinaryIO
Notes = dict[str, str]  # sentences about a file that its user may not expect, by topic

# Other formats of FFmpeg are playlists and devices, which open files and addresses of their own
_DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
# Formats that Pillow only identifies, or passes to other programs, as EPS to Ghostscript
_NEVER_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}

_MEMORY = 3 << 30  # bytes
_MEMORY_PER_PIXEL = 32  # bytes; floats in TIFF take 28
_USUAL_PIXELS = Image.MAX_IMAGE_PIXELS or 0
_HEIF = {".heic", ".heif"}
_MULTIPAGE = {"GIF", "PNG", "WEBP", "TIFF"}
_allows_truncated = ContextVar("allows_truncated", default=False)
_PACKED_CHUNK = 1 << 14  # bytes at a time
_UNPACKED_CHUNK = 1 << 22  # deflate makes at most 1032 bytes of one
WHITE = 65535.0  # of 16 bits
_LEAST_SHARE = 0.001  # that is named
_DARKEST = 1 / 8  # of white; the brightest value of images that are nearly black
NO_DATA_TAG = 42113  # GDAL's, in TIFF
NOTHING_FINITE = "none of its values is a finite number"
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


_limit_before: list[int | None] = []  # of pixels, if it has been replaced


def limit_pixels(count: int | None) -> None:
    """Make this process refuse images with more pixels; None for the limit before, usually Pillow's 179 million."""
    if count is not None:
        if not _limit_before:
            _limit_before.append(Image.MAX_IMAGE_PIXELS)
        Image.MAX_IMAGE_PIXELS = count // 2  # Pillow warns above this, and refuses above twice as much
    elif _limit_before:
        Image.MAX_IMAGE_PIXELS = _limit_before.pop()


def allow_truncated(is_allowed: bool) -> None:
    """Make this thread read what is there of images that are cut off, or refuse them."""
    _allows_truncated.set(is_allowed)


class Decoded(NamedTuple):
    """An upright RGB image, and what a user may not expect of its file, by topic."""

    image: Image.Image
    notes: Notes


def decode(file: File, *, to_srgb: bool = False) -> Image.Image:
    """The image of ``read_photo``."""
    return read_photo(file, to_srgb=to_srgb).image


def read_photo(file: File, limits: Interval | None = None, *, to_srgb: bool = False) -> Decoded:
    """The image upright (EXIF orientation applied) and in RGB; of an animation, the first frame.

    Transparent pixels become white; 16-bit values are scaled to 8 bits.

    Args:
        file: its path or bytes.
        limits: see ``to_rgb``.
        to_srgb: whether to convert colors of another color space, as pictures need it. Networks get them as they are
            stored, as those of torchvision and timm do.

    Raises:
        ImageError: the file does not exist, is not an image, is broken or truncated, or has more pixels than Pillow's
            ``Image.MAX_IMAGE_PIXELS`` allows.
    """
    with reading(file), open_image(file) as image:
        notes = _load(image)
        ImageOps.exif_transpose(image, in_place=True)  # a copy of a large photo takes a lot of memory
        photo = _convert(image, limits, to_srgb)
        return Decoded(photo.image, notes | photo.notes)


def as_photo(image: Image.Image, limits: Interval | None = None, *, to_srgb: bool = False) -> Decoded:
    """What ``read_photo`` makes of the file of an image that is open in Pillow, which stays as it is.

    An image that was made in Pillow is upright, whatever its metadata say: they are often those of another image.
    """
    with reading():
        notes = _load(image)
        if isinstance(image, ImageFile.ImageFile) and ExifTags.Base.Orientation in image.getexif():
            image = ImageOps.exif_transpose(image)
        photo = _convert(image, limits, to_srgb)
        return Decoded(photo.image, notes | photo.notes)


def _convert(image: Image.Image, limits: Interval | None, to_srgb: bool) -> Decoded:
    """An upright image of any mode in RGB."""
    if not is_gray(image):
        return Decoded(to_rgb(in_srgb(image) if to_srgb else image, limits), {})
    values = values_of(image)
    notes = notes_of_values([values], None if limits else _limits(values, image.mode)[1])
    if values.dtype.kind == "f":
        image = Image.fromarray(values)
    return Decoded(to_rgb(image, limits), notes)


def values_of(image: Image.Image) -> AnyArray:
    """The values (H, W) or (H, W, C) of an image; of gray ones, NaN for no data."""
    return mark_missing(np.asarray(image), getattr(image, "tag_v2", {}).get(NO_DATA_TAG))


def _load(image: Image.Image) -> Notes:
    """Decode an image; if it is truncated and that is allowed, what is there of it.

    Raises:
        ImageError: it is truncated.
    """
    try:
        image.load()
    except OSError as error:
        if "truncated" not in str(error).lower():
            raise
        share = _share_of_rows(image)
        problem = "it is truncated"
        if share:
            problem += f", and about {share:.0%} of its rows are there"
        if not _allows_truncated.get():
            advice = "copy it again, or let the command explain what can be read with --allow-truncated"
            raise ImageError(f"{problem}: {advice}") from error
    else:
        return {}
    # It is a switch of the whole process. Another thread that decodes now may read a truncated image without a note
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        image.load()
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    return {"truncated": f"{problem}; what is missing is gray or black, and maps are of the rest"}


def _share_of_rows(image: Any) -> float:
    """The share of the rows that were decoded before an error, as the others are 0; 0 if all are."""
    tile = image.tile
    image.tile = []  # so that Pillow does not decode it again
    rows = np.asarray(image).reshape(image.height, -1)
    image.tile = tile
    return min(float(rows.any(axis=1).mean()), 0.99)


def in_srgb(image: Image.Image) -> Image.Image:
    """The image with colors in sRGB, if it says that they are others."""
    content = image.info.get("icc_profile")
    if not content:
        return image
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(content))
        if "sRGB" in ImageCms.getProfileDescription(profile):
            return image
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode=mode)
    except (ImageCms.PyCMSError, OSError):  # the profile is broken, or not for this mode
        return image
    assert converted is not None
    del converted.info["icc_profile"]  # files without one are in sRGB
    return converted


@contextmanager
def reading(file: File | None = None) -> Iterator[None]:
    """Raise an ImageError, one sentence, for whatever Pillow raises of a file, or of an image that is open."""
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


def mark_missing(values: AnyArray, no_data: Any) -> AnyArray:
    """Values in which those are NaN that stand for no data, as the tag of GDAL says; the same values if there are none.

    Those of integers without a sign stay, as their whole range is from black to white.
    """
    if no_data is None or values.dtype.kind not in "fi":
        return values
    with suppress(ValueError):
        is_missing = values.astype(np.float32) == np.float32(str(no_data).strip("\0 "))
        if is_missing.any():
            return np.where(is_missing, np.float32(np.nan), values.astype(np.float32))
    return values


def notes_of_values(bands: Sequence[AnyArray], white: float | None) -> Notes:
    """What a user may not expect of values that are no colors.

    Args:
        bands: of any shape.
        white: the value that the network sees as white; None if the user chose it, or none is.

    Raises:
        ImageError: none of them is a finite number.
    """
    if bands[0].dtype.kind == "f":
        return _notes_of_missing(1 - float(np.mean([np.isfinite(band).mean() for band in bands])))
    high = int(max(band.max() for band in bands))
    if white is None or not 0 < high < _DARKEST * white:
        return {}
    end = (1 << high.bit_length()) - 1
    words = f"its highest value is {high} of {white:.0f}, so the network sees it nearly black"
    return {"dark": f"{words}: --range 0,{end} makes {end} white"}


def _notes_of_missing(share: float) -> Notes:
    if share == 1:
        raise ImageError(NOTHING_FINITE)
    if share == 0:
        return {}
    amount = f"{share:.1%}" if share >= _LEAST_SHARE else "less than 0.1%"
    words = f"{amount} of its values are no data (NaN, infinite, or marked so)"
    return {"no data": f"{words}: pictures have them in white"}


def check_pixels(size: Size) -> None:
    """Raise ImageError if an image of this size has more pixels than Pillow would decode."""
    if size[0] * size[1] > most_pixels():
        raise ImageError(TOO_MANY)


@contextmanager
def open_image(file: File) -> Iterator[Image.Image]:
    """Open an image of a format that Pillow decodes; any error of Pillow is passed on."""
    with open_file(file) as content, Image.open(content, formats=_formats()) as image:
        yield image


def open_container(av: Any, file: File) -> Any:
    """Open a file of a format of videos by FFmpeg, given PyAV; any error of PyAV is passed on."""
    # before PyAV 19, titles that are not UTF-8 were errors
    lenient = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
    return av.open(file, options={"format_whitelist": _DEMUXERS}, **lenient)


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


def to_rgb(image: Image.Image, limits: Interval | None = None) -> Image.Image:
    """Convert any Pillow mode to ``RGB``; transparent pixels become white, and so does what is no finite number.

    32-bit integers that fit into 16 bits are read as 16-bit values. Other 32-bit integers and floats have no fixed
    white, so they are scaled from their minimum to their maximum.

    Args:
        image: of any mode.
        limits: the values that become black and white, for integers of 16 or more bits and floats; None to choose them.

    Raises:
        ImageError: none of its values is a finite number.
    """
    if is_gray(image):
        values = np.asarray(image, dtype=np.float64)
        is_missing = ~np.isfinite(values)
        if is_missing.all():
            raise ImageError(NOTHING_FINITE)
        values = np.where(is_missing, values[~is_missing][0], values)
        low, high = limits or _limits(values, image.mode)
        levels = ((values - low) * (255 / (high - low or 1))).clip(0, 255)
        levels[is_missing] = 255
        return Image.fromarray(levels.round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode == "RGB":
        return image
    return image.convert("RGB")


def is_gray(image: Image.Image) -> bool:
    """Whether an image has numbers of more than 8 bits, which are no colors."""
    return image.mode.startswith(("I", "F"))


def _limits(values: AnyArray, mode: str) -> Interval:
    """The values that become black and white."""
    low = float(values.min())
    high = float(values.max())
    if mode != "F" and low >= 0 and high <= WHITE:
        return 0.0, WHITE
    return low, high


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
