"""Arrays, TIFF, NIfTI and DICOM: what the network gets of them, and what is said of those that it cannot get."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
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

from ebcli.errors import ImageError
from ebcli.files.frame_ranges import ClipOptions, Slices
from ebcli.files.media.medium import Shown
from ebcli.files.sources import Source
from ebcli.nouns.input_spec import InputSpec
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("watched")

ALL = ClipOptions()


def images(channels: int, **more: Any) -> InputSpec:
    return InputSpec(None, resize=None, mean=(0.0,) * channels, std=(1.0,) * channels, channels=channels, **more)


def volumes(channels: int = 1, depth: int = 0, **more: Any) -> InputSpec:
    return InputSpec(None, resize=None, fit="squash", mean=(0.0,), std=(1.0,), channels=channels, depth=depth, **more)


def read(path: Path, spec: InputSpec) -> np.ndarray:
    loaded = Reader(spec).load(Source(path))
    assert loaded is not None
    return loaded.pixels


def shown(path: Path, spec: InputSpec) -> list[Shown]:
    reader = Reader(spec)
    loaded = reader.load(Source(path))
    assert loaded is not None
    return list(reader.frames(Source(path), loaded))


def test_arrays_are_read_as_they_are_stored(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((5, 6, 7))
    for name, stored in {
        "float64": values,
        "fortran": np.asfortranarray(values),
        "big": values.astype(">f4"),
        "half": values.astype(np.float16),
    }.items():
        np.save(tmp_path / name, stored)
        np.testing.assert_allclose(read(tmp_path / f"{name}.npy", images(5)), stored.transpose(1, 2, 0), rtol=1e-6)
    np.savez_compressed(tmp_path / "packed", values)
    np.testing.assert_allclose(read(tmp_path / "packed.npz", images(5)), values.transpose(1, 2, 0), rtol=1e-6)
    np.save(tmp_path / "flat", values[0])
    np.testing.assert_allclose(read(tmp_path / "flat.npy", images(1))[..., 0], values[0], rtol=1e-6)
    np.testing.assert_allclose(read(tmp_path / "big.npy", volumes())[..., 0], values, rtol=1e-6)


def test_integers_without_a_sign_become_0_to_1_and_a_range_decides_otherwise(tmp_path: Path) -> None:
    for kind, top in ((np.uint8, 255), (np.uint16, 65535), (np.int16, 1), (np.int64, 1), (np.bool_, 1)):
        np.save(tmp_path / "a", np.array([[0, 1], [1, 0]], kind))
        np.testing.assert_allclose(read(tmp_path / "a.npy", images(1))[..., 0], np.array([[0, 1], [1, 0]]) / top)
    np.save(tmp_path / "a", np.array([[100, 150, 300]], np.uint16))
    np.testing.assert_allclose(read(tmp_path / "a.npy", images(1, range=(100, 200)))[0, :, 0], [0, 0.5, 2])


def test_channels_are_chosen_and_bands_are_shown(tmp_path: Path) -> None:
    values = np.arange(4 * 2 * 2, dtype=np.float32).reshape(4, 2, 2)
    np.save(tmp_path / "a", values)
    found = read(tmp_path / "a.npy", images(2, selected=(4, 1)))
    np.testing.assert_array_equal(found.transpose(2, 0, 1), values[[3, 0]])
    (frame,) = shown(tmp_path / "a.npy", images(4, bands=(3, 2, 1), range=(0, 255)))
    np.testing.assert_array_equal(np.asarray(frame.image).transpose(2, 0, 1), values[[2, 1, 0]])
    (frame,) = shown(tmp_path / "a.npy", images(4, bands=(2,), range=(4, 7)))
    np.testing.assert_array_equal(np.asarray(frame.image)[..., 0], [[0, 85], [170, 255]])
    for option, wrong in (("bands", images(4, bands=(5,))), ("channels", images(1, selected=(5,)))):
        with pytest.raises(ImageError, match=f"it has 4 channels, but --{option} names channel 5"):
            read(tmp_path / "a.npy", wrong)  # before the network has worked for nothing


def test_arrays_are_resized_and_cropped_as_photos_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    np.save(tmp_path / "a", pixels.transpose(2, 0, 1))
    for spec in (
        InputSpec((16, 16), resize=(20,)),
        InputSpec((16, 16), resize=(16,), fit="squash"),
        InputSpec((16, 16), resize=(16,), fit="pad"),
        InputSpec((32, 32), resize=(32,), fit="whole"),
    ):
        found = read(tmp_path / "a.npy", spec)
        as_photo = spec.read(Image.fromarray(pixels)) / 255
        assert found.shape == as_photo.shape
        assert np.abs(found.clip(0, 1) - as_photo).max() < 1.5 / 255


def test_volumes_are_resized_along_all_axes(tmp_path: Path) -> None:
    np.save(tmp_path / "a", volume((20, 30, 40), (5, 20, 10), np.float32))
    spec = InputSpec((15, 15), resize=(15,), fit="squash", mean=(0.0,), std=(1.0,), channels=1, depth=10)
    found = read(tmp_path / "a.npy", spec)
    assert found.shape == (10, 15, 15, 1)
    at = np.unravel_index(found.argmax(), found.shape)
    np.testing.assert_allclose(np.array(at[:3]) + 0.5, [5.5 / 2, 20.5 / 2, 10.5 * 15 / 40], atol=0.51)


def test_tiff_of_many_bands_16_bits_floats_and_pages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bands = rng.integers(0, 65536, (13, 8, 9), np.uint16)
    tifffile.imwrite(tmp_path / "planes.tif", bands, planarconfig="separate", photometric="minisblack")
    tifffile.imwrite(tmp_path / "pixels.tif", bands.transpose(1, 2, 0), planarconfig="contig", photometric="minisblack")
    for name in ("planes.tif", "pixels.tif"):
        np.testing.assert_allclose(read(tmp_path / name, images(13)), bands.transpose(1, 2, 0) / 65535, rtol=1e-6)
    gray = rng.random((8, 9)).astype(np.float32) * 1000
    tifffile.imwrite(tmp_path / "gray.tif", gray)
    np.testing.assert_allclose(read(tmp_path / "gray.tif", images(1))[..., 0], gray)
    assert read(tmp_path / "gray.tif", InputSpec(None, resize=None)).dtype == np.uint8  # as Pillow reads it for photos
    tifffile.imwrite(tmp_path / "color.tif", bands[:3].transpose(1, 2, 0), photometric="rgb")
    np.testing.assert_allclose(
        read(tmp_path / "color.tif", InputSpec(None, resize=None)), bands[:3].transpose(1, 2, 0) / 65535, rtol=1e-6
    )
    pages = rng.random((6, 8, 9)).astype(np.float32)
    tifffile.imwrite(tmp_path / "pages.tif", pages, photometric="minisblack")
    np.testing.assert_allclose(read(tmp_path / "pages.tif", volumes())[..., 0], pages)
    loaded = Reader(images(1)).load(Source(tmp_path / "pages.tif"))
    assert loaded is not None and loaded.pages == 6


def test_nifti_is_read_with_its_scale_and_position(tmp_path: Path) -> None:
    values = volume((6, 8, 10), (2, 3, 7))
    image = nibabel.Nifti1Image(values.T, np.diag([-2.0, 2.0, 3.0, 1.0]))
    image.header.set_slope_inter(0.5, 10)
    for name in ("a.nii", "a.nii.gz"):
        nibabel.save(image, tmp_path / name)
        # nibabel itself is the reference
        expected = np.asarray(nibabel.load(tmp_path / name).dataobj).T
        np.testing.assert_allclose(read(tmp_path / name, volumes())[..., 0], expected)
    loaded = Reader(volumes()).load(Source(tmp_path / "a.nii"))
    assert loaded is not None and isinstance(loaded.clips, Slices)
    assert loaded.size == (10, 8) and loaded.clips.total == 6
    assert loaded.clips.spacing == (2, 2, 3)
    assert loaded.clips.flipped == (False, True, True)  # to the left, the front and the top
    example = Path(nibabel.__file__).parent / "tests/data/example4d.nii.gz"
    assert read(example, volumes(2)).shape == (24, 96, 128, 2)  # a fourth axis has channels


def test_a_dicom_series_is_ordered_by_position_and_rescaled(tmp_path: Path) -> None:
    values = volume((5, 16, 20), (3, 6, 8))
    dicom_series(tmp_path / "ct", values, (0.5, 0.7, 3.0))
    np.testing.assert_array_equal(read(tmp_path / "ct", volumes())[..., 0], values * 2.0 - 10)
    loaded = Reader(volumes()).load(Source(tmp_path / "ct"))
    assert loaded is not None and isinstance(loaded.clips, Slices)
    assert loaded.clips.spacing == pytest.approx((0.5, 0.7, 3.0))
    assert loaded.stamp.bytes == sum(file.stat().st_size for file in (tmp_path / "ct").iterdir())
    medium = Reader(volumes()).taken[-1]
    assert len(medium.files(tmp_path / "ct")) == 5
    (tmp_path / "ct" / "notes.txt").write_text("not a slice")
    assert medium.files(tmp_path / "ct") == []
    for name in ("a.dcm", "b.dcm"):  # volumes of several frames
        (tmp_path / "more").mkdir(exist_ok=True)
        shutil.copy(str(get_testdata_file("rtdose.dcm")), tmp_path / "more" / name)
    assert medium.files(tmp_path / "more") == []


def test_dicom_images_windows_and_inverted_gray(tmp_path: Path) -> None:
    path = Path(str(get_testdata_file("CT_small.dcm")))
    header = pydicom.dcmread(path)
    expected = header.pixel_array * float(header.RescaleSlope) + float(header.RescaleIntercept)
    np.testing.assert_array_equal(read(path, images(1))[..., 0], expected)
    header.WindowCenter, header.WindowWidth = 40, 400
    header.save_as(tmp_path / "window.dcm")
    (frame,) = shown(tmp_path / "window.dcm", images(1))
    gray = ((expected + 160) * 255 / 400).clip(0, 255).round()
    np.testing.assert_array_equal(np.asarray(frame.image)[..., 1], gray)
    header.PhotometricInterpretation = "MONOCHROME1"
    header.save_as(tmp_path / "inverted.dcm")
    (frame,) = shown(tmp_path / "inverted.dcm", images(1))
    assert np.abs(np.asarray(frame.image)[..., 1] - (255 - gray)).max() <= 1
    # stored from -32768 to 32767, whose places are exchanged; an unsigned file of 12 bits is from 0 to 4095
    assert (header.PixelRepresentation, header.BitsStored) == (1, 16)
    opposite = (-1.0 - header.pixel_array) * float(header.RescaleSlope) + float(header.RescaleIntercept)
    np.testing.assert_array_equal(read(tmp_path / "inverted.dcm", images(1))[..., 0], opposite)
    stored = header.pixel_array
    header.PixelRepresentation, header.BitsStored, header.HighBit = 0, 12, 11
    header.RescaleSlope, header.RescaleIntercept = 2, -10
    header.save_as(tmp_path / "unsigned.dcm")
    np.testing.assert_array_equal(read(tmp_path / "unsigned.dcm", images(1))[..., 0], (4095.0 - stored) * 2 - 10)
    color = read(Path(str(get_testdata_file("examples_palette.dcm"))), images(3))
    assert color.shape == (350, 800, 3) and np.ptp(color, axis=2).max() > 0.5


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
    "truncated": ("a.npy", lambda: _npy("(1, 4, 4)", content=bytes(9)), "it is truncated: it has 9 of 64 bytes"),
    "lying": ("a.npy", lambda: _npy("(1, 999999, 99999)", content=bytes(64)), "it has too many pixels: raise EB_SAL"),
    "objects": ("a.npy", lambda: _npy("(2, 2)", "'|O'", bytes(32)), "its data type is object, but integers or floats"),
    "complex": ("a.npy", lambda: _npy("(2, 2)", "'<c8'", bytes(32)), "its data type is complex64, but integers or fl"),
    "text": ("a.npy", lambda: _npy("(2, 2)", "'<U8'", bytes(128)), "its data type is <U8, but integers or floats"),
    "no axes": ("a.npy", lambda: _npy("()", content=bytes(4)), "it has no values, but an array (H, W) or (C, H, W)"),
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
        "it has values that are not fin",
    ),
    "channels": ("a.npy", lambda: _npy("(4, 2, 2)", content=bytes(64)), "it has 4 channels, but nets.py:gray takes 1"),
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
    "private": ("a.dcm", lambda: _syntax("1.2.3.4.5"), "its pixels are compressed or encrypted as 1.2.3.4.5, which no"),
    "dicom bomb": ("a.dcm", lambda: _dicom("CT_small.dcm", Rows=60000, Columns=60000), "it has too many pixels"),
    "dicom cut": ("a.dcm", lambda: _dicom("CT_small.dcm")[:20000], "it is "),
    "field": (
        "a.dcm",
        lambda: _dicom("CT_small.dcm").replace(b"-1024 ", b"DoeJon"),
        "it is broken, or no DICOM image (ValueError)",  # it may be a field about the patient, so it is not quoted
    ),
    "no dicom": ("a.dcm", lambda: b"text" * 100, "it is no DICOM image"),
    "plan": ("a.dcm", lambda: Path(str(get_testdata_file("rtplan.dcm"))).read_bytes(), "it is no DICOM image"),
}
OF_VOLUMES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut": ("a.nii", lambda: _nifti(lambda content: None)[:-40], "it is truncated, or broken"),
    "header cut": ("a.nii", lambda: _nifti(lambda content: None)[:100], "it is no NIfTI file, or its header is broken"),
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
    "packed cut": ("a.nii.gz", lambda: gzip.compress(_nifti(lambda content: None))[:60], "it is truncated, or broken"),
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
        ({"SeriesInstanceUID": lambda i: f"1.2.{i // 3}"}, "its slices are of 2 series: give each series a directory"),
        ({"ImagePositionPatient": lambda i: [0, 0, i + 2 * (i > 2)]}, "slices are missing between 2 and 5 mm, as most"),
        ({"ImagePositionPatient": lambda i: [0, 0, i // 2]}, "two of its slices are at 0 mm: it is mixed of"),
        ({"ImageOrientationPatient": lambda i: [1, 0, 0, 0, i % 2, 1 - i % 2]}, "its slices are of 2 orientations"),
    ],
)
def test_series_with_missing_or_mixed_slices_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    dicom_series(tmp_path / "ct", volume((6, 4, 4), (3, 2, 2)), (1, 1, 1), **changes)
    with pytest.raises(ImageError) as caught:
        Reader(volumes()).load(Source(tmp_path / "ct"))
    assert str(caught.value).startswith(said)


def test_a_volume_for_a_network_of_photos_is_named(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(ImageError, match=r"^it is a volume, not an image: choose a network for volumes"):
        Reader(images(3)).load(Source(tmp_path / "a.nii.gz"))
    assert Reader(images(3)).load(Source(tmp_path / "a.nii.gz", named=False)) is None


def test_a_large_array_is_not_read_into_memory(tmp_path: Path) -> None:
    """A sparse file of 3 GB, of which one channel of a thousand is looked at."""
    before = Image.MAX_IMAGE_PIXELS
    try:
        path = tmp_path / "a.npy"
        path.write_bytes(_npy("(1000, 1000, 750)"))
        os.truncate(path, path.stat().st_size + 4 * 1000 * 1000 * 750)
        spec = InputSpec((8, 8), resize=(8,), fit="squash", mean=(0.0,), std=(1.0,), channels=1, selected=(1000,))
        assert Reader(spec, max_pixels=2_000_000_000).load(Source(path)).pixels.shape == (8, 8, 1)  # type: ignore[union-attr]
    finally:
        Image.MAX_IMAGE_PIXELS = before
