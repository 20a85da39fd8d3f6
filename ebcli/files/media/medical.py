"""NIfTI volumes, and DICOM: images and volumes in files, and series of slices in directories.

No field about a patient is read. The axes of NIfTI are read as (z, y, x), and a fourth one as channels.
"""

import gzip
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from os.path import isdir
from pathlib import Path
from typing import Any

import numpy as np

from ebcli.datatypes.arrays import AnyArray, DoubleArray
from ebcli.datatypes.explanation import Interval
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import EbcliError, ImageError, import_optional
from ebcli.files.coordinates import Affine
from ebcli.files.images import Contents, File, check_deflated, most_pixels, open_file
from ebcli.files.media.array import Arrays, Data
from ebcli.files.media.medium import register
from ebcli.files.paths import safe_open

_PREAMBLE = 128  # bytes
_MAGIC = b"DICM"
_GAP = 0.1  # of the distance of slices, by which distances may differ
_NUMBERS = np.dtype(np.float32)
_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM's axes lead to the left and the back

_GZIP = b"\x1f\x8b"
_HEADER = 540  # bytes, of the longer version
_MOST_BEFORE = 1 << 26  # bytes, of the header and what is between it and the values


class Nifti(Arrays):
    """A volume, ``.nii`` or ``.nii.gz``."""

    network = "a network for volumes, such as --model FILE.py:FACTORY"
    suffixes = (".nii", ".nii.gz")

    def load(self, file: File, spec: InputSpec) -> Data:
        nibabel = import_optional("nibabel")
        with open_file(file) as content:
            is_packed = content.read(2) == _GZIP
            content.seek(0)
            try:
                stream = gzip.GzipFile(fileobj=content) if is_packed else content
                return self._volume(Contents(stream), nibabel)
            except (OSError, EOFError, zlib.error) as error:
                raise ImageError("it is truncated, or broken") from error

    def _volume(self, stream: Contents, nibabel: Any) -> Data:
        start = stream.read(_HEADER)
        kinds = nibabel.Nifti1Header, nibabel.Nifti2Header
        kind = next((kind for kind in kinds if kind.may_contain_header(start)), None)
        if kind is None:
            raise ImageError("it is no NIfTI file, or its header is broken")
        # without extensions, of which each can have any size
        header = kind(start[: kind.template_dtype.itemsize], check=False)
        shape = header.get_data_shape()[::-1]
        dtype = header.get_data_dtype()
        while len(shape) > 3 and shape[0] == 1:
            shape = shape[1:]
        self.check(shape, dtype)
        stream.limit = min(header.get_data_offset(), _MOST_BEFORE) + prod(shape) * dtype.itemsize
        values = header.data_from_fileobj(stream).T.reshape(-1, *shape[-3:])
        unit, _ = header.get_xyzt_units()
        if unit == "unknown":
            unit = "mm"
        is_oriented = bool(header["sform_code"] or header["qform_code"])
        return Data(values, affine=Affine(header.get_best_affine(), unit, is_oriented))


class Dicom(Arrays):
    """An image, or a volume: a file with several frames, or a directory of slices."""

    suffixes = (".dcm", ".ima")

    def recognizes(self, path: Path) -> bool:
        if isdir(path):
            return bool(self.files(path))
        return _is_dicom(path)

    def files(self, folder: Path) -> list[Path]:
        if not self.is_volume:
            return []
        with suppress(OSError, ImageError), _private():
            files = sorted(folder.glob("[!.]*"))
            is_series = len(files) > 1 and all(map(_is_dicom, files))
            if is_series and _frames(_header(files[0], True)) == 1:  # others are volumes themselves
                return files
        return []

    def load(self, file: File, spec: InputSpec) -> Data:
        with _private():
            files = self.files(file) if isinstance(file, Path) else []
            # all are checked before the pixels of any are read
            slices = _in_order(files) if files else {file: _header(file)}
            headers = list(slices.values())
            first = headers[0]
            frames = len(headers) * _frames(first)  # slices of a series have one each
            if frames > 1 and not self.is_volume:
                raise ImageError(f"it has {frames} frames, so it is no image: choose {Nifti.network}")
            sides = [frames, first.Rows, first.Columns]
            self.check([first.SamplesPerPixel, *sides[-len(self.axes) :]], _NUMBERS)
            with_pixels = map(_header, slices) if files else headers
            read_pixels = partial(_pixels, limits=spec.range)
            parts, windows = zip(*map(read_pixels, with_pixels), strict=True)
            values = np.concatenate(parts, 1)
            if self.is_volume:
                return Data(values, windows[0], _affine(headers))
            return Data(values[:, 0], windows[0])


def _in_order(files: Sequence[Path]) -> dict[File, Any]:
    """The slices of a series, and their headers, in the order of their positions."""
    slices: dict[File, Any] = {path: _header(path, True) for path in files}
    if not all(map(_has_position, slices.values())):
        raise ImageError("a slice of it has no position, so their order is unknown")
    facts = list(map(_common_facts, slices.values()))
    for kind in facts[0]:
        count = len({fact[kind] for fact in facts})
        if count > 1:
            raise ImageError(f"its slices are of {count} {kind}: give each series a directory of its own")
    slices = dict(sorted(slices.items(), key=lambda item: _depth(item[1])))
    depths = list(map(_depth, slices.values()))
    gaps = np.diff(depths)
    typical = np.median(gaps)
    if gaps.min() <= _GAP * typical:
        depth = depths[gaps.argmin()]
        raise ImageError(f"two of its slices are at {depth:g} mm: it is mixed of several series")
    if gaps.max() > (1 + _GAP) * typical:
        low, high, *_ = depths[gaps.argmax() :]
        raise ImageError(
            f"slices are missing between {low:g} and {high:g} mm, as most are {typical:g} mm apart"
        )
    return slices


def _common_facts(header: Any) -> dict[str, object]:
    """What all slices of a series have in common."""
    return {
        "series": header.get("SeriesInstanceUID"),
        "orientations": tuple(np.round(_directions(header), 3).ravel().tolist()),
        "sizes": (header.Rows, header.Columns, header.SamplesPerPixel, _frames(header)),
    }


@contextmanager
def _private() -> Iterator[None]:
    """Errors without what pydicom says of a file, which may quote fields about the patient."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (EbcliError, OSError, MemoryError):
        raise
    except Exception as error:  # broken files make pydicom raise nearly anything
        raise ImageError(f"it is broken, or no DICOM image ({type(error).__name__})") from None


def _is_dicom(path: Path) -> bool:
    try:
        with safe_open(path) as file:
            file.seek(_PREAMBLE)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _frames(header: Any) -> int:
    return int(header.get("NumberOfFrames") or 1)


def _header(file: File, is_short: bool = False) -> Any:
    """A data set whose pixels are not decoded yet; a short one has none."""
    pydicom = import_optional("pydicom")
    with open_file(file) as content:
        reader = pydicom.filereader
        reader.read_preamble(content, True)
        syntax = reader._read_file_meta_info(content).get("TransferSyntaxUID")
        if syntax == pydicom.uid.DeflatedExplicitVRLittleEndian:
            check_deflated(content, sys.maxsize, _NUMBERS.itemsize * most_pixels(), -zlib.MAX_WBITS)
        content.seek(0)
        header = pydicom.dcmread(content, force=True, stop_before_pixels=is_short)
    if "PixelData" in header or is_short:
        return header
    if "Rows" in header:
        raise ImageError("it has no pixels, or is truncated")
    raise ImageError("it is no DICOM image")


def _pixels(header: Any, limits: Interval | None) -> tuple[AnyArray, Interval | None]:
    """The values (C, D, H, W), gray ones in units of the modality, and which of them are drawn black and white.

    Values of MONOCHROME1, of which large ones are dark, are mirrored: between the limits that the user chose in the
    file's units, or else between the ends of what the file can store.
    """
    pixels = import_optional("pydicom.pixels")
    colors = header.PhotometricInterpretation
    try:
        values = pixels.pixel_array(header)  # in RGB
    except (NotImplementedError, RuntimeError):
        syntax = header.file_meta.TransferSyntaxUID.name
        raise ImageError(
            f"its pixels are compressed or encrypted as {syntax}, which no installed decoder reads: "
            "decompress it, or pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        ) from None
    if colors == "PALETTE COLOR":
        values = pixels.apply_color_lut(values, header)
    channels = 1 if colors.startswith("MONOCHROME") else 3
    values = values.reshape(-1, header.Rows, header.Columns, channels).transpose(3, 0, 1, 2)
    if channels == 3:
        return values, None
    slope = float(header.get("RescaleSlope") or 1)
    intercept = float(header.get("RescaleIntercept") or 0)
    values = values.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    center, width = _window(header)
    if colors == "MONOCHROME1":
        ends = sum(limits or _stored_limits(header, slope, intercept))
        values = np.float32(ends) - values
        center = ends - center
    low = center - width / 2
    high = center + width / 2
    if low < high:
        return values, (low, high)
    return values, None


def _stored_limits(header: Any, slope: float, intercept: float) -> Interval:
    """The least and the greatest value that a file can store, in units of the modality."""
    count = 1 << header.BitsStored
    lowest = -count // 2 if header.PixelRepresentation else 0
    return lowest * slope + intercept, (lowest + count - 1) * slope + intercept


def _window(header: Any) -> Interval:
    """The center and the width of the values that are drawn black and white; the width is 0 if they are unknown."""
    if not header.get("WindowWidth") or "WindowCenter" not in header:
        return 0.0, 0.0
    center, width = (float(np.atleast_1d(header[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
    return center, width


def _has_position(header: Any) -> bool:
    return "ImagePositionPatient" in header and "ImageOrientationPatient" in header


def _directions(header: Any) -> DoubleArray:
    """The directions (2, 3) in which columns and rows follow each other."""
    return np.array(header.ImageOrientationPatient, np.float64).reshape(2, 3)


def _position(header: Any) -> DoubleArray:
    return np.array(header.ImagePositionPatient, np.float64)


def _depth(header: Any) -> float:
    """The position of a slice along the normal of all slices, in millimeters."""
    return float(np.cross(*_directions(header)) @ _position(header))


def _affine(headers: Sequence[Any]) -> Affine | None:
    """Where slices that are sorted by position lie, or the frames of a file; None if it does not say."""
    first = headers[0]
    if not _has_position(first):
        return None
    down, across = map(float, first.get("PixelSpacing") or (1, 1))
    columns, rows = _directions(first)
    if len(headers) > 1:
        step = (_position(headers[-1]) - _position(first)) / (len(headers) - 1)
    else:
        thickness = first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1
        step = np.cross(columns, rows) * float(thickness)
    matrix = np.eye(4)
    matrix[:3] = np.stack([columns * across, rows * down, step, _position(first)], 1)
    return Affine(_TO_RAS @ matrix)


register(Nifti("DHW"), Dicom("HW"), Dicom("DHW"))
