"""The page in a browser, as people use it: looking, searching, sorting, with keys and on small screens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from galleries import CATS, COMMON, add, append, photo
from lightness import even, lightness, middle
from PIL import Image
from selenium.webdriver.common.keys import Keys

from ebcli.drawing.overlay import picture
from ebcli.drawing.style import DrawingStyle
from ebcli.files.input_spec import Placement
from ebcli.files.records import ClassRecord, Record
from ebcli.gallery.page import write_gallery

COFFEE = (ClassRecord(967, "espresso", 0.9, 0.5, blank=False), ClassRecord(968, "cup", 0.05, 0.5, blank=True))


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "maps"


@pytest.fixture
def page(maps: Path) -> Path:
    """Four inputs: two of cats, at two layers one of them; coffee, whose second map is blank; and a failure."""
    add(maps, photo(Path("cats/cat10.png"), (200, 150)))
    add(maps, photo(Path("cats/cat9.png"), (150, 200)), common=replace(COMMON, layer="features.9"), hot=(3, 3))
    later = add(maps, Path("cats/cat9.png"), CATS[1:])
    coffee = add(maps, photo(Path("coffee.png"), (200, 150)), COFFEE)
    broken = Record("broken.png", "failed", error="it is broken: bits", place="broken.png", seconds=0.75)
    append(maps, replace(broken, model="vgg16", weights="none", layer="features.23", method="contrastive EB"))
    append(maps, replace(later, seconds=2.0), replace(coffee, seconds=0.25))
    return write_gallery(maps)


def test_it_opens_from_disk_in_silence_and_asks_for_nothing_from_outside(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.settle()
    assert browser.complaints() == []
    requests = browser.requests()
    assert len(requests) == 1 + 2 * 3  # the page; photo and map of each image but the failed one
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    browser.run("fetch('https://example.org/').catch(() => {}); new Image().src = 'https://example.org/x.png'")
    blocked: list[str] = []
    browser.until(lambda: blocked.extend(browser.complaints()) or len(blocked) >= 2)
    assert all("Content Security Policy" in text for text in blocked), blocked


def test_the_slider_and_the_views_change_what_is_seen(page: Path, browser: Browser) -> None:
    browser.open(page)
    frame, slider = browser.all(".card .frame")[2], browser.one("#look .opacity")  # cat10
    blue, hottest = (70, 130, 180), (252, 255, 164)  # steelblue; the last color of inferno
    gray = 0.299 * 70 + 0.587 * 130 + 0.114 * 180
    muted = tuple(25 + (0.45 * value + 0.55 * gray) * 90 / 255 for value in blue)  # as under exported overlays
    height, width, _ = browser.pixels(frame).shape
    hot, cold = (height // 8, width * 3 // 8), (height * 7 // 8, width * 7 // 8)  # cells (1, 0) and (3, 3) of 4 x 4

    def seen(place: tuple[int, int]) -> tuple[int, ...]:
        return tuple(browser.pixels(frame)[place])

    assert seen(hot) == pytest.approx(0.92 * np.array(hottest) + 0.08 * np.array(muted), abs=12)  # of an overlay
    slider.send_keys(Keys.HOME)
    assert seen(hot) == pytest.approx(muted, abs=3)
    slider.send_keys(Keys.END)
    assert seen(hot) == pytest.approx(hottest, abs=12)
    assert seen(cold) == pytest.approx(muted, abs=3)
    slider.send_keys(*[Keys.ARROW_LEFT] * 50)
    assert seen(hot) == pytest.approx(np.add(muted, hottest) / 2, abs=12)

    browser.press("1")
    assert seen(hot) == pytest.approx(blue, abs=3)
    browser.press("2")
    assert seen(hot) == pytest.approx(hottest, abs=12)
    assert seen(cold) == (0, 0, 0)
    browser.press("3")
    assert seen(cold) == pytest.approx(muted, abs=3)
    browser.one("#look input[value=photo] + span").click()
    assert seen(hot) == pytest.approx(blue, abs=3)


@pytest.mark.parametrize("signed", [False, True])
def test_the_browser_blends_as_exported_overlays_do(signed: bool, maps: Path, browser: Browser) -> None:
    """A map that rises from left to right over stripes of many colors, in steps whose middles are even."""
    colors = ["white", "silver", "gray", "black", "red", "lime", "blue", "yellow"]
    stripes = Image.new("RGB", (480, 320))
    for at, color in enumerate(colors):
        stripes.paste(color, (0, 40 * at, 480, 40 * at + 40))
    stripes.save("stripes.png")
    steps = np.linspace(-1, 1, 12) if signed else np.linspace(0, 1, 12)
    values, style = np.tile(np.repeat(steps, 4), (8, 1)), DrawingStyle(signed=signed)
    add(maps, Path("stripes.png"), CATS[:1], values=values, style=style)
    browser.open(write_gallery(maps, style))
    shown = browser.pixels(browser.one(".card .photo"))
    scale = shown.shape[1] / 480
    top = (shown.shape[0] - scale * 320) / 2  # fitted into the frame
    rows = [round(top + scale * (40 * at + 20)) for at in range(len(colors))]
    seen = shown[rows][:, [round(scale * (40 * at + 20)) for at in range(12)]]
    exported = np.asarray(picture(stripes, values, Placement(0, 0, 480, 320), style)).astype(int)
    assert np.abs(seen - exported[20::40, 20::40]).max() <= 4
    start = 6 if signed else 0
    for side in (seen[:, start:], seen[:, :start][:, ::-1]):
        assert (np.diff(lightness(side), axis=1) > 0).all()


def test_search_filters_and_sort(page: Path, browser: Browser) -> None:
    browser.open(page)
    everything = ["broken.png", "cat9.png", "cat10.png", "coffee.png"]  # 9 is before 10
    assert browser.names() == everything
    for text, expected in (
        ("CAT1", ["cat10.png"]),
        ("egyptian", ["cat9.png", "cat10.png"]),
        ("cats cat", ["cat9.png", "cat10.png"]),
        ("cup png", ["coffee.png"]),
        ("967", ["coffee.png"]),
        ("cat10 espresso", []),
        ("", everything),
    ):
        browser.write("#query", text)
        assert browser.names() == expected, text
        assert browser.count() == len(expected)
        assert browser.one("#none").is_displayed() is not expected
    for field, option, expected in (
        ("#class", "tiger cat (2)", ["cat10.png"]),  # of cat9.png, another layer's outcome is the latest
        ("#class", "Egyptian cat (3)", ["cat9.png", "cat10.png"]),
        ("#class", "all", everything),
        ("#status", "failed", ["broken.png"]),
        ("#status", "blank map", ["coffee.png"]),
        ("#status", "done", everything[1:]),
        ("#sort", "score", ["cat9.png", "cat10.png", "coffee.png"]),
        ("#sort", "mass", ["cat10.png", "coffee.png", "cat9.png"]),
        ("#sort", "seconds", ["coffee.png", "cat10.png", "cat9.png"]),
    ):
        browser.choose(field, option)
        assert browser.names() == expected, option
    browser.one("#descending").click()
    assert browser.names() == ["cat9.png", "cat10.png", "coffee.png"]
    for field, value, expected in (
        ("#score-from", "0.5", ["cat10.png", "coffee.png"]),
        ("#score-to", "0.6", ["cat10.png"]),
        ("#mass-from", "0.3", []),
    ):
        browser.write(field, value)
        assert browser.names() == expected, field
    browser.one("#none button").click()
    assert browser.names() == everything


def test_what_has_no_value_is_last_in_every_order(page: Path, browser: Browser) -> None:
    browser.open(page)
    for descending in (False, True):
        for field, expected in (
            ("score", ["cat9.png", "cat10.png", "coffee.png"]),
            ("mass", ["cat10.png", "coffee.png", "cat9.png"]),
        ):
            browser.choose("#sort", field)
            assert browser.names() == [*(expected[::-1] if descending else expected), "broken.png"], field
        browser.one("#descending").click()


def test_a_filter_shows_the_map_that_fits(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.choose("#status", "blank map")
    assert browser.one(".card [aria-selected=true]").text == "cup"
    assert browser.one(".card .badge").text == "blank map"
    assert "score 0.050" in browser.one(".card .facts").text
    assert not browser.all(".card .map")


def test_how_strong_a_map_is(maps: Path, browser: Browser) -> None:
    weak, clear = (
        replace(CATS[0], strength=strength, evidence=evidence)
        for strength, evidence in ((0.0025, "hardly any"), (0.25, "clear"))
    )
    add(maps, photo(Path("weak.png"), (200, 150)), (weak,))
    add(maps, photo(Path("clear.png"), (200, 150)), (clear,))
    browser.open(write_gallery(maps))
    told = {}
    for name in ("weak", "clear"):
        browser.write("#query", f"{name}.png")
        told[name] = browser.one(".card .facts").text, [badge.text for badge in browser.all(".card .badge")]
    assert "strength 0.003" in told["weak"][0]
    assert "strength 0.250" in told["clear"][0]
    assert [badges for _, badges in told.values()] == [["hardly any evidence"], []]


def test_tabs_for_classes_layers_and_methods(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.write("#query", "cat9")
    assert [tab.text for tab in browser.all(".card [role=tab]")] == ["Egyptian cat"]
    layers = browser.all("#layers [role=tab]")
    assert [tab.text for tab in layers] == ["all", "features.9", "features.23"]
    assert not browser.one("#methods").is_displayed()
    layers[1].click()
    assert [tab.text for tab in browser.all(".card [role=tab]")] == ["tiger cat", "Egyptian cat"]
    browser.all(".card [role=tab]")[1].click()
    first = browser.one(".card .map").get_attribute("src")
    browser.press(Keys.ARROW_LEFT)
    assert browser.driver.switch_to.active_element.text == "tiger cat"
    assert browser.one(".card .map").get_attribute("alt") == "Map of tiger cat in cat9.png"
    assert browser.one(".card .map").get_attribute("src") != first
    browser.write("#query", "")
    assert browser.names() == ["cat9.png"]  # the only one at this layer

    browser.one("#layers [role=tab]").click()
    browser.all(".card .open")[1].click()
    outcomes = browser.all("#viewer-outcomes [role=tab]")
    assert [tab.text for tab in outcomes] == ["features.9 · contrastive EB", "features.23 · contrastive EB"]
    outcomes[0].click()
    assert len(browser.all("#viewer-classes [role=tab]")) == 2
    assert "features.9" in browser.one("#viewer-facts").text
    assert browser.complaints() == []


def test_keys(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.press("/")
    assert browser.driver.switch_to.active_element.get_attribute("id") == "query"
    browser.press("1", "/")  # text, there
    assert browser.one("#query").get_attribute("value") == "1/"
    browser.press(Keys.ESCAPE)
    browser.write("#query", "cat")
    browser.press(Keys.ESCAPE)
    browser.write("#query", "")
    browser.press(Keys.TAB)
    browser.run("document.activeElement.blur()")

    def focused() -> str:
        return browser.run(
            "return document.activeElement.matches('.open') && document.activeElement.querySelector('bdi').textContent"
        )

    browser.press(Keys.ARROW_DOWN)
    assert focused() == "broken.png"
    browser.press(Keys.ARROW_RIGHT)
    assert focused() == "cat9.png"
    browser.press(Keys.END)
    assert focused() == "coffee.png"
    browser.press(Keys.ARROW_RIGHT)
    assert focused() == "coffee.png"
    browser.press(Keys.HOME, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    name = browser.one("#viewer-name")
    assert name.text == "cats/cat10.png"
    assert browser.driver.switch_to.active_element == name  # which is read out
    assert browser.one("#position").text == "3 of 4"
    browser.press(Keys.ARROW_DOWN)
    assert browser.one("#viewer-classes [aria-selected=true] strong").text == "Egyptian cat"
    browser.press("1")
    assert browser.run("return document.documentElement.dataset.view") == "photo"
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert name.text == "coffee.png"
    browser.one("#previous").click()
    browser.press(Keys.ENTER, Keys.ENTER, Keys.ENTER)  # the button keeps the focus, and so the keys work
    assert name.text == "broken.png"
    assert "it is broken: bits" in browser.one("#viewer .note").text
    browser.press(Keys.ARROW_RIGHT, Keys.ESCAPE)
    browser.until(lambda: focused() == "cat9.png")
    assert not name.is_displayed()
    tabs = browser.all(".card")[2].find_elements("css selector", "[role=tab]")
    assert [tab.get_attribute("aria-selected") for tab in tabs] == ["false", "true"]  # as it was left


def test_every_control_has_a_name_and_shows_its_focus(page: Path, browser: Browser) -> None:
    browser.open(page)
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "searchbox", "combobox", "slider", "radio", "tab", "spinbutton", "image", "link"}
    checked = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert {node["role"]["value"] for node in checked} >= roles - {"textbox", "link"}
    assert [node for node in checked if not node["name"]["value"].strip()] == []
    browser.one("#query").click()
    seen = set()
    for _ in range(40):
        browser.press(Keys.TAB)
        # a radio's and a card's outline is around what stands for them
        widths = browser.run(
            "const e = document.activeElement; return [e, e.nextElementSibling, e.closest('.card')]"
            ".map((e) => e && getComputedStyle(e).outlineStyle !== 'none')"
        )
        element = browser.driver.switch_to.active_element
        if element.tag_name == "body":
            break
        seen.add(element.get_attribute("id") or element.get_attribute("class") or element.tag_name)
        assert any(widths), element.get_attribute("outerHTML")
    assert seen >= {"class", "status", "score-from", "sort", "descending", "opacity", "open"}


def test_the_summary_tells_what_was_run_and_what_failed(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.one("#summary summary").click()
    facts = browser.one("#facts").text
    for fact in ("4 images", "7 maps", "1 map", "vgg16 (untrained)", "features.23, features.9", "contrastive EB"):
        assert fact in facts.replace("\n", " "), fact
    assert "4.0 s" in facts
    assert "1 image" in browser.one("#failures").text
    assert "it is broken: bits" in browser.one("#failures").text
    browser.one("#failures button").click()
    assert browser.names() == ["broken.png"]
    assert browser.one("#status").get_attribute("value") == "failed"


def test_light_and_dark(page: Path, browser: Browser) -> None:
    def brightness() -> int:
        color = browser.run("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.strip("rgb()").split(","))

    browser.open(page, scheme="dark")
    assert brightness() < 150
    browser.open(page, scheme="light")
    assert brightness() > 600
    browser.one("#theme").click()
    browser.one("#theme").click()
    assert brightness() < 150
    browser.open(page, scheme="light")
    assert brightness() < 150  # as it was chosen
    browser.one("#theme").click()
    assert brightness() > 600


@pytest.mark.parametrize("width", [360, 700, 2000])
def test_no_screen_is_too_narrow(width: int, page: Path, browser: Browser) -> None:
    browser.open(page, (width, 740))
    wide = "return document.documentElement.scrollWidth - innerWidth"
    assert browser.run(wide) <= 0
    browser.one("#summary summary").click()
    assert browser.run(wide) <= 0
    edges = "[...document.querySelectorAll('.card, #bar *')].map((element) => element.getBoundingClientRect().right)"
    right = browser.run(f"return Math.max(...{edges})")
    assert right <= width
    browser.one(".open").click()
    assert browser.run("const d = document.getElementById('viewer'); return d.scrollWidth - d.clientWidth") <= 0
    assert browser.one("#close").is_displayed()


def test_on_a_phone_filters_are_folded_and_chips_can_be_read(maps: Path, browser: Browser) -> None:
    names = ("Egyptian cat", "tabby, tabby cat", "tiger cat")
    classes = [ClassRecord(280 + at, name, 0.5, 0.5, blank=False) for at, name in enumerate(names)]
    add(maps, photo(Path("cat.png"), (200, 150)), classes)
    browser.open(write_gallery(maps), (360, 740))
    assert browser.one("#query").is_displayed()
    assert not browser.one("#class").is_displayed()
    browser.one("#filters summary").click()
    assert browser.one("#class").is_displayed()
    assert browser.one("#score-from").is_displayed()
    chips = browser.all(".card [role=tab]")
    assert [chip.text for chip in chips] == list(names)
    for chip in chips:  # all of it, in letters that are large enough
        assert browser.run("return arguments[0].scrollWidth <= arguments[0].clientWidth", chip)
        assert browser.run("return parseFloat(getComputedStyle(arguments[0]).fontSize)", chip) >= 12
    chips[2].click()  # scrolled to
    assert browser.one(".card [aria-selected=true]").text == "tiger cat"
    assert browser.one(".card").rect["width"] > 300
    browser.open(maps / "report/index.html", (1200, 900))
    assert browser.one("#class").is_displayed()
    assert not browser.one("#filters summary").is_displayed()


@pytest.mark.parametrize("signed", [False, True])
def test_the_legend_has_the_colors_of_exported_overlays(signed: bool, maps: Path, browser: Browser) -> None:
    add(maps, photo(Path("a.png")))
    style = DrawingStyle(signed=signed)
    browser.open(write_gallery(maps, style))
    assert browser.one("#legend").text.split("\n") == (
        ["−m", "m, each map's greatest magnitude (fine maps: percentile 99.5)"]
        if signed
        else ["0", "each map's maximum (fine maps: percentile 99.5)"]
    )
    shown = browser.pixels(browser.one("#legend i"))
    row = shown[len(shown) // 2]
    values = np.linspace(-1, 1, 9) if signed else np.linspace(0, 1, 9)
    gray, place = Image.new("RGB", (240, 240), (150, 150, 150)), Placement(0, 0, 240, 240)
    for at, value in zip(np.linspace(0, len(row) - 1, 9).round().astype(int)[1:-1], values[1:-1], strict=True):
        overlay = middle(picture(gray, even(value), place, style)).getpixel((40, 40))
        assert row[at] == pytest.approx(overlay, abs=6)
    seen = lightness(row[3:-3:10])
    assert (np.diff(seen[len(seen) // 2 :] if signed else seen) > 0).all()


def test_an_extended_run_is_an_extended_page(page: Path, maps: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.count() == 4
    add(maps, photo(Path("new.png")))
    append(
        maps,
        Record(
            "broken.png",
            "failed",
            error="another reason",
            place="broken.png",
            layer="features.23",
            method="contrastive EB",
        ),
    )
    write_gallery(maps)
    browser.open(page)
    assert browser.count() == 5
    assert "another reason" in browser.one(".card .note").text


def test_wrong_predictions_on_their_own_with_label_and_prediction(maps: Path, browser: Browser) -> None:
    for name, label, predicted in (("right.png", 282, 282), ("wrong.png", 285, 282)):
        record = add(maps, photo(Path(name)), CATS if label == predicted else CATS[::-1])
        append(maps, replace(record, label=label, predicted=predicted))
    add(maps, photo(Path("unlabeled.png")))
    browser.open(write_gallery(maps))
    assert browser.names() == ["right.png", "unlabeled.png", "wrong.png"]
    assert "accuracy 0.500 (1 of 2)" in browser.one("#lead").text
    marked = [[mark.text for mark in card.find_elements("css selector", ".mark")] for card in browser.all(".card")]
    assert marked == [[], [], ["wrong"]]
    borders = [card.value_of_css_property("border-top-color") for card in browser.all(".card")]
    assert borders[0] == borders[1] != borders[2]
    browser.choose("#status", "wrong only")
    assert browser.names() == ["wrong.png"]
    tabs = [tab.text for tab in browser.all(".card [role=tab]")]
    assert tabs == ["label: Egyptian cat", "predicted: tiger cat"]
    assert browser.complaints() == []


def test_without_labels_there_is_no_wrong_prediction_to_choose(page: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.one("#status option[value=wrong]").get_attribute("disabled")
