"""Arrays of numbers: images (C, H, W) and volumes (C, D, H, W). What such media share, NumPy's files, and TIFF.

TIFF has more than photos: 16 bits, floats, many bands, slices, and positions on a map of the earth.
"""

import logging
import zipfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from PIL import Image

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Interval
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError, import_optional, sides
from ebcli.files.clips import ClipOptions, Clips, Slices
from ebcli.files.coordinates import Affine, Coordinates, GeoTags
from ebcli.files.images import (
    NO_DATA_TAG,
    WHITE,
    Contents,
    File,
    check_deflated,
    check_pixels,
    mark_missing,
    notes_of_values,
    open_file,
    reading,
)
from ebcli.files.media.medium import PHOTO, DisplayFrame, DisplayFrames, FileContent, InputFormat, register

_SAMPLE_SIZE = 1 << 20  # values that choose the ends of the gray scale
_LONGEST_HEADER = 1 << 16  # bytes
_BLACK_AND_WHITE = (1, 99)  # percentiles of values that are drawn so
_DEFLATE = (8, 32946)  # of the ways to compress
_CHANNELS = "SC"  # of tifffile's axes: samples and channels
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Data(NamedTuple):
    """What a file holds.

    Attributes:
        values: (C, H, W), or (C, D, H, W) of a volume.
        window: the values that are drawn black and white; None to choose them.
        affine: where the cells of a volume lie in space, if that is known.
    """

    values: AnyArray
    window: Interval | None = None
    affine: Affine | None = None


class Arrays(InputFormat):
    """Numbers instead of colors: images or volumes.

    Args:
        axes: those of the networks that get them, ``"HW"`` or ``"DHW"``.
    """

    def __init__(self, axes: str) -> None:
        self.axes = axes
        self.is_volume = axes == "DHW"
        self.unit = "volume" if self.is_volume else "image"

    @abstractmethod
    def load(self, file: File, spec: InputSpec) -> Data:
        """What a file holds; any exception says that it is broken."""

    def _load_oriented(self, file: File, spec: InputSpec) -> Data:
        data = self.load(file, spec)
        if not spec.orientation:
            return data
        affine = data.affine or Affine(np.eye(4), is_oriented=False)
        values, affine = affine.reorient(data.values, spec.orientation)
        return data._replace(values=values, affine=affine)

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> FileContent:
        with reading(file):
            values, _, affine = self._load_oriented(file, spec)
            *_, height, width = values.shape
            pixels = spec.read_array(values)
            bands = [values[number - 1] for number in spec.selected] or [*values]
            has_white = values.dtype.name == "uint16" and spec.range is None
            notes = notes_of_values(bands, WHITE if has_white else None)
            return FileContent(pixels, (width, height), _slices_of(values, affine), notes)

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        with reading(file):
            values, window, affine = self._load_oriented(file, spec)
        slices = _slices_of(values, affine)
        bands = (1, 2, 3) if len(values) > 2 else (1,)
        chosen = [values[number - 1] for number in spec.bands or bands]
        low, high = spec.range or window or _window(chosen)

        def draw(planes: Sequence[AnyArray]) -> Image.Image:
            levels = (np.stack(planes, -1).astype(np.float32) - low) * (255 / (high - low))
            levels[~np.isfinite(levels).all(-1)] = 255
            colors = levels.clip(0, 255).round().astype(np.uint8)
            return Image.fromarray(colors.repeat(3 // len(planes), -1))

        if slices is None:
            yield DisplayFrame(draw(chosen))
            return
        numbers = range(slices.total)
        if clips is None:  # as a thumbnail of a volume that no network has seen
            numbers = numbers[slices.total // 2 :][:1]
        for i in numbers:
            yield DisplayFrame(draw([slices.upright(band[i]) for band in chosen]), i, 0, i)

    def check(self, shape: Sequence[int], kind: np.dtype[Any]) -> None:
        """Raise ImageError if an array of this shape and data type is no image or volume, or too large to be read."""
        if kind.kind not in "buif":
            raise ImageError(f"its data type is {kind}, but integers or floats are needed")
        if len(shape) - len(self.axes) not in (0, 1) or min(shape) < 1:
            axes = ", ".join(self.axes)
            raise ImageError(
                f"it has {sides(shape) or 'no'} values, but an array ({axes}) or (C, {axes}) is needed"
            )
        check_pixels((shape[-1], prod(shape[:-1])))


def _slices_of(values: AnyArray, affine: Affine | None) -> Slices | None:
    """The slices of a volume (C, D, H, W); None of an image (C, H, W)."""
    if values.ndim == 3:
        return None
    depth = values.shape[1]
    return Slices(starts=(0,), frames=depth, frame_rate=1.0, total=depth, affine=affine)


def _window(bands: Sequence[AnyArray]) -> Interval:
    """The values that are drawn black and white: 0 and 255 of 8 bits, else all but the darkest and brightest ones."""
    if bands[0].dtype == np.uint8:
        return 0.0, 255.0
    step = 1 + bands[0].size // _SAMPLE_SIZE
    sample = np.concatenate([band.reshape(-1)[::step] for band in bands]).astype(np.float32)
    sample = sample[np.isfinite(sample)]
    if not sample.size:
        return 0.0, 1.0
    low, high = np.percentile(sample, _BLACK_AND_WHITE).tolist()
    if low == high:
        return low, low + 1
    return low, high


class NumPy(Arrays):
    """Files of NumPy."""

    suffixes = (".npy", ".npz")

    def load(self, file: File, spec: InputSpec) -> Data:
        with open_file(file) as content:
            if not zipfile.is_zipfile(content):
                content.seek(0)
                return Data(self._array(content))
            with zipfile.ZipFile(content) as archive:
                names = [name for name in archive.namelist() if name.endswith(".npy")]
                if len(names) != 1:
                    raise ImageError(
                        f"it has {len(names)} arrays, but one is needed: save the image on its own"
                    )
                with archive.open(names[0]) as member:
                    return Data(self._array(Contents(member, _LONGEST_HEADER)))

    def _array(self, file: Any) -> AnyArray:
        try:
            version = npy.read_magic(file)
        except ValueError as error:
            raise ImageError(f"it is neither an array nor another {self.unit} that can be read") from error
        if version not in _HEADERS:
            number = ".".join(map(str, version))
            raise ImageError(f"it has version {number} of NumPy's format, which is not for numbers")
        shape, is_fortran, kind = _HEADERS[version](file)
        self.check(shape, kind)
        size = prod(shape) * kind.itemsize
        if isinstance(file, Contents):
            file.limit += size
        content = file.read(size)
        if len(content) < size:
            raise ImageError(f"it is truncated: it has {len(content)} of {size} bytes")
        values = np.frombuffer(content, kind).reshape(shape, order="F" if is_fortran else "C")
        if values.ndim == len(self.axes):
            return values[None]
        return values


class Tiff(Arrays):
    """Those that Pillow reads as photos are read as photos by networks for photos."""

    suffixes = (".tif", ".tiff")

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> FileContent:
        if _is_photo(file, spec):
            return PHOTO.read(file, spec, part)
        return super().read(file, spec, part)

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        if _is_photo(file, spec):
            return PHOTO.frames(file, spec, part, clips)
        return super().frames(file, spec, part, clips)

    def pages(self, file: File) -> int:
        with suppress(Exception):  # of Pillow, which does not read all that tifffile reads
            if not self.is_volume:
                return PHOTO.pages(file)
        return 1

    def coordinates(self, file: File, spec: InputSpec) -> Coordinates | None:
        if self.is_volume:
            return None
        with suppress(Exception), _open_tiff(file) as tiff:  # Pillow read it, or tifffile is missing
            return GeoTags.from_page(tiff.pages[0])
        return None

    def load(self, file: File, spec: InputSpec) -> Data:
        with _open_tiff(file) as tiff:
            part = tiff.series[0] if self.is_volume else tiff.pages[0]
            if part.dtype is None:
                raise ImageError("its data type is none that tifffile reads")
            channels = [i for i, axis in enumerate(part.axes) if axis in _CHANNELS]
            slices = [i for i, axis in enumerate(part.axes) if axis not in f"{_CHANNELS}YX"]
            order = [*channels, *slices, part.axes.index("Y"), part.axes.index("X")]
            *depth, height, width = (part.shape[i] for i in order[len(channels) :])
            pages = [part]
            if self.is_volume:
                depth = [prod(depth)]
                pages = part.pages
            shape = [prod(part.shape[i] for i in channels), *depth, height, width]
            self.check(shape, part.dtype)
            _check_segments(tiff.filehandle, part.keyframe, pages)
            values = mark_missing(part.asarray(), tiff.pages[0].tags.valueof(NO_DATA_TAG))
            return Data(values.transpose(order).reshape(shape))


@contextmanager
def _open_tiff(file: File) -> Iterator[Any]:
    tifffile = import_optional("tifffile")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # of what is broken, this program says it
    # of what one file says about pages in others, nothing is read
    with (
        open_file(file) as content,
        tifffile.TiffFile(Contents(content), name="its file", _multifile=False) as tiff,
    ):
        yield tiff


def _check_segments(file: Any, first: Any, pages: Iterable[Any]) -> None:
    """Raise ImageError if a strip or a tile of a page is, or unpacks to, more than the page needs of it."""
    values = prod(first.chunks)
    if not first.is_tiled:
        values = min(values, first.size)
    check_pixels((values, 1))
    if first.compression not in _DEFLATE:
        return
    for page in pages:
        for start, size in zip(page.dataoffsets, page.databytecounts, strict=True):
            file.seek(start)
            check_deflated(file, size, values * first.dtype.itemsize)


def _is_photo(file: File, spec: InputSpec) -> bool:
    """Whether Pillow reads a file as the network gets photos."""
    if spec.axes != "HW" or not _takes_photos(spec):
        return False
    try:
        with _open_tiff(file) as tiff:
            page = tiff.pages[0]
            return is_tiff_photo(page.samplesperpixel, page.bitspersample, spec)
    except Exception:  # broken, or tifffile is missing: Pillow may read it
        return True


def is_tiff_photo(channels: int, bits: int, spec: InputSpec) -> bool:
    """Whether a network for images gets a TIFF image with so many channels, of so many bits, as it gets photos."""
    is_8_bit = bits <= 8 and channels in (1, 3, 4)
    is_gray = channels == 1 and spec.channels == 3
    return _takes_photos(spec) and (is_gray or (is_8_bit and spec.range is None))


def _takes_photos(spec: InputSpec) -> bool:
    return spec.channels in (1, 3) and not spec.selected


register(NumPy("HW"), NumPy("DHW"), Tiff("HW"), Tiff("DHW"))
