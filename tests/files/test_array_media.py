"""Arrays, TIFF, NIfTI and DICOM: what the network gets of them, and what is said of those that it cannot get."""

from __future__ import annotations

import shutil
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

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.clips import ClipOptions, Slices
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.sources import Source
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("watched")

ALL = ClipOptions()


def images(channels: int, **more: Any) -> InputSpec:
    return InputSpec(
        None, resize=None, mean=(0.0,) * channels, std=(1.0,) * channels, channels=channels, **more
    )


def volumes(channels: int = 1, depth: int = 0, **more: Any) -> InputSpec:
    return InputSpec(
        None, resize=None, fit="squash", mean=(0.0,), std=(1.0,), channels=channels, depth=depth, **more
    )


def read(path: Path, spec: InputSpec) -> np.ndarray:
    loaded = Reader(spec).load(Source(path))
    assert loaded is not None
    return loaded.pixels


def shown(path: Path, spec: InputSpec) -> list[DisplayFrame]:
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
        np.testing.assert_allclose(
            read(tmp_path / f"{name}.npy", images(5)), stored.transpose(1, 2, 0), rtol=1e-6
        )
    np.savez_compressed(tmp_path / "packed", values)
    np.testing.assert_allclose(read(tmp_path / "packed.npz", images(5)), values.transpose(1, 2, 0), rtol=1e-6)
    np.save(tmp_path / "flat", values[0])
    np.testing.assert_allclose(read(tmp_path / "flat.npy", images(1))[..., 0], values[0], rtol=1e-6)
    np.testing.assert_allclose(read(tmp_path / "big.npy", volumes())[..., 0], values, rtol=1e-6)


def test_integers_without_a_sign_become_0_to_1_and_a_range_decides_otherwise(tmp_path: Path) -> None:
    for kind, top in ((np.uint8, 255), (np.uint16, 65535), (np.int16, 1), (np.int64, 1), (np.bool_, 1)):
        np.save(tmp_path / "a", np.array([[0, 1], [1, 0]], kind))
        np.testing.assert_allclose(
            read(tmp_path / "a.npy", images(1))[..., 0], np.array([[0, 1], [1, 0]]) / top
        )
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
        with pytest.raises(ImageError, match=f"it has 4 channels, but {option} names channel 5"):
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
    tifffile.imwrite(
        tmp_path / "pixels.tif", bands.transpose(1, 2, 0), planarconfig="contig", photometric="minisblack"
    )
    for name in ("planes.tif", "pixels.tif"):
        np.testing.assert_allclose(
            read(tmp_path / name, images(13)), bands.transpose(1, 2, 0) / 65535, rtol=1e-6
        )
    gray = rng.random((8, 9)).astype(np.float32) * 1000
    tifffile.imwrite(tmp_path / "gray.tif", gray)
    np.testing.assert_allclose(read(tmp_path / "gray.tif", images(1))[..., 0], gray)
    assert (
        read(tmp_path / "gray.tif", InputSpec(None, resize=None)).dtype == np.uint8
    )  # as Pillow reads it for photos
    tifffile.imwrite(tmp_path / "color.tif", bands[:3].transpose(1, 2, 0), photometric="rgb")
    np.testing.assert_allclose(
        read(tmp_path / "color.tif", InputSpec(None, resize=None)),
        bands[:3].transpose(1, 2, 0) / 65535,
        rtol=1e-6,
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
    assert loaded.clips.codes == "LAS" == "".join(nibabel.aff2axcodes(image.affine))
    assert loaded.clips.flips == (False, True, True)  # to the left, the front and the top
    nibabel.save(nibabel.Nifti1Image(values.T, None), tmp_path / "nowhere.nii")
    nowhere = Reader(volumes()).load(Source(tmp_path / "nowhere.nii"))
    assert nowhere is not None and isinstance(nowhere.clips, Slices)
    assert (nowhere.clips.codes, nowhere.clips.flips) == ("", (False, False, False))
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
    assert loaded.clips.codes == "LPS"  # the axes of DICOM
    sagittal = {
        "ImageOrientationPatient": [0, 1, 0, 0, 0, -1],
        "ImagePositionPatient": lambda i: [3 * i, 0, 0],
    }
    dicom_series(tmp_path / "sagittal", values, (0.5, 0.7, 3.0), **sagittal)
    turned = Reader(volumes()).load(Source(tmp_path / "sagittal"))
    assert turned is not None and isinstance(turned.clips, Slices)
    assert turned.clips.codes == "PIR"  # columns to the back, rows down, and slices from left to right
    medium = Reader(volumes()).formats[-1]
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
    np.testing.assert_array_equal(
        read(tmp_path / "unsigned.dcm", images(1))[..., 0], (4095.0 - stored) * 2 - 10
    )
    color = read(Path(str(get_testdata_file("examples_palette.dcm"))), images(3))
    assert color.shape == (350, 800, 3) and np.ptp(color, axis=2).max() > 0.5


def test_a_volume_for_a_network_of_photos_is_named(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(ImageError, match=r"^it is a volume, not an image: choose a network for volumes"):
        Reader(images(3)).load(Source(tmp_path / "a.nii.gz"))
    assert Reader(images(3)).load(Source(tmp_path / "a.nii.gz", is_explicit=False)) is None


def test_what_is_no_number_is_the_mean_for_the_network_and_white_in_pictures(tmp_path: Path) -> None:
    """The mean becomes 0 when it is subtracted, so the network sees nothing there."""
    values = np.array([[0.0, np.nan], [1.0, np.inf]], np.float32)
    np.save(tmp_path / "a", values)
    photos = InputSpec(None, resize=None, mean=(0.25,), std=(0.5,), channels=1)
    assert read(tmp_path / "a.npy", photos)[..., 0].tolist() == [[0, 0.25], [1, 0.25]]
    assert read(tmp_path / "a.npy", images(1, range=(0, 2)))[..., 0].tolist() == [[0, 0], [0.5, 0]]
    (frame,) = shown(tmp_path / "a.npy", images(1, range=(0, 2)))
    assert np.asarray(frame.image)[..., 0].tolist() == [[0, 255], [128, 255]]
    loaded = Reader(photos).load(Source(tmp_path / "a.npy"))
    assert loaded is not None and loaded.notes["no data"].startswith("50.0% of its values")
    np.save(tmp_path / "b", np.stack([values[0, :1], values[0, 1:]])[:, None])
    assert not Reader(images(1, selected=(1,))).load(Source(tmp_path / "b.npy")).notes  # type: ignore[union-attr]


def test_a_range_in_units_of_the_file_holds_for_inverted_gray(tmp_path: Path) -> None:
    """16 bits are stored, of which 0 to 1000 are used: 0 is white in MONOCHROME1, 1000 is black."""
    header = pydicom.dcmread(str(get_testdata_file("CT_small.dcm")))
    header.PhotometricInterpretation, header.PixelRepresentation = "MONOCHROME1", 0
    header.RescaleSlope, header.RescaleIntercept = 1, 0
    header.Rows, header.Columns = 1, 3
    header.PixelData = np.array([0, 250, 1000], "<u2").tobytes()
    header.save_as(tmp_path / "a.dcm")
    spec = images(1, range=(0.0, 1000.0))
    assert read(tmp_path / "a.dcm", spec).ravel().tolist() == [1, 0.75, 0]
    (frame,) = shown(tmp_path / "a.dcm", spec)
    assert np.asarray(frame.image)[0, :, 0].tolist() == [255, 191, 0]
