"""Arrays, TIFF, NIfTI and DICOM files whose headers say anything: read, or refused in one sentence."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from bright_nets import dicom_series, volume
from PIL import Image
from pydicom.data import get_testdata_file
from test_array_media import images, volumes

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.sources import Source
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("watched")


def _npy(shape: str, kind: str = "'<f4'", content: bytes = b"") -> bytes:
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + content


def _packed(*names: str) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: np.zeros((4, 4)) for name in names})
    return file.getvalue()


def _bomb() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, np.zeros((2000, 2000), np.float32))
    return file.getvalue()


def _nifti(change: Callable[[bytearray], None]) -> bytes:
    content = bytearray(nibabel.Nifti1Image(volume((4, 5, 6), (2, 2, 2)).T, np.eye(4)).to_bytes())
    change(content)
    return bytes(content)


def _dims(*sides: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into(f"<{len(sides)}h", content, 40, *sides)


def _dicom(name: str, **changes: Any) -> bytes:
    header, file = pydicom.dcmread(str(get_testdata_file(name))), io.BytesIO()
    for field, value in changes.items():
        setattr(header, field, value)
    header.save_as(file)
    return file.getvalue()


def _syntax(uid: str) -> bytes:
    content = _dicom("CT_small.dcm")
    header, file = pydicom.dcmread(io.BytesIO(content)), io.BytesIO()
    header.file_meta.TransferSyntaxUID = pydicom.uid.UID(uid)
    header.save_as(file, enforce_file_format=False, implicit_vr=False, little_endian=True)
    return file.getvalue()


HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "truncated": (
        "a.npy",
        lambda: _npy("(1, 4, 4)", content=bytes(9)),
        "it is truncated: it has 9 of 64 bytes",
    ),
    "lying": (
        "a.npy",
        lambda: _npy("(1, 999999, 99999)", content=bytes(64)),
        "it has too many pixels: raise EB_SAL",
    ),
    "objects": (
        "a.npy",
        lambda: _npy("(2, 2)", "'|O'", bytes(32)),
        "its data type is object, but integers or floats",
    ),
    "complex": (
        "a.npy",
        lambda: _npy("(2, 2)", "'<c8'", bytes(32)),
        "its data type is complex64, but integers or fl",
    ),
    "text": (
        "a.npy",
        lambda: _npy("(2, 2)", "'<U8'", bytes(128)),
        "its data type is <U8, but integers or floats",
    ),
    "no axes": (
        "a.npy",
        lambda: _npy("()", content=bytes(4)),
        "it has no values, but an array (H, W) or (C, H, W)",
    ),
    "axes": (
        "a.npy",
        lambda: _npy("(1, 2, 2, 2)", content=bytes(32)),
        "it has 1 x 2 x 2 x 2 values, but an array (H, ",
    ),
    "empty": ("a.npy", lambda: _npy("(0, 4)"), "it has 0 x 4 values"),
    "no header": ("a.npy", lambda: b"\x93NUMPY\x01\x00\xff\xff{'descr'", "it is broken: "),
    "pickle": ("a.npy", lambda: b"\x80\x04\x95", "it is neither an array nor another image that can be read"),
    "several": ("a.npz", lambda: _packed("a", "b"), "it has 2 arrays, but one is needed"),
    "bomb": ("a.npz", _bomb, "it has too many pixels"),
    "not finite": (
        "a.npy",
        lambda: _npy("(1, 1)", content=struct.pack("<f", np.nan)),
        "none of its values is a finite number",
    ),
    "channels": (
        "a.npy",
        lambda: _npy("(4, 2, 2)", content=bytes(64)),
        "it has 4 channels, but nets.py:gray takes 1",
    ),
    "tiff": ("a.tif", lambda: b"II*\x00\x08\x00\x00\x00\xff\xff", "not an image that Pillow can read"),
    "frames": (
        "a.dcm",
        lambda: Path(str(get_testdata_file("rtdose.dcm"))).read_bytes(),
        "it has 15 frames, so it is no ",
    ),
    "jpeg-ls": (
        "a.dcm",
        lambda: Path(str(get_testdata_file("MR_small_jpeg_ls_lossless.dcm"))).read_bytes(),
        "its pixels are compressed or encrypted as JPEG-LS Lossless Image Compression, which no installed decoder",
    ),
    "private": (
        "a.dcm",
        lambda: _syntax("1.2.3.4.5"),
        "its pixels are compressed or encrypted as 1.2.3.4.5, which no",
    ),
    "dicom bomb": (
        "a.dcm",
        lambda: _dicom("CT_small.dcm", Rows=60000, Columns=60000),
        "it has too many pixels",
    ),
    "dicom cut": ("a.dcm", lambda: _dicom("CT_small.dcm")[:20000], "it is "),
    "field": (
        "a.dcm",
        lambda: _dicom("CT_small.dcm").replace(b"-1024 ", b"DoeJon"),
        "it is broken, or no DICOM image (ValueError)",  # it may be a field about the patient, so it is not quoted
    ),
    "no dicom": ("a.dcm", lambda: b"text" * 100, "it is no DICOM image"),
    "plan": (
        "a.dcm",
        lambda: Path(str(get_testdata_file("rtplan.dcm"))).read_bytes(),
        "it is no DICOM image",
    ),
}
OF_VOLUMES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut": ("a.nii", lambda: _nifti(lambda content: None)[:-40], "it is truncated, or broken"),
    "header cut": (
        "a.nii",
        lambda: _nifti(lambda content: None)[:100],
        "it is no NIfTI file, or its header is broken",
    ),
    "dims": (
        "a.nii",
        lambda: _nifti(_dims(3, 30000, 30000, 30000)),
        "it has too many pixels: raise EB_SALIENCY_",
    ),
    "negative": ("a.nii", lambda: _nifti(_dims(3, -5, 5, 6)), "it "),
    "complex": (
        "a.nii",
        lambda: _nifti(lambda content: struct.pack_into("<hh", content, 70, 32, 64)),
        "its data type is ",
    ),
    "not packed": ("a.nii.gz", lambda: b"\x1f\x8b" + bytes(40), "it is truncated, or broken"),
    "packed cut": (
        "a.nii.gz",
        lambda: gzip.compress(_nifti(lambda content: None))[:60],
        "it is truncated, or broken",
    ),
    "photo": ("a.jpg", lambda: b"\xff\xd8\xff", "it is neither an array nor another volume that can be read"),
    "two channels": (
        "a.npy",
        lambda: _npy("(2, 1, 2, 2)", content=bytes(32)),
        "it has 2 channels, but nets.py:gray takes",
    ),
}


@pytest.mark.parametrize("name", [*HOSTILE, *(f"volume: {name}" for name in OF_VOLUMES)])
def test_what_cannot_be_read_ends_in_one_sentence(name: str, tmp_path: Path) -> None:
    is_volume = name.startswith("volume: ")
    suffix, content, said = OF_VOLUMES[name.removeprefix("volume: ")] if is_volume else HOSTILE[name]
    (tmp_path / suffix).write_bytes(content())
    spec = volumes(network="nets.py:gray") if is_volume else images(1, network="nets.py:gray")
    before = Image.MAX_IMAGE_PIXELS
    try:
        with pytest.raises(ImageError) as caught:
            Reader(spec, max_pixels=1_000_000).load(Source(tmp_path / suffix))
    finally:
        Image.MAX_IMAGE_PIXELS = before
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"SeriesInstanceUID": lambda i: f"1.2.{i // 3}"},
            "its slices are of 2 series: give each series a directory",
        ),
        (
            {"ImagePositionPatient": lambda i: [0, 0, i + 2 * (i > 2)]},
            "slices are missing between 2 and 5 mm, as most",
        ),
        (
            {"ImagePositionPatient": lambda i: [0, 0, i - (i > 1)]},
            "two of its slices are at 1 mm: it is mixed of",
        ),
        (
            {"ImageOrientationPatient": lambda i: [1, 0, 0, 0, i % 2, 1 - i % 2]},
            "its slices are of 2 orientations",
        ),
    ],
)
def test_series_with_missing_or_mixed_slices_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    dicom_series(tmp_path / "ct", volume((6, 4, 4), (3, 2, 2)), (1, 1, 1), **changes)
    with pytest.raises(ImageError) as caught:
        Reader(volumes()).load(Source(tmp_path / "ct"))
    assert str(caught.value).startswith(said)


def test_of_a_large_array_no_more_is_held_than_the_file_has(tmp_path: Path) -> None:
    """A sparse file of 75 MB, of which one channel of a thousand is looked at."""
    before = Image.MAX_IMAGE_PIXELS
    path, size = tmp_path / "a.npy", 4 * 1000 * 150 * 125
    path.write_bytes(_npy("(1000, 150, 125)"))
    os.truncate(path, path.stat().st_size + size)
    spec = InputSpec((8, 8), resize=(8,), fit="squash", mean=(0.0,), std=(1.0,), channels=1, selected=(1000,))
    tracemalloc.start()
    try:
        assert Reader(spec, max_pixels=2_000_000_000).load(Source(path)).pixels.shape == (8, 8, 1)  # type: ignore[union-attr]
        assert tracemalloc.get_traced_memory()[1] < 1.1 * size
    finally:
        tracemalloc.stop()
        Image.MAX_IMAGE_PIXELS = before
