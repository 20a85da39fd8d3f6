"""Runs on volumes and arrays: their maps lie where the evidence is, in files that viewers lay over the input."""

import csv
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import scipy.ndimage
import tifffile
from bright_nets import NETS, OPTIONS, center, dicom_series, volume
from click.testing import CliRunner
from PIL import Image
from pydicom.data import get_testdata_file

from ebcli.cli.saliency import main
from ebcli.files.records import read_records

SHAPE, PLACE = (12, 20, 24), (3, 14, 6)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)


def run(network: str, *arguments: str, status: int = 0, **settings: str) -> list[dict[str, Any]]:
    environment = {f"EB_SALIENCY_{name.upper()}": value for name, value in settings.items()}
    result = CliRunner().invoke(
        main, ["--model", f"nets.py:{network}", *OPTIONS, *arguments], env=environment
    )
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


AFFINES = {
    "isotropic": np.diag([2.0, 2.0, 2.0, 1.0]),
    "anisotropic": np.array([[0.7, 0, 0, -10], [0, 0.9, 0, 20], [0, 0, 3.5, 5], [0, 0, 0, 1]]),
    "flipped": np.array([[-1.5, 0, 0, 30], [0, 1, 0, -12], [0, 0, -2, 7], [0, 0, 0, 1.0]]),
    "oblique": np.array([[1.2, 0.3, 0.1, 4], [-0.3, 1.1, 0.2, 5], [0, -0.2, 2.5, 6], [0, 0, 0, 1.0]]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", AFFINES)
@pytest.mark.parametrize("network", ["solid", "fixed", "reordered"])
def test_a_nifti_map_lies_where_the_volume_is_bright(name: str, network: str) -> None:
    scan = nibabel.Nifti1Image(volume(SHAPE, PLACE).T, AFFINES[name])
    scan.header.set_xyzt_units("micron")
    nibabel.save(scan, "scan.nii.gz")
    (record,) = run(network, "scan.nii.gz", "--raw")
    assert [Path(path).name for path in record["output"]] == [
        "scan.nii.gz.0-bright@0+marginal.png",
        "scan.nii.gz.0-bright@0+marginal.sheet.png",
        "scan.nii.gz.maps@0+marginal.npz",
        "scan.nii.gz.0-bright@0+marginal.nii.gz",
    ]
    found = nibabel.load(record["output"][3])
    map_ = np.asarray(found.dataobj)
    assert found.header.get_xyzt_units()[0] == "micron"
    assert map_.shape == (SHAPE[::-1] if network == "solid" else (16, 16, 12))
    where = found.affine @ [*center(map_), 1]
    expected = AFFINES[name] @ [*PLACE[::-1], 1]
    np.testing.assert_allclose(where[:3], expected[:3], atol=1e-3 if network == "solid" else 0.25)
    np.testing.assert_allclose(np.load(record["output"][2])["maps"][0].T, map_)
    # opposite corners of the whole volume, not of its cells' centers
    ends = [
        affine @ [*(np.array(shape) - 0.5), 1]
        for affine, shape in ((found.affine, map_.shape), (AFFINES[name], SHAPE[::-1]))
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-4)


def test_the_place_of_the_maximum_is_in_records_and_tables_as_viewers_count() -> None:
    for name, affine in AFFINES.items():
        nibabel.save(nibabel.Nifti1Image(volume(SHAPE, PLACE).T, affine), f"{name}.nii.gz")
    np.save("plain.npy", volume(SHAPE, PLACE))
    np.save("blank.npy", np.zeros(SHAPE, np.int16))
    dicom_series(Path("ct"), volume(SHAPE, PLACE), (0.5, 0.7, 3.0), RescaleIntercept=0)
    # one bright voxel, so that no other one is as bright
    for path in Path().glob("*.nii.gz"):
        image = nibabel.load(path)
        values = np.asarray(image.dataobj).copy()
        values[PLACE[::-1]] = 200
        nibabel.save(nibabel.Nifti1Image(values, image.affine), path)
    nibabel.save(nibabel.Nifti1Image(volume(SHAPE, PLACE).T, np.eye(4)), "nowhere.nii")
    with Path("nowhere.nii").open("r+b") as file:
        file.seek(280)  # of the first number of the matrix
        file.write(np.float32(np.nan).tobytes())
    names = [f"{name}.nii.gz" for name in AFFINES]
    records = run("solid", *names, "plain.npy", "blank.npy", "nowhere.nii", "ct", "--records", "maps.csv")
    places = {record["input"]: record["classes"][0] for record in records}
    voxel = [*PLACE[::-1]]
    for name, affine in AFFINES.items():
        place = places[f"{name}.nii.gz"]
        assert place["voxel"] == voxel
        assert place["world"] == pytest.approx((affine @ [*voxel, 1])[:3].tolist())
    assert places["plain.npy"]["world"] is None
    assert places["nowhere.nii"]["world"] is None
    assert len([*read_records(Path("saliency"))]) == len(records)
    assert places["blank.npy"]["voxel"] is None
    x, y, z = places["ct"]["voxel"]  # in the bright cube
    assert np.abs(np.subtract((x, y, z), voxel)).max() <= 1
    assert places["ct"]["world"] == pytest.approx([30 - 0.5 * x, -20 - 0.7 * y, 5 + 3 * z])
    with Path("maps.csv").open(newline="") as file:
        rows = {row["input"]: row for row in csv.DictReader(file)}
    for name in names:
        assert [int(rows[name][f"voxel_{axis}"]) for axis in "xyz"] == voxel
        assert [float(rows[name][f"world_{axis}"]) for axis in "xyz"] == pytest.approx(places[name]["world"])
    assert rows["blank.npy"]["voxel_x"] == rows["plain.npy"]["world_x"] == ""


HEAD = np.random.default_rng(0).integers(0, 50, SHAPE[::-1]).astype(np.int16)
HEAD[4:7, 12:15, 2:5] = 100  # x, y, z; RAS


def save_heads(*orientations: str, affine: str = "anisotropic") -> list[str]:
    """Write the same head with its axes stored in several ways, as nibabel reorients it."""
    head = nibabel.Nifti1Image(HEAD, AFFINES[affine])
    start = nibabel.io_orientation(head.affine)
    for codes in orientations:
        end = nibabel.orientations.axcodes2ornt(codes)
        nibabel.save(head.as_reoriented(nibabel.orientations.ornt_transform(start, end)), f"{codes}.nii.gz")
    return [f"{codes}.nii.gz" for codes in orientations]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("affine", ["anisotropic", "oblique"])
def test_a_head_has_the_same_map_however_it_is_stored(affine: str) -> None:
    files = save_heads("RAS", "LPS", "PSR", "ILA", affine=affine)
    records = run("sided", *files, "--raw", "--scores", "raw", orientation="ras")
    halves = HEAD[:12].mean() + 3 * HEAD[12:].mean()
    found = [record["classes"][0]["value"] for record in records]
    assert max(found) - min(found) < 1e-5
    bias = found[0] - halves
    plain = run("sided", "RAS.nii.gz", "-o", "plain", "--scores", "raw")
    assert plain[0]["classes"][0]["value"] - halves == pytest.approx(bias, abs=1e-5)
    expected = None
    for name, record in zip(files, records, strict=True):
        source, map_ = nibabel.load(name), nibabel.load(record["output"][3])
        assert map_.shape == source.shape
        np.testing.assert_allclose(map_.affine, source.affine, atol=1e-5)  # that of the file itself
        canonical = np.asarray(nibabel.as_closest_canonical(map_).dataobj)
        expected = canonical if expected is None else expected
        np.testing.assert_allclose(canonical, expected, atol=1e-6)
        place = record["classes"][0]
        assert map_.dataobj[tuple(place["voxel"])] == expected.max()
        np.testing.assert_allclose((source.affine @ [*place["voxel"], 1])[:3], place["world"], atol=1e-3)
    weights = np.where(np.arange(24) < 12, 1, 3)[:, None, None]
    np.testing.assert_allclose(expected / expected.sum(), HEAD * weights / (HEAD * weights).sum(), atol=1e-6)


def test_a_dicom_series_is_reoriented_and_its_map_is_where_it_was() -> None:
    dicom_series(Path("ct"), volume(SHAPE, PLACE), (0.5, 0.7, 3.0))
    maps = []
    for settings in ({}, {"orientation": "RAS"}):
        (record,) = run("solid", "ct", "--raw", "-o", f"maps{len(maps)}", **settings)
        maps.append((nibabel.load(record["output"][3]), np.load(record["output"][2])["maps"][0]))
    (usual, stored), (reoriented, in_ras) = maps
    np.testing.assert_allclose(reoriented.affine, usual.affine)
    np.testing.assert_allclose(reoriented.get_fdata(), usual.get_fdata(), atol=1e-6)
    np.testing.assert_allclose(in_ras, stored[:, ::-1, ::-1], atol=1e-6)  # DICOM's slices are in LPS


def test_a_volume_without_directions_is_not_reoriented() -> None:
    np.save("a.npy", volume((8, 9, 9), (3, 4, 4)))
    (record,) = run("solid", "a.npy", status=1, orientation="LPS")
    problem = "it does not say where its axes lead, so it cannot be reoriented to LPS: drop orientation"
    assert record["error"] == problem


def test_volumes_of_different_orientations_get_one_warning() -> None:
    files = save_heads("RAS", "LPS", "PSR")
    command = ["--model", "nets.py:sided", *OPTIONS, *files, files[1]]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("ORIENTATION") == 1
    assert (
        "'RAS.nii.gz' is RAS and 'LPS.nii.gz' is LPS, but the network gets voxels as they are stored: "
        "set EB_SALIENCY_ORIENTATION to that of its training data"
    ) in " ".join(result.stderr.split())


def planes(record: dict[str, Any]) -> list[np.ndarray]:
    """How colorful the pixels of the three planes in a picture are, from left to right; their letters are not."""
    pixels = np.asarray(Image.open(record["output"][0]).convert("RGB")).astype(int)
    parts = scipy.ndimage.find_objects(scipy.ndimage.label((pixels < 240).any(-1))[0])
    parts.sort(key=lambda part: -math.prod(side.stop - side.start for side in part))
    return [
        np.ptp(pixels[part], axis=-1).astype(float)
        for part in sorted(parts[:3], key=lambda part: part[1].start)
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, 1), (1, -1, -1)])
def test_the_slices_cross_where_the_volume_is_bright_and_are_drawn_as_in_space(
    signs: tuple[int, int, int],
) -> None:
    place, spacing = PLACE, (1, 1, 3)
    affine = np.diag([*np.multiply(signs, spacing), 1.0])
    nibabel.save(nibabel.Nifti1Image(volume(SHAPE, place).T, affine), "right.nii.gz")
    np.save("plain.npy", volume(SHAPE, place))
    of_right, of_plain = run("solid", "right.nii.gz", "plain.npy")
    shape = [round(256 / SHAPE[2] * side * step) for side, step in zip(SHAPE, spacing[::-1], strict=True)]
    # axes to the right, the front and the top are drawn in reverse
    sides = [(at + 0.5) / side for at, side in zip(place, SHAPE, strict=True)]
    sides = [1 - at if sign > 0 else at for at, sign in zip(sides, signs[::-1], strict=True)]
    for plane, (down, across) in zip(planes(of_right), ((1, 2), (0, 2), (0, 1)), strict=True):
        assert plane.shape == (shape[down], shape[across])
        np.testing.assert_allclose(center(plane**4) / plane.shape, (sides[down], sides[across]), atol=0.03)
    plane, *_ = planes(of_plain)  # as it is stored
    where = [(place[1] + 0.5) / SHAPE[1], (place[2] + 0.5) / SHAPE[2]]
    np.testing.assert_allclose(center(plane**4) / plane.shape, where, atol=0.03)


def test_a_dicom_series_beside_other_data_is_one_volume_in_its_place() -> None:
    values = volume(SHAPE, PLACE)
    dicom_series(Path("data/ct"), values, (0.5, 0.7, 3.0))
    np.save("data/a.npy", values)
    Path("data/notes.txt").write_text("text")
    records = run("solid", "data", "--raw", "--report")
    assert [Path(record["input"]).name for record in records] == ["a.npy", "ct"]
    assert [record["status"] for record in records] == ["done", "done"]
    found = nibabel.load(records[1]["output"][3])
    lps = np.array(
        [-30 + 0.5 * PLACE[2], 20 + 0.7 * PLACE[1], 5 + 3 * PLACE[0]]
    )  # of the slices' own positions
    where = found.affine @ [*center(np.asarray(found.dataobj)), 1]
    np.testing.assert_allclose(where[:3], lps * [-1, -1, 1], atol=1e-3)
    assert len(list(Path("saliency/report/thumbnails").rglob("*.png"))) == 2
    again = run("solid", "data", "--raw", "--report", "--skip-existing")
    assert again == []
    os.utime("data/ct/000.dcm", ns=(1, 2**61))  # one of the slices is new
    (record,) = run("solid", "data", "--raw", "--report", "--skip-existing")
    assert record["input"].endswith("ct")
    checked = CliRunner().invoke(main, ["verify", "saliency"])
    assert checked.exit_code == 0, checked.output


def test_photos_and_arrays_share_a_run() -> None:
    Path("data").mkdir()
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[4:8, 20:24] = 200
    Image.fromarray(pixels).save("data/a.png")
    np.save("data/b.npy", pixels.transpose(2, 0, 1))
    np.save("data/c.npy", pixels.transpose(2, 0, 1)[:2])
    np.save("data/d.npy", (pixels.transpose(2, 0, 1) / 255).astype(np.float32))
    records = run("color", "data", "--raw", "--batch-size", "2", status=1)
    assert [record["status"] for record in records] == ["done", "done", "failed", "done"]
    assert records[2]["error"] == "it has 2 channels, but nets.py:color takes 3"
    done = [record for record in records if record["status"] == "done"]
    scores = [
        record["classes"][0]["score"] for record in done
    ]  # a batch of both would mix 0 to 255 with 0 to 1
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-6)
    maps = [np.load(record["output"][1])["maps"] for record in done]
    np.testing.assert_allclose(maps[1], maps[0], atol=1e-6)
    np.testing.assert_allclose(maps[2], maps[0], atol=1e-6)
    np.testing.assert_allclose(center(maps[0][0]), [5.5, 21.5], atol=1e-4)


KEYS = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)


@pytest.mark.parametrize("raster", [1, 2])
@pytest.mark.parametrize("layout", ["scale", "matrix"])
def test_a_geotiff_map_lies_where_the_image_is_bright(raster: int, layout: str) -> None:
    values = np.zeros((13, 40, 60), np.uint16)
    values[:, 30:34, 12:16] = 60000
    keys = (*KEYS[:11], raster, *KEYS[12:])
    if layout == "scale":
        point = (7.0, 3.0, 0.0, 5e5 + 10 * 7, 4e6 - 20 * 3, 0.0)  # column and row, and where that is
        where = [(33550, "d", 3, (10.0, 20.0, 0.0)), (33922, "d", 6, point)]
    else:
        where = [(34264, "d", 16, (10.0, 0, 0, 5e5, 0, -20.0, 0, 4e6, 0, 0, 0, 0, 0, 0, 0, 1))]
    tags = [(*tag, True) for tag in (*where, (34735, "H", len(keys), keys), (34737, "s", 0, "WGS 84|"))]
    tifffile.imwrite("a.tif", values, planarconfig="separate", photometric="minisblack", extratags=tags)
    (record,) = run("bands", "a.tif", "--raw", "--fit", "squash", bands="4,3,2")
    assert record["output"][-1].endswith("a.tif.0-bright@0+marginal.tif")
    with tifffile.TiffFile(record["output"][-1]) as tiff:
        page = tiff.pages[0]
        map_, matrix = page.asarray(), np.reshape(page.tags[34264].value, (4, 4))
        assert tuple(page.tags[34735].value) == keys and page.tags[34737].value == "WGS 84|"
    row, column = center(map_) + (0.5 if raster == 1 else 0)  # of areas, corners have positions
    found = matrix @ [column, row, 0, 1]
    shift = 0 if raster == 1 else 0.5
    np.testing.assert_allclose(found[:2], [5e5 + 10 * (14 - shift), 4e6 - 20 * (32 - shift)], atol=1)


def test_no_field_about_a_patient_is_in_any_result() -> None:
    Path("xray").mkdir()
    header = pydicom.dcmread(str(get_testdata_file("CT_small.dcm")))
    fields = [
        str(header[name].value)
        for name in ("PatientName", "PatientID", "StudyInstanceUID", "InstitutionName")
    ]
    assert all(len(field) > 3 for field in fields)
    shutil.copy(str(get_testdata_file("CT_small.dcm")), "xray/one.dcm")
    Path("xray/cut.dcm").write_bytes(Path("xray/one.dcm").read_bytes()[:9000])
    dicom_series(Path("ct"), volume((6, 9, 9), (3, 4, 4)), (1, 1, 2))
    spoken = ""
    for network, data in (("gray", "xray"), ("solid", "ct")):
        options = ("--model", f"nets.py:{network}", *OPTIONS, "--raw", "--report", "--caption", "-v")
        result = CliRunner().invoke(main, [*options, data, "-o", f"maps-{data}"])
        assert result.exit_code == (1 if data == "xray" else 0), result.output
        spoken += result.output
    written = [
        path for folder in ("maps-xray", "maps-ct") for path in Path(folder).rglob("*") if path.is_file()
    ]
    assert len(written) > 10
    for path in written:
        content = path.read_bytes()
        packed = nibabel.load(path).to_bytes() if path.name.endswith(".nii.gz") else b""
        for field in fields:
            assert field.encode() not in content + packed, path
            assert field not in str(path)
    assert not any(field in spoken for field in fields)


@pytest.mark.parametrize("way", ["option", "variable", "file"])
def test_an_array_setting_has_the_same_meaning_as_option_variable_and_in_a_file(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((2, 32, 32), np.float32)
    values[0, 4:8, 4:8] = 64
    values[1, 20:24, 24:28] = 64
    np.save("a.npy", values)

    def first(network: str, name: str, text: str, *arguments: str) -> dict[str, Any]:
        words = [f"--{name}", text]
        if way == "variable" or (way == "option" and name != "range"):  # which are none
            words = []
            monkeypatch.setenv(f"EB_SALIENCY_{name.upper()}", text)
        if way == "file":
            Path("run.toml").write_text(f"{name} = [{text}]\n" if "," in text else f"{name} = {text}\n")
            words = ["--config", "run.toml"]
        (record,) = run(network, *arguments, *words, "--raw")
        monkeypatch.delenv(f"EB_SALIENCY_{name.upper()}", raising=False)
        return record

    with np.load(first("gray", "channels", "2", "a.npy")["output"][-1]) as raw:
        assert center(raw["maps"][0]) == pytest.approx([21.5, 25.5])
    # the logit is the mean brightness and a constant
    twice = "--scores", "raw", "a.npy", "--range"
    numbers = [run("gray", *twice, f"0,{high}", channels="2")[0]["classes"][0]["value"] for high in (1, 2)]
    assert numbers[0] - numbers[1] == pytest.approx(64 / 64 / 2, rel=1e-4)
    monkeypatch.setenv("EB_SALIENCY_CHANNELS", "2")
    record = first("gray", "range", "-2,0", "--scores", "raw", "a.npy")
    monkeypatch.delenv("EB_SALIENCY_CHANNELS")
    assert record["classes"][0]["value"] - numbers[1] == pytest.approx(1, rel=1e-4)  # (v + 2) / 2
    np.save("volume.npy", volume((12, 16, 16), (5, 8, 8)))
    with np.load(first("fixed", "depth", "6", "volume.npy")["output"][2]) as raw:
        assert raw["maps"].shape == (1, 6, 16, 16)


def test_a_network_declares_its_channels_and_that_it_takes_volumes() -> None:
    np.save("a.npy", np.stack([volume((8, 9, 9), (3, 4, 4))] * 2))
    np.save("b.npy", volume((8, 9, 9), (3, 4, 4)))
    done, failed = run("declared", "a.npy", "b.npy", "--raw", status=1)
    assert np.load(done["output"][2])["maps"].shape == (1, 8, 16, 16)
    assert (
        failed["error"]
        == "it has 1 channel, but nets.py:declared takes 2: repeat it with EB_SALIENCY_CHANNELS=1,1"
    )


def test_volumes_that_a_network_cannot_take_fail_alone() -> None:
    for name, shape in (("a.npy", (4, 20, 20)), ("b.npy", (12, 20, 20))):
        np.save(name, volume(shape, (2, 9, 9)))
    small, whole = run("narrow", "a.npy", "b.npy", status=1)
    assert small["error"].startswith("nets.py:narrow fails on volumes of 4 x 20 x 20 (")
    assert whole["status"] == "done"


@pytest.mark.parametrize(
    ("network", "arguments", "said"),
    [
        (
            "solid",
            ("--annotations", "boxes"),
            "--annotations marks regions of images, but nets.py:solid is for volumes: drop it",
        ),
        (
            "solid",
            ("--compare-with", "grad-cam", "--panel"),
            "--compare-with compares maps of images, but nets.py:solid is for volum",
        ),
        ("solid", ("--fit", "crop"), "nets.py:solid gets whole volumes, never cropped or padded: drop --fit"),
        ("gray", ("EB_SALIENCY_DEPTH=4",), "nets.py:gray gets no volumes: drop depth"),
        ("gray", ("EB_SALIENCY_ORIENTATION=RAS",), "nets.py:gray gets no volumes: drop orientation"),
        (
            "solid",
            ("EB_SALIENCY_ORIENTATION=RAL",),
            "orientation is RAL, but must be a letter of L or R, one of A or P, and one of S or I, such as RAS",
        ),
        ("solid", ("EB_SALIENCY_DEPTH=0",), "depth is 0, but it must be between 1 and "),
        (
            "collapsing",
            ("--layer", "1"),
            "layer '1' has no spatial dimensions that follow those of the input (output shape (4, 64, 64)): choose a",
        ),
        ("gray", ("EB_SALIENCY_CHANNELS=0",), "channels is (0,), but must be channels, numbered from 1"),
        (
            "gray",
            ("EB_SALIENCY_BANDS=1,2",),
            "bands is (1, 2), but must be one channel or three, numbered from 1",
        ),
        ("gray", ("--range", "5,5"), "range is (5.0, 5.0), but must be two numbers, the lower one first"),
    ],
)
def test_options_that_do_not_fit_are_refused(network: str, arguments: tuple[str, ...], said: str) -> None:
    np.save("a.npy", volume((8, 9, 9), (3, 4, 4)))
    environment = dict(word.split("=") for word in arguments if "=" in word)
    options = [word for word in arguments if "=" not in word]
    command = ["--model", f"nets.py:{network}", *OPTIONS, "a.npy", *options]
    result = CliRunner().invoke(main, command, env=environment)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_way_in_which_volumes_are_fitted_can_be_named() -> None:
    np.save("a.npy", volume((8, 9, 9), (3, 4, 4)))
    plain, named = run("fixed", "a.npy") + run("fixed", "a.npy", "--fit", "squash", "--overwrite")
    assert named["fit"] == plain["fit"] == "squash"
    assert named["classes"] == plain["classes"]
