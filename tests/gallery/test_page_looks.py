"""How the page looks in a browser: colors, and screens of any size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from galleries import CATS, COMMON, add, photo
from lightness import difference, even, middle
from PIL import Image
from selenium.webdriver.common.keys import Keys

from ebcli.datatypes.explanation import Box
from ebcli.drawing.overlay import picture
from ebcli.drawing.style import DrawingStyle
from ebcli.files.records import ClassRecord
from ebcli.gallery.page import write_gallery


def test_the_slider_and_the_views_change_what_is_seen(page: Path, browser: Browser) -> None:
    browser.open(page)
    frame, slider = browser.all(".card .frame")[2], browser.one("#look .opacity")  # cat10
    blue, hottest = (70, 130, 180), (230, 0, 255)  # steelblue; the last color of overlays
    height, width, _ = browser.pixels(frame).shape
    hot, cold = (
        (height // 8, width * 3 // 8),
        (height * 7 // 8, width * 7 // 8),
    )  # cells (1, 0) and (3, 3) of 4 x 4

    def seen(place: tuple[int, int]) -> tuple[int, ...]:
        return tuple(browser.pixels(frame)[place])

    assert seen(hot) == pytest.approx(
        0.85 * np.array(hottest) + 0.15 * np.array(blue), abs=12
    )  # of an overlay
    slider.send_keys(Keys.HOME)
    assert seen(hot) == pytest.approx(blue, abs=3)
    slider.send_keys(Keys.END)
    assert seen(hot) == pytest.approx(hottest, abs=12)
    assert seen(cold) == pytest.approx(blue, abs=3)
    slider.send_keys(*[Keys.ARROW_LEFT] * 50)
    assert seen(hot) == pytest.approx(np.add(blue, hottest) / 2, abs=12)

    browser.press("1")
    assert seen(hot) == pytest.approx(blue, abs=3)
    browser.press("2")
    assert seen(hot) == pytest.approx(hottest, abs=12)
    assert seen(cold) == (0, 0, 0)
    browser.press("3")
    assert seen(cold) == pytest.approx(blue, abs=3)
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
    exported = np.asarray(picture(stripes, values, Box(0, 0, 480, 320), style)).astype(int)
    assert np.abs(seen - exported[20::40, 20::40]).max() <= 4


def test_every_control_has_a_name_and_shows_its_focus(page: Path, browser: Browser) -> None:
    browser.open(page)
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    roles = {
        "button",
        "textbox",
        "searchbox",
        "combobox",
        "slider",
        "radio",
        "tab",
        "spinbutton",
        "image",
        "link",
    }
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
    browser.driver.refresh()
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
    assert (
        browser.run("const d = document.getElementById('viewer'); return d.scrollWidth - d.clientWidth") <= 0
    )
    assert browser.one("#close").is_displayed()


def test_on_a_phone_filters_are_folded_and_chips_can_be_read(maps: Path, browser: Browser) -> None:
    names = ("Egyptian cat", "tabby, tabby cat", "tiger cat")
    classes = [ClassRecord(280 + at, name, 0.5, mass=0.5, blank=False) for at, name in enumerate(names)]
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
    weak = ", more where evidence is weak"  # on this page or one that a later run extends it to
    assert browser.one("#legend").text.split("\n") == (
        ["−m", f"m, each map's greatest magnitude (fine maps: percentile 99.5){weak}"]
        if signed
        else ["0", f"each map's maximum (fine maps: percentile 99.5){weak}"]
    )
    shown = browser.pixels(browser.one("#legend i"))
    row = shown[len(shown) // 2]
    values = np.linspace(-1, 1, 9) if signed else np.linspace(0, 1, 9)
    gray, place = Image.new("RGB", (240, 240), (150, 150, 150)), Box(0, 0, 240, 240)
    for at, value in zip(
        np.linspace(0, len(row) - 1, 9).round().astype(int)[1:-1], values[1:-1], strict=True
    ):
        overlay = middle(picture(gray, even(value), place, style)).getpixel((40, 40))
        assert row[at] == pytest.approx(overlay, abs=6)
    seen = difference(row[3:-3:10], (150, 150, 150))
    assert (np.diff(seen[len(seen) // 2 :] if signed else seen) > 0).all()


# What is wrong with each chip: it is cut through by what is around it, or ends without an ellipsis and its whole text
CUT = """
const cut = (chip) => {
  const inner = chip.getBoundingClientRect();
  for (let box = chip.parentElement; box !== document.body; box = box.parentElement) {
    if (getComputedStyle(box).overflowX === "visible") continue;
    const outer = box.getBoundingClientRect();
    if (inner.top > outer.bottom - 1 || inner.bottom < outer.top + 1) return false; // scrolled away
    const isIn = inner.top > outer.top - 1 && inner.bottom < outer.bottom + 1;
    if (!isIn || inner.left < outer.left || inner.right > outer.right) return true;
  }
  return inner.left < 0 || inner.right > innerWidth;
};
const shortened = (chip) => chip.scrollWidth > chip.clientWidth;
const isWhole = (chip) => getComputedStyle(chip).textOverflow === "ellipsis" && chip.title.includes(chip.textContent);
const chips = [...document.querySelectorAll("[role=tablist]:not([aria-orientation]) > *")];
return chips.filter((chip) => cut(chip) || (shortened(chip) && !isWhole(chip))).map((chip) => chip.textContent);
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_chip_is_cut_through(width: int, maps: Path, browser: Browser) -> None:
    names = [
        "tabby",
        "a class whose name has as many words as a sentence",
        "x" * 60,
        "Egyptian cat",
        "lynx",
        "cup",
    ]
    classes = [ClassRecord(280 + at, name, 0.5, mass=0.5, blank=False) for at, name in enumerate(names)]
    long = replace(COMMON, layer="encoder.layers.encoder_layer_11.mlp.a_long_name_of_a_module.linear_3")
    for common in (COMMON, long):
        add(maps, photo(Path("cat.png"), (200, 150)), classes, common=common)
    browser.open(write_gallery(maps), (width, 900))
    assert browser.run(CUT) == []
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    chips = browser.all(".card [role=tab]")
    chips[0].send_keys(Keys.ARROW_LEFT)  # to the last class, which is scrolled to
    browser.until(lambda: chips[-1].is_displayed() and browser.run(CUT) == [])
    browser.one(".open").click()
    assert browser.run(CUT) == []
