"""Files that name others, and small ones that unpack to large ones: what is read of them, in how much memory."""

import gzip
import io
import logging
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from bright_nets import dicom_series, volume
from PIL import Image
from pydicom.data import get_testdata_file
from watch import WATCH

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.sources import Source
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("watched")

MB = 1 << 20
IMAGES = InputSpec(None, resize=None, mean=(0.0,), std=(1.0,), channels=1, network="nets.py:gray")
VOLUMES = InputSpec(None, resize=None, fit="squash", mean=(0.0,), std=(1.0,), channels=1, depth=0)


def read(path: Path, spec: InputSpec, most: int | None = None) -> np.ndarray:
    loaded = Reader(spec, max_pixels=most).load(Source(path))
    assert loaded is not None
    return loaded.pixels


@pytest.mark.parametrize("spec", [IMAGES, VOLUMES])
def test_a_tiff_is_read_without_the_files_that_it_names(
    spec: InputSpec, elsewhere: Path, tmp_path: Path
) -> None:
    tifffile.imwrite(elsewhere / "secret.tif", np.full((4, 6), 77, np.uint16))
    named = [
        (str(elsewhere / "secret.tif"), 1, "b"),
        ("elsewhere/secret.tif", 2, "b"),
        ("own.ome.tif", 0, "a"),
    ]
    planes = "".join(
        f'<TiffData IFD="0" FirstZ="{at}" PlaneCount="1"><UUID FileName="{name}">urn:uuid:{key}</UUID></TiffData>'
        for name, at, key in named
    )
    text = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:a">'
        '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="6" SizeY="4" SizeZ="3"'
        f' SizeC="1" SizeT="1"><Channel ID="Channel:0"/>{planes}</Pixels></Image></OME>'
    )
    own = np.full((4, 6), 5, np.uint16)
    tifffile.imwrite(tmp_path / "own.ome.tif", own, description=text, metadata=None)
    assert tifffile.imread(tmp_path / "own.ome.tif").max() == 77  # so says the library
    tifffile.imwrite(elsewhere / "secret.tif", np.full((4, 6), 77, np.uint16))
    WATCH.seen.clear()
    assert (
        read(tmp_path / "own.ome.tif", spec).reshape(-1, 6).tolist()
        == (own / 65535).astype(np.float32).tolist()
    )


def _zeros(count: int) -> bytes:
    packed = zlib.compressobj(9)
    return b"".join([packed.compress(bytes(MB)) for _ in range(count)]) + packed.flush()


def _deflated_dicom() -> bytes:
    header, file = pydicom.dcmread(str(get_testdata_file("CT_small.dcm"))), io.BytesIO()
    header.PixelData = bytes(64 * MB)
    header.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    header.save_as(file, enforce_file_format=True)
    return file.getvalue()


def _tiff(compression: int, **options: Any) -> bytes:
    """A TIFF file of 64 x 64 pixels with a strip, or a tile, of 64 MB."""
    file, packed = io.BytesIO(), _zeros(64)
    tifffile.imwrite(file, np.zeros((64, 64), np.float32), compression=compression, **options)
    content = file.getvalue()
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        places = {tag.name: tag.valueoffset for tag in tiff.pages[0].tags}
    start, size = ("TileOffsets", "TileByteCounts") if options else ("StripOffsets", "StripByteCounts")
    changed = bytearray(content)
    struct.pack_into("<I", changed, places[start], len(content))
    kind = next(tag.dtype for tag in tifffile.TiffFile(io.BytesIO(content)).pages[0].tags if tag.name == size)
    if kind == 3:
        struct.pack_into("<HHI", changed, places[size] - 8 + 2, 4, 1, 0)  # as 32 bits
    struct.pack_into("<I", changed, places[size], len(packed))
    return bytes(changed) + packed


def _large_tile() -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((64, 64), np.float32), tile=(2048, 2048), compression=8)
    return file.getvalue()


def _nifti_with_extensions() -> bytes:
    image = nibabel.Nifti1Image(volume((4, 5, 6), (2, 2, 2)).T, np.eye(4))
    for _ in range(4):
        image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", bytes(16 * MB)))
    return gzip.compress(image.to_bytes())


def _nifti(*sides: int) -> bytes:
    content = bytearray(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.float32), np.eye(4)).to_bytes())
    struct.pack_into("<4h", content, 40, 3, *sides)
    return gzip.compress(bytes(content) + bytes(64 * MB))


def _npz_with_a_header(size: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + b" " * size)
    return file.getvalue()


TOO_MANY = "it has too many pixels: raise EB_SALIENCY_MAX_PIXELS"
BOMBS: dict[str, tuple[InputSpec, str, Callable[[], bytes], str]] = {
    "deflated DICOM": (IMAGES, "a.dcm", _deflated_dicom, TOO_MANY),
    "strip": (IMAGES, "a.tif", lambda: _tiff(8), TOO_MANY),
    "strip of a volume": (VOLUMES, "a.tif", lambda: _tiff(32946), TOO_MANY),
    "tile": (IMAGES, "a.tif", lambda: _tiff(8, tile=(64, 64)), TOO_MANY),
    "large tile": (IMAGES, "a.tif", _large_tile, TOO_MANY),
    "values": (VOLUMES, "a.nii.gz", lambda: _nifti(4000, 4000, 1), TOO_MANY),
    "array header": (IMAGES, "a.npz", lambda: _npz_with_a_header(64 * MB), TOO_MANY),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_on_the_way(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, file, content, said = BOMBS[name]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    (tmp_path / file).write_bytes(content())
    assert (tmp_path / file).stat().st_size < MB
    tracemalloc.start()
    try:
        with pytest.raises(ImageError) as caught:
            read(tmp_path / file, spec, most=MB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value) == said
    assert peak < 24 * MB


def test_extensions_of_a_volume_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.nii.gz").write_bytes(_nifti_with_extensions())
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=TOO_MANY):
            read(tmp_path / "a.nii.gz", VOLUMES)
        assert tracemalloc.get_traced_memory()[1] < 24 * MB
    finally:
        tracemalloc.stop()
    image = nibabel.Nifti1Image(volume((4, 5, 6), (2, 2, 2)).T, np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"of the scanner" * 1000))
    nibabel.save(image, tmp_path / "few.nii")
    assert read(tmp_path / "few.nii", VOLUMES).max() == np.asarray(image.dataobj).max()


def test_a_series_is_checked_before_its_pixels_are_read(tmp_path: Path) -> None:
    dicom_series(tmp_path / "ct", volume((3, 512, 512), (1, 2, 2)), (1, 1, 1), Rows=lambda i: 512 + i)
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=r"^its slices are of 3 sizes"):
            read(tmp_path / "ct", VOLUMES)
        assert tracemalloc.get_traced_memory()[1] < MB
    finally:
        tracemalloc.stop()


def test_a_width_without_a_center_is_no_window(tmp_path: Path) -> None:
    header = pydicom.dcmread(str(get_testdata_file("CT_small.dcm")))
    header.WindowWidth = 400
    header.save_as(tmp_path / "a.dcm")
    assert read(tmp_path / "a.dcm", IMAGES).shape == (128, 128, 1)


@pytest.mark.parametrize("shape", ["(-4, 4)", "(-4, -4)", "(1, -1, 16)"])
def test_a_side_less_than_one_is_refused(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "a.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
    )
    with pytest.raises(ImageError, match=r"^it has .* values, but an array"):
        read(tmp_path / "a.npy", IMAGES)


def test_a_library_says_nothing_about_a_broken_volume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.float32), np.eye(4)).to_bytes())
    struct.pack_into("<h", content, 254, 99)  # a code that does not exist
    struct.pack_into("<f", content, 108, 353.5)
    (tmp_path / "a.nii").write_bytes(content + bytes(8))
    with caplog.at_level(logging.DEBUG):
        read(tmp_path / "a.nii", VOLUMES)
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")
