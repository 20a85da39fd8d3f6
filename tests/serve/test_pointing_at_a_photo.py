"""The photo as the question: which class has how much evidence at a point, without a request."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import color_tasks
import httpx
import numpy as np
import pytest
from asking import maps, network, until_loaded
from browser import Browser
from color_net import GREEN, RED, load_colors, painted
from live import SIZE, settled
from selenium.webdriver.common.keys import Keys

import ebcli.serve.app
from ebcli.datatypes.atlas import Atlas
from ebcli.models import load_model

RED_AT, GREEN_AT, NOTHING_AT = (70, 100), (230, 100), (3, 195)  # columns and rows
POINT = """
const [x, y] = arguments[0], { left, top, width, height } = document.querySelector(".shown").getBoundingClientRect();
const factor = Math.min(width / 300, height / 200);
return [left + (width - 300 * factor) / 2 + x * factor, top + (height - 200 * factor) / 2 + y * factor];
"""
ALPHA = """
const canvas = document.querySelector(".region");
const [x, y] = arguments[0].map((at, axis) => Math.floor(at / [300, 200][axis] * [canvas.width, canvas.height][axis]));
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
pixel.drawImage(canvas, -x, -y);
return pixel.getImageData(0, 0, 1, 1).data[3];
"""

if TYPE_CHECKING:
    from selenium.webdriver import ActionChains


@pytest.fixture
def squares(ten_photos: Path, served: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted(SIZE, (RED, (20, 20, 120, 180)), (GREEN, (180, 20, 280, 180))).save("squares.png")
    return served(network("colors20", "2"), paths=("squares.png", "photos/0/0000.jpg"))


def opened(browser: Browser, page: str, size: tuple[int, int] = (1280, 800), scheme: str = "light") -> None:
    """The page, once it has all that pointing needs."""
    browser.visit(page, size, scheme)
    settled(browser)
    browser.until(lambda: browser.run("return page.panes[0].probe.atlas !== null"))
    browser.until(
        lambda: browser.run(
            "return page.panes[0].known.maps.layers.size === page.status.networks[0].layers.length"
        )
    )
    browser.requests()


def point(browser: Browser, place: tuple[int, int]) -> ActionChains:
    x, y = browser.run(POINT, place)
    actions = browser.actions(duration=0)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    return actions


def ranking(browser: Browser) -> list[str]:
    return browser.one(".here").text.split("\n")


def test_shares_are_those_of_python(squares: str) -> None:
    with httpx.Client(base_url=squares) as client:
        until_loaded(client)
        answer, sent_maps = maps(client, "/atlas", photo="squares.png")
    about = answer["atlas"]
    found = ebcli.explain(load_colors("colors20"), "squares.png", layer="2", candidates="windows")
    atlas = Atlas.from_maps(found.explanation.maps)
    sent = np.frombuffer(base64.b64decode(about["cells"]), "<u2").reshape(-1, *about["shape"]) / 65535
    order = [[one.name for one in atlas.subjects].index(subject["name"]) for subject in about["subjects"]]
    np.testing.assert_allclose(sent, atlas.evidence[order], atol=1e-5)
    np.testing.assert_allclose(sent_maps, np.asarray(found.maps)[order], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("size", "scheme"), [((1280, 800), "light"), ((390, 844), "dark")])
def test_the_pointer(squares: str, browser: Browser, size: tuple[int, int], scheme: str) -> None:
    opened(browser, squares, size, scheme)
    for place, name in ((RED_AT, "red"), (GREEN_AT, "green"), (RED_AT, "red")):
        point(browser, place).perform()
        assert ranking(browser) == [name, "100%"]
    point(browser, NOTHING_AT).perform()
    assert ranking(browser) == ["nothing clear here"]
    browser.actions().move_to_element(browser.one("h1")).perform()
    assert not browser.one(".here").is_displayed()
    assert browser.requests() == []
    names = [tab.text for tab in browser.all(".found [role=tab] strong")]
    for name, inside, outside in (("red", RED_AT, GREEN_AT), ("green", GREEN_AT, RED_AT)):
        tab = browser.all(".found [role=tab]")[names.index(name)]
        browser.actions().move_to_element(tab).perform()
        is_selected = tab.get_attribute("aria-selected") == "true"
        assert browser.one(".region").is_displayed() != is_selected  # the map of that one is shown
        if not is_selected:
            assert browser.run(ALPHA, inside) == 0
            assert browser.run(ALPHA, outside) > 100
    other = "green" if browser.one(".found [aria-selected=true] strong").text == "red" else "red"
    point(browser, RED_AT if other == "red" else GREEN_AT).click().perform()
    settled(browser, target={"red": "0", "green": "1"}[other])
    browser.actions().move_to_element(browser.one("h1")).perform()
    assert ranking(browser) == [other, "100%"]  # it is kept
    assert not [address for address in browser.requests() if "/maps" in address and "every" not in address]
    assert browser.complaints() == []


def test_a_finger_and_the_keyboard(squares: str, browser: Browser) -> None:
    opened(browser, squares, (390, 844))

    with browser.finger() as touch:
        touch("touchStart", browser.run(POINT, RED_AT))
        browser.until(lambda: ranking(browser) == ["red", "100%"])
        touch("touchMove", browser.run(POINT, GREEN_AT))
        browser.until(lambda: ranking(browser) == ["green", "100%"])
        touch("touchEnd")
        settled(browser, target="1")
        assert ranking(browser) == ["green", "100%"]
    browser.run("document.querySelector('.shown').focus()")
    said = browser.one(".shown [aria-live]")
    browser.press(*[Keys.ARROW_LEFT] * 13)
    browser.until(lambda: said.get_attribute("textContent") == "Here: red 100%")
    browser.press(Keys.ENTER)
    settled(browser, photo="squares.png", target="0")
    browser.press(*[Keys.ARROW_DOWN] * 24)
    assert said.get_attribute("textContent") == "Here: nothing clear"
    browser.press(Keys.ESCAPE)
    assert not browser.one(".point").is_displayed()
    browser.all(".thumbnail")[1].click()
    settled(browser, photo="photos/0/0000.jpg")
    assert not browser.one(".here").is_displayed()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
@pytest.mark.parametrize("means", ["mouse", "finger", "keyboard"])
@pytest.mark.parametrize("late", ["_maps_of", "_atlas_of"])
def test_the_first_touch_asks_and_shows(
    squares: str,
    browser: Browser,
    monkeypatch: pytest.MonkeyPatch,
    late: str,
    means: str,
    size: tuple[int, int],
) -> None:
    """Also before the map is there, or the classes at each place."""
    compute, may_go_on = getattr(ebcli.serve.app, late), threading.Event()

    def slowly(*arguments: object) -> object:
        assert may_go_on.wait(60)
        return compute(*arguments)

    monkeypatch.setattr(f"ebcli.serve.app.{late}", slowly)
    browser.visit(squares, size)
    try:
        if late == "_atlas_of":
            settled(browser)
        browser.until(lambda: browser.run("return document.querySelector('img.photo')?.naturalWidth > 0"))
        first = browser.one(".title").text
        place, target = (RED_AT, "0") if target_of(browser) != "0" else (GREEN_AT, "1")
        touch(browser, means, place)
        browser.until(lambda: browser.one(".here").text == "Looking …")
        assert browser.one(".point").is_displayed()
    finally:
        may_go_on.set()
    settled(browser, photo="squares.png", target=target)
    name = {"0": "red", "1": "green"}[target]
    assert ranking(browser) == [name, "100%"]
    assert browser.one(".found [aria-selected=true] strong").text == name
    assert browser.one(".value").text.startswith("Pixel ")
    assert first == "squares.png"
    place, target = (GREEN_AT, "1") if target == "0" else (RED_AT, "0")
    touch(browser, means, place)  # and so do all others
    settled(browser, target=target)
    assert browser.complaints() == []


def target_of(browser: Browser) -> str | None:
    return browser.run("return page.panes[0].state.target")


def touch(browser: Browser, means: str, place: tuple[int, int]) -> None:
    if means == "mouse":
        point(browser, place).click().perform()
    elif means == "finger":
        with browser.finger() as finger:
            finger("touchStart", browser.run(POINT, place))
            finger("touchEnd")
    else:
        browser.run("document.querySelector('.shown').focus()")
        browser.press(Keys.ESCAPE, Keys.ARROW_LEFT)  # the first one only shows the point, in the middle
        steps = (place[0] - 150) / (300 / 24)
        browser.press(*[Keys.ARROW_LEFT if steps < 0 else Keys.ARROW_RIGHT] * round(abs(steps)), Keys.ENTER)


def test_networks_without_classes_to_compare(
    ten_photos: Path, served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    painted((128, 128), (RED, (16, 16, 56, 56))).save("squares.png")
    page = served(network(f"{color_tasks.__file__}:detector", "backbone.cells"), paths=("squares.png",))
    with httpx.Client(base_url=page) as client:
        until_loaded(client)
        answer = client.get("/atlas", params={"photo": "squares.png"})
    assert answer.status_code == 400
    assert "has no classes to compare" in answer.json()["problem"]
