"""TIFF files with more than photos have: 16 bits, floats, many bands, slices, and positions on a map of the earth."""

import contextlib
import logging
import math
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from ebcli.errors import ImageError
from ebcli.files.coordinates import Coordinates, GeoTags
from ebcli.files.frame_ranges import ClipOptions, Clips
from ebcli.files.images import Contents, File, check_deflated, check_pixels, opened
from ebcli.files.media.array import Arrays, Data
from ebcli.files.media.medium import PHOTO, Pixels, Shown, register
from ebcli.imports import import_optional
from ebcli.nouns.input_spec import InputSpec

_DEFLATE = 8, 32946  # of the ways to compress
_CHANNELS = "SC"  # of tifffile's axes: samples and channels


class Tiff(Arrays):
    """Those that Pillow reads as photos are read as photos by networks for photos."""

    def has_suffix(self, path: Path) -> bool:
        return path.suffix.lower() in {".tif", ".tiff"}

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> Pixels:
        return PHOTO.read(file, spec, part) if _is_photo(file, spec) else super().read(file, spec, part)

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> Generator[Shown]:
        if _is_photo(file, spec):
            return PHOTO.frames(file, spec, part, clips)
        return super().frames(file, spec, part, clips)

    def pages(self, file: File) -> int:
        with contextlib.suppress(Exception):  # of Pillow, which does not read all that tifffile reads
            return PHOTO.pages(file) if self.axes == "HW" else 1
        return 1

    def coordinates(self, file: File, spec: InputSpec) -> Coordinates | None:
        if self.axes != "HW":
            return None
        with contextlib.suppress(Exception), _opened(file) as tiff:  # Pillow read it, or tifffile is missing
            return GeoTags.of({tag.code: tag for tag in tiff.pages[0].tags})
        return None

    def load(self, file: File, spec: InputSpec) -> Data:
        with _opened(file) as tiff:
            part = tiff.pages[0] if self.axes == "HW" else tiff.series[0]
            if part.dtype is None:
                raise ImageError("its data type is none that tifffile reads")
            channels = [i for i, axis in enumerate(part.axes) if axis in _CHANNELS]
            order = channels + [i for i, axis in enumerate(part.axes) if axis not in f"{_CHANNELS}YX"]
            order += [part.axes.index("Y"), part.axes.index("X")]
            *depth, height, width = (part.shape[i] for i in order[len(channels) :])
            shape = [math.prod(part.shape[i] for i in channels), *depth, height, width]
            if self.axes == "DHW":
                shape[1:-2] = [math.prod(depth)]
            self.check(shape, part.dtype)
            _check_segments(tiff.filehandle, part.keyframe, part.pages if self.axes == "DHW" else [part])
            return Data(part.asarray().transpose(order).reshape(shape))


@contextlib.contextmanager
def _opened(file: File) -> Iterator[Any]:
    tifffile = import_optional("tifffile")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # of what is broken, this program says it
    # of what one file says about pages in others, nothing is read
    with opened(file) as content, tifffile.TiffFile(Contents(content), name="its file", _multifile=False) as tiff:
        yield tiff


def _check_segments(file: Any, first: Any, pages: Iterable[Any]) -> None:
    """Raise ImageError if a strip or a tile of a page is, or unpacks to, more than the page needs of it."""
    values = math.prod(first.chunks) if first.is_tiled else min(math.prod(first.chunks), first.size)
    check_pixels((values, 1))
    if first.compression in _DEFLATE:
        for page in pages:
            for start, size in zip(page.dataoffsets, page.databytecounts, strict=True):
                file.seek(start)
                check_deflated(file, size, values * first.dtype.itemsize)


def _is_photo(file: File, spec: InputSpec) -> bool:
    """Whether Pillow reads a file as the network gets photos."""
    if spec.axes != "HW" or spec.channels not in (1, 3) or spec.selected or spec.range:
        return False
    try:
        with _opened(file) as tiff:
            page = tiff.pages[0]
            is_8_bit = page.bitspersample <= 8 and page.samplesperpixel in (1, 3, 4)
            return is_8_bit or (page.samplesperpixel == 1 and spec.channels == 3)
    except Exception:  # broken, or tifffile is missing: Pillow may read it
        return True


register(Tiff("HW"))
register(Tiff("DHW"))
