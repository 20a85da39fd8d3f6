"""What the page says while it computes, of what is wrong, and of what it shows; and that all of it is in reach."""

import threading
from collections.abc import Callable

import httpx
import pytest
from asking import maps
from browser import Browser
from live import CATS, CATS_IN_ADDRESSES, download, settled, state
from selenium.webdriver.common.keys import Keys

from ebcli.serve.network import Network

# The focused element with its ring, and the nearest box that clips it
RING = """
const ring = document.activeElement.getBoundingClientRect();
const margin = parseFloat(getComputedStyle(document.activeElement).outlineWidth) + 2;
let box = document.activeElement.parentElement;
while (getComputedStyle(box).overflowX === "visible" && box !== document.body) box = box.parentElement;
const clip = box.getBoundingClientRect();
return [ring.left - margin - clip.left, ring.top - margin - clip.top, clip.bottom - ring.bottom - margin];
"""


def test_it_says_that_it_computes_and_the_buttons_wait(
    page: str, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.visit(page)
    settled(browser)
    browser.until(lambda: download(browser))
    explain, may_go_on = Network.explain, threading.Event()

    def slowly(*args: object) -> object:
        assert may_go_on.wait(30)
        return explain(*args)

    monkeypatch.setattr(Network, "explain", slowly)
    browser.all(".thumbnail")[1].click()
    try:
        browser.until(lambda: browser.one(".busy").text == "Computing …")
        assert browser.one(".pane").get_attribute("aria-busy") == "true"
        assert not browser.one(".copy").is_enabled()
        assert not browser.one(".download").is_enabled()
    finally:
        may_go_on.set()
    settled(browser, photo=CATS[1])
    assert not browser.one(".busy").is_displayed()
    browser.until(lambda: browser.one(".copy").is_enabled() and download(browser))


def test_the_map_comes_first_and_the_list_after_it(page: str, browser: Browser) -> None:
    browser.visit(page)
    settled(browser)
    browser.until(lambda: browser.all(".found [role=tab]"))
    browser.requests()
    browser.all(".thumbnail")[1].click()
    settled(browser, photo=CATS[1])
    browser.until(lambda: not browser.all(".found.stale"))
    asked = [address.partition("?")[0].rpartition("/")[2] for address in browser.requests()]
    asked = [path for path in asked if path in ("maps", "subjects")]
    assert asked[:2] == ["maps", "subjects"]


def test_a_wrong_class_is_a_sentence_and_a_choice_and_the_page_goes_on(page: str, browser: Browser) -> None:
    browser.visit(page)
    settled(browser)
    before = browser.run("return history.length"), browser.driver.current_url
    browser.write(".target", "clas c")
    browser.press(Keys.ENTER)
    browser.until(lambda: "there is no class 'clas c'" in browser.one(".note").text.lower())
    assert "--" not in browser.one(".note").text
    assert (browser.run("return history.length"), browser.driver.current_url) == before
    assert not browser.one("canvas.map").is_displayed()
    assert browser.one(".facts").text == ""
    choices = [button.text for button in browser.all(".note button")]
    browser.all(".note button")[choices.index("class c")].click()
    settled(browser, target="2")
    assert not browser.one(".note").is_displayed()
    assert browser.run("return history.length") == min(before[0] + 1, 50)  # the most that Chromium keeps
    browser.write(".against", "walrus")
    browser.press(Keys.ENTER)
    browser.until(lambda: "there is no class 'walrus'" in browser.one(".note").text.lower())
    browser.all(".found [role=tab]")[1].click()
    browser.until(lambda: "walrus" in browser.one(".note").text)  # it is still contrasted with
    browser.write(".against", "")
    browser.press(Keys.ENTER)
    settled(browser, against="")
    assert not browser.one(".note").is_displayed()


def test_numbers_have_a_meaning_for_those_who_point_tap_tab_or_listen(page: str, browser: Browser) -> None:
    browser.visit(page)
    settled(browser)
    assert [fact.text.split()[0] for fact in browser.all(".fact button")] == ["score", "strength"]
    for fact in browser.all(".fact"):
        button, meaning = (fact.find_element("css selector", name) for name in ("button", ".meaning"))
        assert button.get_attribute("aria-describedby") == meaning.get_attribute("id")
        assert not meaning.is_displayed()
        browser.actions().move_to_element(button).perform()
        assert len(meaning.text) > 40
        browser.actions().move_to_element(browser.one("h1")).perform()
        assert not meaning.is_displayed()
        browser.run("arguments[0].focus()", button)
        assert meaning.is_displayed()
        browser.run("document.activeElement.blur()")
    place = browser.one(".fact button").rect
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        point = {"x": place["x"] + 5, "y": place["y"] + 5}
        browser.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
        browser.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        browser.until(lambda: browser.one(".fact .meaning").is_displayed())
        browser.driver.refresh()
        settled(browser)
        assert browser.one(".value").text.startswith("Tap the picture")
    finally:
        browser.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.driver.refresh()
    settled(browser)
    assert browser.one(".value").text.startswith("Point at the picture")
    browser.driver.get(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=2&method=marginal")
    settled(browser, method="marginal")
    assert [fact.text.split()[0] for fact in browser.all(".fact button")] == ["score", "mass"]


def test_the_method_is_chosen_from_a_menu(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=2&against=4")
    settled(browser, against="4")
    offered = [option.text for option in browser.all("select.method option")]
    assert offered[:3] == ["contrastive", "marginal", "object"]
    assert {"grad-cam", "lrp"} < {*offered}
    assert "rise" not in offered  # which would take a thousand passes
    browser.choose("select.method", "object")
    settled(browser, method="object", against="4")
    browser.choose("select.method", "grad-cam")
    settled(browser, method="grad-cam", against="")  # which compares no classes
    assert not browser.one("input.against").is_enabled()
    with httpx.Client(base_url=page) as client:
        about, _ = maps(client, photo=CATS[0], target="2", method="grad-cam")
    high = float(browser.one(".scale").text.split()[1])
    assert high > float(about["maps"][0]["scales"]["unsigned"][0])


def test_the_colors_are_explained(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=2")
    settled(browser)
    with httpx.Client(base_url=page) as client:
        about, (values,) = maps(client, photo=CATS[0], target="2")
    low, high, *_ = browser.one(".scale").text.split()
    assert float(low) == about["maps"][0]["scales"]["unsigned"][0]
    assert float(high) == pytest.approx(about["maps"][0]["scales"]["unsigned"][1] * values.size, rel=0.05)
    browser.driver.get(f"{page}/?photo={CATS_IN_ADDRESSES[0]}&target=2&against=4")
    settled(browser, against="4")
    browser.until(lambda: browser.one(".scale").text.split("\n")[0] == "class e")
    assert "class c" in browser.one(".scale").text.split("\n")[1]


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_all_is_in_reach(page: str, browser: Browser, size: tuple[int, int]) -> None:
    browser.visit(page, size)
    settled(browser)
    browser.until(lambda: browser.all(".found [role=tab]") and browser.one(".copy").is_enabled())
    tab = browser.one(".found [aria-selected=true]")
    first = httpx.get(f"{page}/subjects?photo={CATS_IN_ADDRESSES[0]}").json()[0]
    name, score = tab.find_element("css selector", "strong").text, f"{first['score']:.3f}"
    assert tab.accessible_name.split() == [*name.split(), str(first["index"]), "score", score]
    if size[0] > 1000:
        for part in (".layer", ".command", ".copy"):
            assert (
                browser.run(f"return document.querySelector('{part}').getBoundingClientRect().bottom")
                <= size[1]
            )
    for focused in (".found [role=tab]", ".thumbnail", ".views input:checked", ".copy"):
        browser.run(f"document.querySelector('{focused}').focus({{focusVisible: true}})")
        if focused != ".views input:checked":
            assert min(browser.run(RING)) >= 0, focused
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert "target" in state(browser)


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_side_by_side_has_its_controls_in_reach(page: str, browser: Browser, size: tuple[int, int]) -> None:
    browser.visit(page, size)
    settled(browser)
    browser.one("#compare").click()
    settled(browser, 1)
    browser.until(lambda: len(browser.all(".found [aria-selected=true]")) == 2)
    photos = browser.all(".shown")
    for number, photo in enumerate(photos):
        browser.run("arguments[0].focus()", photo)  # as with Tab, or by a tap
        pane = browser.all(".pane")[number]
        for part in (
            ".found [aria-selected=true]",
            ".target",
            ".against",
            ".ask button",
            ".method",
            ".layer",
        ):
            control = pane.find_element("css selector", part)
            assert control.is_displayed(), (number, part)
            assert control.rect["y"] + control.rect["height"] <= size[1], (number, part)
    assert photos[0].rect["y"] == photos[1].rect["y"]
    assert photos[0].rect["x"] + photos[0].rect["width"] < photos[1].rect["x"]
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_an_earlier_question_does_not_change_the_address(
    page: str, browser: Browser, monkeypatch: pytest.MonkeyPatch, served: Callable[..., str]
) -> None:
    browser.visit(page)
    settled(browser, photo=CATS[0])
    browser.all(".thumbnail")[1].click()
    settled(browser, photo=CATS[1])
    browser.all(".thumbnail")[2].click()
    browser.driver.back()
    settled(browser, photo=CATS[0])
    assert state(browser)["photo"] == CATS[0]
