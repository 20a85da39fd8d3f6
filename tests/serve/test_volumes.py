"""Volumes on the page: three planes that cross where the map is strongest or where somebody clicks, as in space."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from accessibility import unreached, violations
from asking import TEN, maps, network, run_command
from bright_nets import NETS
from browser import Browser
from live import settled, state
from PIL import Image
from selenium.webdriver.common.keys import Keys
from starlette.testclient import TestClient

from ebcli.models import load_model
from ebcli.serve.network import Network

SCANS = ["photos/a.nii.gz", "photos/b.nii.gz"]  # whose axes have other directions
SHAPE = (20, 24, 12)  # along x, y and z
STEP = np.array([3.0, 2.0, 4.0])  # mm
HALF = STEP * SHAPE / 2  # mm; the center of the volume is at 0
MARK = np.array([-16.5, 13.0, 14.0])  # mm to the right, the front and the top: the patient's left upper front
VIEWS = {
    "axial": (0, 1),
    "coronal": (0, 2),
    "sagittal": (1, 2),
}  # directions from left to right, and downward
LETTERS = {"axial": "RLAP", "coronal": "RLSI", "sagittal": "APSI"}
# In each view, the patient's right, front and top are on the left and above: those directions are drawn in reverse
SHARES = {name: [0.5 - MARK[axis] / HALF[axis] / 2 for axis in axes] for name, axes in VIEWS.items()}


@pytest.fixture(autouse=True)
def scans(ten_photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the photos, the same volume twice."""
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    Path("nets.py").write_text(NETS)
    for name, signs in zip(SCANS, ((1, 1, 1), (-1, 1, -1)), strict=True):
        affine = np.diag([*STEP * signs, 1.0])
        affine[:3, 3] = -affine[:3, :3] @ ((np.array(SHAPE) - 1) / 2)
        places = np.moveaxis(np.indices(SHAPE), 0, -1) @ affine[:3, :3].T + affine[:3, 3]
        values = np.exp(-(((places - MARK) / 6) ** 2).sum(-1))
        nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), affine), name)


def solid() -> Network:
    return network("nets.py:solid", "0", method=("marginal",))


def voxel_of(scan: str, place: np.ndarray) -> list[int]:
    """The voxel of a file, numbered from 1, at a place in mm."""
    inverse = np.linalg.inv(nibabel.load(scan).affine)
    return [round(at) + 1 for at in nibabel.affines.apply_affine(inverse, place)]


def opened_picture(about: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(about["picture"]))).convert("L")).astype(float)


@pytest.mark.parametrize("scan", SCANS)
def test_planes_cross_at_the_maximum_and_are_drawn_as_in_space(
    opened: Callable[..., TestClient], scan: str
) -> None:
    about, arrays = maps(opened(solid()), photo=scan, target="0")
    assert about["volume"]["voxel"] == voxel_of(scan, MARK)
    picture = opened_picture(about)
    assert picture.shape == (about["size"][1], about["size"][0])
    drawn_planes = about["maps"][0]["planes"]
    assert {plane["name"]: plane["ends"] for plane in drawn_planes} == LETTERS
    for plane, values in zip(drawn_planes, arrays, strict=True):
        shares = SHARES[plane["name"]]
        row, column = np.unravel_index(values.argmax(), values.shape)
        height, width = values.shape
        np.testing.assert_allclose([(column + 0.5) / width, (row + 0.5) / height], shares, atol=0.05)
        left, top, right, bottom = plane["place"]
        x, y = np.multiply(shares, (right - left, bottom - top)).round().astype(int)
        assert picture[top + y, left + x] > 200
        assert picture[bottom - y, right - x] < 60  # the opposite place


@pytest.mark.parametrize("scan", SCANS)
def test_values_in_planes_are_those_of_the_whole_map(opened: Callable[..., TestClient], scan: str) -> None:
    place = np.array([4.5, -5.0, -6.0])
    x, y, z = voxel_of(scan, place)
    about, arrays = maps(opened(solid()), photo=scan, target="0", layer="every", voxel=f"{x},{y},{z}")
    file = nibabel.load(scan)
    brightness = file.get_fdata().T / file.get_fdata().sum()  # which is the map of this network
    signs = np.sign(np.diag(file.affine)[:3]).astype(int)
    reverse = brightness[:: -signs[2], :: -signs[1], :: -signs[0]]  # right, front and top come first
    assert len(about["maps"]) == 3
    for number in range(3):
        axial, coronal, sagittal = arrays[3 * number : 3 * number + 3]
        depth, row, column = (
            size - at if sign > 0 else at - 1
            for at, size, sign in zip((z, y, x), SHAPE[::-1], signs[::-1], strict=True)
        )
        for values, expected in (
            (axial, reverse[depth]),
            (coronal, reverse[:, row]),
            (sagittal, reverse[:, :, column]),
        ):
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-9)


def test_a_directory_has_photos_for_one_network_and_volumes_for_another(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*opened(solid()).get("/status").json()["photos"]] == SCANS
    flat = network("nets.py:gray", "0")
    assert [*opened(flat).get("/status").json()["photos"]] == TEN
    assert [*opened(flat, solid()).get("/status").json()["photos"]] == [*TEN, *SCANS]


def test_an_upload_without_a_path_is_a_volume_too(opened: Callable[..., TestClient]) -> None:
    client = opened(solid())
    content = Path(SCANS[0]).read_bytes()
    key = client.post("/photos", params={"name": "scan.nii.gz"}, content=content).json()["key"]
    expected, arrays = maps(client, photo=SCANS[0], target="0")
    about, uploaded = maps(client, photo=key, target="0")
    assert about["picture"] == expected["picture"]
    np.testing.assert_array_equal(uploaded[0], arrays[0])
    small = Image.open(io.BytesIO(client.get("/photo", params={"photo": key, "small": ""}).content))
    assert small.size == SHAPE[:2]
    problem = client.post("/photos", params={"name": "scan.nii.gz"}, content=b"\x1f\x8bnothing").json()[
        "problem"
    ]
    assert problem == "it is truncated, or broken"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"voxel": "21,1,1"}, "the voxel 21,1,1 is outside of it: choose one within 20 x 24 x 12"),
        ({"voxel": "0,1,1"}, "the voxel 0,1,1 is outside of it"),
        ({"voxel": "1,1"}, "the voxel 1,1 is outside of it"),
        ({"voxel": "a,1,1"}, "this is no address of the page"),
        ({"photo": TEN[0]}, "it is no volume"),
    ],
)
def test_wrong_addresses_of_volumes_are_one_sentence(
    opened: Callable[..., TestClient], query: dict[str, str], sentence: str
) -> None:
    answer = opened(solid()).get("/maps", params={"photo": SCANS[0], "target": "0", **query})
    assert answer.status_code == 400
    assert sentence in answer.json()["problem"]


def test_what_does_not_work_for_volumes_says_so(opened: Callable[..., TestClient]) -> None:
    client = opened(solid())
    atlas = client.get("/atlas", params={"photo": SCANS[0]}).json()
    assert atlas["problem"] == "nets.py:solid has no classes to compare at each place"


def test_the_command_makes_the_picture_of_a_volume(opened: Callable[..., TestClient]) -> None:
    client = opened(solid())
    query = {"photo": SCANS[0], "target": "bright"}
    made, _ = run_command(client, query)
    assert made == client.get("/picture", params=query).content


def plane_on_page(browser: Browser, name: str) -> tuple[list[float], float]:
    """The edges of a plane in its picture, and how many pixels of the page one pixel of the picture has."""
    place, width = browser.run(
        "const { map } = page.panes[0];"
        "return [map.planes.find(({ name }) => name === arguments[0]).place, map.size[0]]",
        name,
    )
    return place, browser.one(".picture .map").size["width"] / width


def saturation(browser: Browser) -> np.ndarray:
    """How colorful the pixels of the map on the page are."""
    url = browser.run("return document.querySelector('.map').toDataURL()")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))).astype(int)
    return np.ptp(pixels[..., :3], axis=-1) * pixels[..., 3]


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
@pytest.mark.parametrize("scan", SCANS)
def test_a_click_moves_the_planes(
    served: Callable[..., str], browser: Browser, scan: str, size: tuple[int, int]
) -> None:
    browser.visit(f"{served(solid())}/?photo={scan}&target=0", size)
    settled(browser, target="0")
    x, y, z = voxel_of(scan, MARK)
    words = f"axial: slice {z} of 12, coronal: slice {y} of 24, sagittal: slice {x} of 20"
    assert browser.one("img.photo").get_attribute("alt") == words
    drawn = saturation(browser)
    for name, shares in SHARES.items():
        (left, top, right, bottom), _ = plane_on_page(browser, name)
        plane = drawn[round(top) : round(bottom), round(left) : round(right)]
        rows, columns = np.nonzero(plane > 0.9 * plane.max())
        center = [(columns.mean() + 0.5) / plane.shape[1], (rows.mean() + 0.5) / plane.shape[0]]
        np.testing.assert_allclose(center, shares, atol=0.05)
    # a click in the coronal plane chooses right and top, and leaves the front
    place = np.array([16.5, MARK[1], -10.0])
    (left, top, right, bottom), scale = plane_on_page(browser, "coronal")
    across, down = (0.5 - place[axis] / HALF[axis] / 2 for axis in VIEWS["coronal"])
    picture = browser.one(".picture .map")
    browser.run("arguments[0].scrollIntoView({ block: 'center' })", picture)
    at = (left + across * (right - left)) * scale, (top + down * (bottom - top)) * scale
    offsets = [round(at[axis] - picture.size[side] / 2) for axis, side in enumerate(("width", "height"))]
    browser.actions().move_to_element_with_offset(picture, *offsets).click().perform()
    voxel = voxel_of(scan, place)
    settled(browser, voxel=",".join(map(str, voxel)))
    assert f"slice {voxel[2]} of 12, coronal: slice {y} of" in browser.one("img.photo").get_attribute("alt")
    assert "Planes through voxel" in browser.one(".where").text
    browser.one(".whole").click()
    settled(browser, voxel="")
    assert browser.one("img.photo").get_attribute("alt") == words
    assert "voxel" not in state(browser)


@pytest.mark.parametrize(("size", "scheme"), [((1280, 800), "light"), ((390, 844), "dark")])
def test_everybody_reaches_the_planes(
    served: Callable[..., str], browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    browser.visit(served(solid()), size, scheme)  # and the first volume is chosen
    settled(browser, photo=SCANS[0])
    browser.until(lambda: browser.one(".copy").is_enabled())
    assert not browser.one("#camera").is_displayed()
    assert violations(browser) == []
    assert unreached(browser, lambda: browser.until(lambda: browser.one(".copy").is_enabled())) == []
    browser.run("document.querySelector('.shown').focus()")
    browser.press(Keys.ARROW_RIGHT, *[Keys.ARROW_UP] * 2, Keys.ENTER)
    browser.until(lambda: "voxel" in state(browser))
    settled(browser, voxel=state(browser)["voxel"])
    assert violations(browser) == []
