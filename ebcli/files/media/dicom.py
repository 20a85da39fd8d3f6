"""DICOM: images and volumes in files, and series of slices in directories. No field about a patient is read."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ebcli.errors import EbcliError, ImageError
from ebcli.files.coordinates import Affine
from ebcli.files.input_spec import InputSpec
from ebcli.files.media.array import Arrays, Data, opened
from ebcli.files.media.medium import register
from ebcli.files.safe_open import safe_open
from ebcli.imports import import_optional

_SUFFIXES = {".dcm", ".ima"}
_PREAMBLE, _MAGIC = 128, b"DICM"
_GAP = 0.1  # of the distance of slices, by which distances may differ
_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM's axes lead to the left and the back


class Dicom(Arrays):
    """An image, or a volume: a file with several frames, or a directory of slices."""

    def has_suffix(self, path: Path) -> bool:
        return path.suffix.lower() in _SUFFIXES

    def recognizes(self, path: Path) -> bool:
        return bool(self.files(path)) if os.path.isdir(path) else _is_dicom(path)

    def files(self, folder: Path) -> list[Path]:
        if self.axes != "DHW":
            return []
        try:
            files = [folder / entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")]
        except OSError:
            return []
        return sorted(files) if len(files) > 1 and all(map(_is_dicom, files)) else []

    def load(self, file: Path | IO[bytes], spec: InputSpec) -> Data:
        with _private():
            if isinstance(file, Path) and os.path.isdir(file):
                return self._series([_header(one) for one in self.files(file)])
            return self._of_file(_header(file))

    def _of_file(self, header: Any) -> Data:
        frames, channels = _number(header, "NumberOfFrames"), _number(header, "SamplesPerPixel")
        shape = [channels] if channels > 1 else []
        shape += [frames] if self.axes == "DHW" or frames > 1 else []
        shape += [_number(header, "Rows"), _number(header, "Columns")]
        self.check(shape, np.dtype(np.float32))
        values, window = _pixels(header)
        values = values.reshape(frames, *shape[-2:], channels).transpose(3, 0, 1, 2)
        if self.axes == "HW":
            return Data(values[:, 0], window)
        return Data(values, window, _affine([header], frames))

    def _series(self, headers: Sequence[Any]) -> Data:
        """Slices in the order of their positions."""
        for name, what in (("SeriesInstanceUID", "series"), ("ImageOrientationPatient", "orientations")):
            if (count := len({str(header.get(name)) for header in headers})) > 1:
                raise ImageError(f"its files are of {count} {what}: give each a directory of its own")
        shapes = {(_number(one, "Rows"), _number(one, "Columns")) for one in headers}
        if len(shapes) > 1 or any(_number(one, "NumberOfFrames") > 1 for one in headers):
            raise ImageError("its slices have different sizes: give each series a directory of its own")
        if any("ImagePositionPatient" not in one or "ImageOrientationPatient" not in one for one in headers):
            raise ImageError("a slice of it has no position, so their order is unknown")
        height, width = shapes.pop()
        self.check((len(headers), height, width), np.dtype(np.float32))
        headers = sorted(headers, key=_depth)
        gaps = np.diff([_depth(header) for header in headers])
        usual, narrow, wide = float(np.median(gaps)), int(gaps.argmin()), int(gaps.argmax())
        if gaps[narrow] <= _GAP * usual:
            raise ImageError(f"two of its slices are at {_depth(headers[narrow]):g} mm: give each series its directory")
        if gaps[wide] > (1 + _GAP) * usual:
            ends = [_depth(header) for header in headers[wide : wide + 2]]
            raise ImageError(
                f"slices are missing between {ends[0]:g} and {ends[1]:g} mm, as most are {usual:g} mm apart"
            )
        slices = [_pixels(header) for header in headers]
        if any(values.ndim != 2 for values, _ in slices):
            raise ImageError("its slices are in color, but volumes of numbers are needed")
        return Data(np.stack([values for values, _ in slices])[None], slices[0][1], _affine(headers, len(headers)))


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Errors without what pydicom says of a file, which may quote fields about the patient."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (EbcliError, OSError):
        raise
    except Exception as error:  # broken files make pydicom raise nearly anything
        raise ImageError(f"it is broken, or no DICOM image ({type(error).__name__})") from None


def _is_dicom(path: Path) -> bool:
    try:
        with safe_open(path) as file:
            return file.read(_PREAMBLE + len(_MAGIC))[_PREAMBLE:] == _MAGIC
    except OSError:
        return False


def _header(file: Path | IO[bytes]) -> Any:
    """A data set whose pixels are not decoded yet."""
    pydicom = import_optional("pydicom")
    with opened(file) as content:
        header = pydicom.dcmread(content, force=True)
    if "PixelData" not in header:
        raise ImageError("it has no pixels, or is truncated" if "Rows" in header else "it is no DICOM image")
    return header


def _number(header: Any, name: str) -> int:
    return int(header.get(name) or 1)


def _pixels(header: Any) -> tuple[NDArray[Any], tuple[float, float] | None]:
    """Values in the units of the modality, brighter ones larger, and those that are drawn black and white."""
    pixels = import_optional("pydicom.pixels")
    syntax = header.file_meta.TransferSyntaxUID
    try:
        decoder = pixels.get_decoder(syntax)
    except NotImplementedError:
        raise ImageError(f"there is no decoder for its transfer syntax, {syntax.name}") from None
    if not decoder.is_available:
        raise ImageError(
            f"its pixels are compressed as {syntax.name}, which needs a decoder: pip install pylibjpeg "
            "pylibjpeg-libjpeg pylibjpeg-openjpeg, or decompress it"
        )
    values = header.pixel_array
    if header.PhotometricInterpretation.startswith("YBR"):
        values = pixels.convert_color_space(values, header.PhotometricInterpretation, "RGB", per_frame=True)
    window = None
    slope, intercept = float(header.get("RescaleSlope") or 1), float(header.get("RescaleIntercept") or 0)
    if (slope, intercept) != (1, 0):
        values = values * np.float32(slope) + np.float32(intercept)
    if "WindowCenter" in header and "WindowWidth" in header:
        center, width = (np.atleast_1d(header[name].value)[0] for name in ("WindowCenter", "WindowWidth"))
        window = float(center) - float(width) / 2, float(center) + float(width) / 2
    if header.PhotometricInterpretation == "MONOCHROME1":
        lowest = -(1 << (header.BitsStored - 1)) if header.PixelRepresentation else 0
        total = (2 * lowest + (1 << header.BitsStored) - 1) * slope + 2 * intercept  # of the two ends
        values, window = np.float32(total) - values, window and (total - window[1], total - window[0])
    return values, window if window and window[1] > window[0] else None


def _orientation(header: Any) -> NDArray[np.float64]:
    """The directions (2, 3) in which columns and rows follow each other."""
    return np.array(header.ImageOrientationPatient, np.float64).reshape(2, 3)


def _depth(header: Any) -> float:
    """The position of a slice along the normal of all slices, in millimeters."""
    return float(np.cross(*_orientation(header)) @ np.array(header.ImagePositionPatient, np.float64))


def _affine(headers: Sequence[Any], count: int) -> Affine | None:
    """Where slices that are sorted by position lie; None if the first one does not say."""
    first = headers[0]
    if "ImagePositionPatient" not in first or "ImageOrientationPatient" not in first:
        return None
    down, across = map(float, first.get("PixelSpacing") or (1, 1))
    columns, rows = _orientation(first)
    step = np.cross(columns, rows) * float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1)
    if len(headers) > 1:
        ends = [np.array(header.ImagePositionPatient, np.float64) for header in (first, headers[-1])]
        step = (ends[1] - ends[0]) / (count - 1)
    matrix = np.eye(4)
    matrix[:3] = np.stack([columns * across, rows * down, step, np.array(first.ImagePositionPatient, np.float64)], 1)
    return Affine(_TO_RAS @ matrix)


register(Dicom("HW"))
register(Dicom("DHW"))
