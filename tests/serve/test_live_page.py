"""The page in Chromium, as people use it."""

import base64
import io
import shlex
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import color_tasks
import httpx
import numpy as np
import pytest
from asking import maps, network, run_command
from browser import Browser
from color_net import GREEN, RED, painted
from live import CATS, CATS_IN_ADDRESSES, SIZE, answers, command, download, settled, state
from PIL import Image
from selenium.webdriver.common.keys import Keys
from two_towers import clip

from ebcli.datatypes.explanation import Box
from ebcli.drawing.overlay import interpolate
from ebcli.drawing.painters import levels, limits, opacity, overlay_colors
from ebcli.drawing.style import DrawingStyle
from ebcli.models import load_model
from ebcli.serve.network import Network

# Whether the answer with all layers is there
ALL_LAYERS = """
const done = performance.getEntriesByType("resource").filter((entry) => entry.responseEnd > 0);
return done.some((entry) => entry.name.includes("layer=every"));
"""
SLIDE = """
const slider = document.querySelector(".layer");
slider.value = arguments[0];
slider.dispatchEvent(new Event("input"));
"""


def test_it_opens_in_silence_with_the_likeliest_class(page: str, browser: Browser) -> None:
    browser.visit(page)
    shown = settled(browser)
    scores = httpx.get(f"{page}/subjects?photo={CATS_IN_ADDRESSES[0]}").json()
    assert shown["target"] == [str(scores[0]["index"])]
    names = [tab.text for tab in browser.all(".found [role=tab] strong")]
    assert names == [one["name"] for one in scores]
    assert browser.one(".found [aria-selected=true] strong").text == names[0]
    assert float(browser.one(".found .score").text) == pytest.approx(scores[0]["score"], abs=1e-3)
    assert browser.one(".title").text == "cats/<img src=x onerror=alert(1)>.png"
    browser.settle()
    assert browser.complaints() == []
    assert {urlsplit(one).netloc for one in browser.requests()} <= {urlsplit(page).netloc, ""}
    blocked: list[str] = []
    browser.run(
        "fetch('https://example.org/').catch(() => {}); new Image().src = 'https://example.org/x.png'"
    )
    browser.until(lambda: blocked.extend(browser.complaints()) or len(blocked) >= 2)
    assert all("Content Security Policy" in text for text in blocked), blocked


def test_a_click_another_class_and_the_way_back(page: str, browser: Browser) -> None:
    browser.visit(page)
    first = settled(browser)["target"][0]
    browser.all(".thumbnail")[1].click()
    settled(browser, photo=CATS[1])
    chosen = browser.all(".found [role=tab] small")[2].text
    browser.all(".found [role=tab]")[2].click()
    settled(browser, photo=CATS[1], target=chosen)
    assert state(browser)["target"] == chosen
    browser.write(".target", "class c")
    browser.write(".against", "class e")
    browser.press(Keys.ENTER)
    settled(browser, target="2", against="class e")
    assert browser.one("#signed").is_selected()
    assert browser.one(".target").get_attribute("value") == "class c"
    contrasted = browser.driver.current_url

    browser.driver.refresh()
    settled(browser, photo=CATS[1], target="2", against="class e")
    assert browser.driver.current_url == contrasted
    assert browser.one(".against").get_attribute("value") == "class e"
    browser.driver.back()
    settled(browser, photo=CATS[1], target=chosen, against="")
    browser.driver.back()
    browser.driver.back()
    settled(browser, photo=CATS[0], target=first)
    browser.driver.forward()
    settled(browser, photo=CATS[1])


def test_the_slider_asks_nothing_and_values_are_those_of_the_map(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=3")
    settled(browser)
    browser.until(lambda: browser.run(ALL_LAYERS))
    answers(browser)
    layers = httpx.get(f"{page}/status").json()["networks"][0]["layers"]
    for number, layer in enumerate(layers):
        browser.run(SLIDE, number)
        settled(browser, layer=layer)
        assert browser.one(".layers output").text == layer
    assert answers(browser) == []
    assert state(browser)["layer"] == layers[-1]

    with httpx.Client(base_url=page) as client:
        _, (values,) = maps(client, photo=CATS[0], target="3", layer=layers[-1])
    frame = browser.one(".picture")
    height, width = values.shape
    for row, column in ((0, 0), (height // 2, 1), (height - 1, width - 1)):
        x = ((column + 0.5) / width - 0.5) * frame.size["width"]
        y = ((row + 0.5) / height - 0.5) * frame.size["height"]
        browser.actions().move_to_element_with_offset(frame, round(x), round(y)).perform()
        expected = f"cell {column}, {row}: {values[row, column] * values.size:.2f} × even share"
        browser.until(lambda expected=expected: expected in browser.one(".value").text)


@pytest.mark.parametrize(
    "look", ["", "&cells=1&signed=1", pytest.param("&target=2&against=1", marks=pytest.mark.slow)]
)
def test_the_canvas_has_the_colors_of_a_picture(page: str, browser: Browser, look: str) -> None:
    target = "" if "target" in look else "&target=3"
    query = f"photo={CATS_IN_ADDRESSES[1]}{target}{look}"
    browser.visit(f"{page}/?{query}")
    settled(browser)
    browser.settle()
    content = browser.run("return document.querySelector('canvas').toDataURL().split(',')[1]")
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA")).astype(int)
    assert drawn.shape == (*SIZE[::-1], 4)

    with httpx.Client(base_url=page) as client:
        about, (values,) = maps(client, **{name: found[0] for name, found in parse_qs(query).items()})
    style = DrawingStyle(signed="signed" in look or "against" in look, cells="cells" in look)
    values = values if style.signed else np.maximum(values, 0)
    place = Box(*about["maps"][0]["place"])
    found = interpolate(levels(values, limits(values, style)), place, (0, 0, *SIZE), style.cells, None)
    level = found.clip(0, 255).astype(int)
    alpha = (255 * opacity(style)).round()[level]
    assert np.abs(drawn[..., 3] - alpha).max() <= 3
    visible = alpha > 60  # of faint pixels, a canvas keeps few colors
    assert np.abs(drawn[..., :3] - overlay_colors(style)[level])[visible].max() <= 6


def test_the_command_makes_what_is_on_the_screen(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[1]}&target=3&alpha=0.7")
    settled(browser)
    browser.until(lambda: browser.run(ALL_LAYERS))  # no thread computes any more, and takes stdout
    words = shlex.split(command(browser))
    assert words[1:6] == ["cats/a cat.jpg", "--model", "tiny", "--target", "class d"]
    address = download(browser)
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    browser.until(lambda: browser.run(ALL_LAYERS))  # the command and the server take turns with stdout
    with httpx.Client(base_url=page) as client:
        made, shown = run_command(client, query)
    assert shlex.split(shown) == words
    assert made == httpx.get(f"{page}{address}").content
    browser.run(
        "Object.assign(document.querySelector('.shown').style, {width: '300px', height: '200px', borderRadius: 0})"
    )
    expected = np.asarray(Image.open(io.BytesIO(made)).convert("RGB")).astype(int)
    pixels = browser.pixels(browser.one(".picture"))
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).mean() < 3  # the photo is a JPEG once more
    browser.press("2")
    browser.until(lambda: "--style heatmap" in browser.one(".command").text)
    heatmap = httpx.get(f"{page}{browser.until(lambda: download(browser))}").content
    expected = np.asarray(Image.open(io.BytesIO(heatmap)).convert("RGB")).astype(int)
    assert np.abs(browser.pixels(browser.one(".picture")) - expected).mean() < 3


def test_keys(page: str, browser: Browser) -> None:
    browser.visit(page)
    settled(browser, photo=CATS[0])
    for key, view in (("1", "photo"), ("2", "map"), ("3", "overlay")):
        browser.press(key)
        assert browser.run("return document.documentElement.dataset.view") == view
    browser.press(Keys.ARROW_RIGHT)
    settled(browser, photo=CATS[1])
    browser.press(Keys.ARROW_DOWN)
    second = browser.all(".found [role=tab] small")[1].text
    settled(browser, photo=CATS[1], target=second)
    browser.press(".")
    coarser = settled(browser, photo=CATS[1], target=second)["layer"]
    browser.press("c", "s")
    assert browser.one("#cells").is_selected()
    assert browser.one("#signed").is_selected()
    assert state(browser) | {"cells": "1", "signed": "1"} == state(browser)
    browser.press("/")
    assert "target" in browser.driver.switch_to.active_element.get_attribute("class")
    browser.press("c", "1")  # text, there
    assert browser.one("#cells").is_selected()
    assert coarser
    assert browser.complaints() == []


def test_photos_are_added_and_hostile_ones_refused(page: str, browser: Browser, tmp_path: Path) -> None:
    painted(SIZE, (RED, (10, 10, 90, 90))).save("mine.png")
    Path("drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    browser.visit(page)
    settled(browser)
    browser.one("#files").send_keys(str(Path("mine.png").resolve()))
    digest = sha256(Path("mine.png").read_bytes()).hexdigest()
    settled(browser, photo=f"added-{digest[:16]}")
    assert browser.one(".title").text == "mine.png"
    assert len(browser.all(".thumbnail")) == 4
    browser.one("#files").send_keys(str(Path("drawing.svg").resolve()))
    browser.until(lambda: browser.one("#trouble").text == "drawing.svg: not an image that Pillow can read")
    assert len(browser.all(".thumbnail")) == 4
    browser.all(".thumbnail")[0].click()
    settled(browser, photo=CATS[0])
    assert browser.one("#trouble").text == ""


def test_two_side_by_side(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=1")
    settled(browser)
    browser.one("#compare").click()
    settled(browser, 1, photo=CATS[0], target="1")
    browser.all(".thumbnail")[1].click()
    settled(browser, 1, photo=CATS[1])
    settled(browser, 0, photo=CATS[0], target="1")
    assert state(browser)["b-photo"] == CATS[1]
    browser.all(".pane .title")[0].click()
    browser.all(".thumbnail")[2].click()
    settled(browser, 0, photo=CATS[2])
    settled(browser, 1, photo=CATS[1])
    browser.driver.refresh()
    settled(browser, 1, photo=CATS[1])
    settled(browser, 0, photo=CATS[2])
    browser.one("#compare").click()
    assert len(browser.all(".pane")) == 1
    assert "b-photo" not in state(browser)


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize(
    ("name", "layer"),
    [("detector", "backbone.cells"), pytest.param("Segmenter", "pixels", marks=pytest.mark.slow)],
)
def test_objects_are_chosen_by_a_click_on_them(
    served: Callable[..., str],
    browser: Browser,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    layer: str,
    is_early: bool,
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    compute, may_go_on = Network.explain, threading.Event()

    def explain(*arguments: Any) -> Any:
        assert may_go_on.wait(60)
        return compute(*arguments)

    monkeypatch.setattr(Network, "explain", explain)
    squares = {"green": (80, 40, 120, 100), "red": (16, 16, 56, 56)}
    painted((128, 128), (RED, squares["red"]), (GREEN, squares["green"])).save("squares.png")
    page = served(network(f"{color_tasks.__file__}:{name}", layer), paths=("squares.png",))
    browser.visit(page)
    if not is_early:
        may_go_on.set()
        settled(browser)
    browser.until(lambda: browser.run("return document.querySelector('img.photo')?.naturalWidth > 0"))
    frame = browser.one(".picture")
    scale = min(frame.size["width"], frame.size["height"]) / 128
    for color, (left, top, right, bottom) in squares.items():
        x, y = ((3 * left + right) / 4 - 64) * scale, ((3 * top + bottom) / 4 - 64) * scale
        browser.actions().move_to_element_with_offset(frame, round(x), round(y)).click().perform()
        if not may_go_on.is_set():
            browser.until(lambda: browser.one(".here").text == "Looking …")
            may_go_on.set()
        settled(browser, target=str(color_tasks.CATEGORIES.index(color)))
        assert browser.one(".found [aria-selected=true] strong").text == color
        assert len(browser.all("path.chosen")) == 1
    assert browser.complaints() == []


def test_two_networks_side_by_side(pictures: None, served: Callable[..., str], browser: Browser) -> None:
    page = served(network("tiny"), network("other", "0"), paths=("cats",))
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=3")
    settled(browser, target="3", layer="2")
    browser.until(lambda: len(browser.all("datalist")) == 2)
    browser.one("#compare").click()
    settled(browser, 1, photo=CATS[0], target="3", network="1", layer="0")
    assert [box.get_attribute("value") for box in browser.all("select.network")] == ["0", "1"]
    browser.choose(".network", "other")
    settled(browser, 0, network="1", layer="0")


@pytest.mark.slow
def test_texts_are_typed(
    pictures: None, served: Callable[..., str], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    clip(Path("two"))
    browser.visit(served(network("clip/two"), paths=("cats",)))
    browser.until(lambda: browser.one(".note").text == "Type a text: what to look for")
    for text in ("red A", "pink"):
        browser.write(".target", text)
        browser.press(Keys.ENTER)
        settled(browser, target=text)
    browser.until(lambda: [tab.text for tab in browser.all(".found strong")] == ["red A", "pink"])
    browser.all(".found [role=tab]")[0].click()
    settled(browser, target="red A")
    assert browser.complaints() == []


@pytest.mark.parametrize(("size", "scheme"), [((320, 640), "dark"), ((1600, 900), "light")])
def test_it_fits_on_screens_of_any_size_and_is_dark_where_the_system_is(
    page: str, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    browser.visit(page, size, scheme)
    settled(browser)
    browser.one("#compare").click()
    settled(browser, 1)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in ground.strip("rgb()").split(",")) > 3 * 128
    assert light == (scheme == "light")
