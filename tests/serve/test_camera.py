"""The camera: what the network sees now, one frame at a time."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from asking import decode_maps, maps, network
from browser import Browser
from color_net import GREEN, RED, load_colors, painted
from live import settled, state
from PIL import Image
from selenium.webdriver.common.keys import Keys
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from ebcli.datatypes.explanation import JsonObject
from ebcli.serve.app import Page
from ebcli.serve.network import CameraFrame, Network


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    return file.getvalue()


FRAME = painted((96, 64), (RED, (8, 8, 40, 56)), (GREEN, (56, 8, 88, 56)))


def test_a_frame_has_the_map_of_the_same_photo(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    client = opened(network("colors20", "2"))
    key = client.post("/photos?name=a.jpg", content=jpeg(FRAME)).json()["key"]
    photos = client.get("/status").json()["photos"]
    for query in ({}, {"target": "1"}, {"target": "1", "against": "0", "layer": "0"}, {"method": "grad-cam"}):
        answer = client.post("/frame", params=query, content=jpeg(FRAME))
        about, values = decode_maps(answer.content)
        expected, expected_values = maps(client, **query, photo=key)
        scores = [subject["score"] for subject in about.pop("likeliest")]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert about == expected
        np.testing.assert_array_equal(values, expected_values)
    assert client.get("/status").json()["photos"] == photos  # nothing is kept


@pytest.mark.parametrize(
    ("content", "query", "status", "problem"),
    [
        (b"", {}, 400, "not an image that Pillow can read"),
        (jpeg(FRAME)[:300], {}, 400, ""),
        (jpeg(FRAME), {"target": "walrus"}, 400, "there is no class 'walrus'"),
        (bytes(2 << 20), {}, 413, "it is larger than 1048576 bytes: raise EB_SALIENCY_MAX_BYTES"),
    ],
)
def test_a_wrong_frame_is_one_sentence(
    client: TestClient, content: bytes, query: dict[str, str], status: int, problem: str
) -> None:
    answer = client.post("/frame", params=query, content=content)
    assert answer.status_code == status
    assert problem in answer.json()["problem"]
    assert "\n" not in answer.json()["problem"]


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> JsonObject:
    """How many frames wait for an answer, the most at a time, and how many had one; for pages that are made later."""
    counts: JsonObject = {"now": 0, "most": 0, "total": 0, "sizes": set()}
    answer, explain = Page._frame, Network.explain_frame

    async def counting(self: Page, request: Request) -> Response:
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        try:
            return await answer(self, request)
        finally:
            counts["now"] -= 1
            counts["total"] += 1

    def measuring(self: Network, *arguments: Any) -> CameraFrame:
        frame = explain(self, *arguments)
        counts["sizes"].add(frame.size)
        return frame

    monkeypatch.setattr(Page, "_frame", counting)
    monkeypatch.setattr(Network, "explain_frame", measuring)
    return counts


def started(browser: Browser) -> None:
    settled(browser, photo="camera")
    browser.until(lambda: browser.one(".rate").text)


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_camera_is_watched_held_and_kept(
    frames: JsonObject, page: str, browser: Browser, size: tuple[int, int]
) -> None:
    browser.visit(page, size)
    settled(browser)
    count = len(browser.all(".thumbnail"))
    browser.one("#camera").click()
    started(browser)
    browser.requests()
    assert state(browser) == {"photo": "camera"}
    assert browser.one("#camera").get_attribute("aria-pressed") == "true"
    assert browser.one("video").is_displayed()
    assert not browser.one("img.photo").is_displayed()
    assert browser.one("canvas.map").is_displayed()
    before = frames["total"]
    browser.until(lambda: frames["total"] > before + 5)
    assert frames["most"] == 1
    ((width, height),) = frames["sizes"]
    assert max(width, height) == 480
    video = browser.run(
        "const video = document.querySelector('video'); return [video.videoWidth, video.videoHeight]"
    )
    assert video[0] / video[1] == pytest.approx(width / height, rel=0.01)
    assert not [address for address in browser.requests() if "/command" in address]

    other = browser.all(".found [role=tab]")[2]  # stays in place while somebody points at it
    index = other.find_element("css selector", "small").text
    assert not browser.one(".release").is_displayed()
    other.click()
    settled(browser, photo="camera", target=index)
    assert state(browser) == {"photo": "camera", "target": index}
    browser.until(lambda: browser.one(".found [aria-selected=true] small").text == index)
    browser.one(".release").click()
    settled(browser, photo="camera", target="")

    browser.one(".keep").click()
    browser.until(lambda: len(browser.all(".thumbnail")) == count + 1)
    assert browser.one("video").is_displayed()
    kept = browser.all(".thumbnail")[count]
    assert kept.get_attribute("title").startswith("camera 20")
    kept.click()
    assert settled(browser)["photo"][0].startswith("added-")
    assert browser.run("return page.panes[0].map.size") == video
    browser.until(lambda: browser.run("return camera.opening === null"))
    asked = frames["total"]
    settled(browser)
    assert frames["total"] <= asked + 1
    assert browser.complaints() == []


def test_the_camera_is_reached_by_keyboard(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo=camera")
    started(browser)
    browser.run("document.querySelector('#camera').focus()")
    names = []
    while browser.driver.switch_to.active_element.get_attribute("role") != "tab":
        browser.press(Keys.TAB)
        names.append(browser.driver.switch_to.active_element.accessible_name)
        assert len(names) < 40
    assert "Keep" in names
    browser.press(Keys.ARROW_DOWN)
    browser.until(lambda: "target" in state(browser))
    browser.run("document.querySelector('.release').focus()")
    browser.press(Keys.ENTER)
    settled(browser, photo="camera", target="")


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "Object.defineProperty(navigator, 'mediaDevices', { value: undefined })",
            "The camera cannot be used: browsers lend it to pages of this machine and of https only: use ssh -L",
        ),
        (
            "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError'))",
            "The browser may not use the camera: allow it for this page, and choose Camera again",
        ),
    ],
)
def test_without_a_camera_there_is_a_sentence(
    page: str, browser: Browser, script: str, sentence: str
) -> None:
    browser.visit(page)
    settled(browser)
    browser.run(script)
    browser.one("#camera").click()
    browser.until(lambda: browser.one(".note").text == sentence)
    browser.one("#camera").click()
    settled(browser)
    assert not browser.one(".note").is_displayed()


def test_only_the_page_itself_may_ask_for_the_camera(client: TestClient) -> None:
    assert "camera=(self)" in client.get("/").headers["permissions-policy"]
    assert "microphone=()" in client.get("/").headers["permissions-policy"]
