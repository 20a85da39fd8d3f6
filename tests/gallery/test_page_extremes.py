"""The page where things are not as usual: names that mean harm, thousands of images, pictures that are not there."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from galleries import CATS, COMMON, add, append, crowd, names_of, photo, wrote
from PIL import Image
from selenium.webdriver.common.keys import Keys

from ebcli.gallery.page import write_gallery

HOSTILE = [
    "<img src=x onerror=alert(1)>.png",
    "'single' \"double\" `back`.png",
    "a#b?c%20d%.png",
    "  spaces  .png",
    "new\nline.png",
    "a:b\\c&amp;.png",
    "\udcff\udc80.png",
    "javascript:alert(1).png",
    "\u2028\u202e.png",
]


def test_hostile_names_are_shown_and_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\u2028"
    maps = Path("#?%\"' <b>")
    common = replace(COMMON, model=evil, weights=evil, layer=evil, method=evil)
    classes = [replace(CATS[0], name=evil), CATS[1]]
    for name in HOSTILE:
        Image.new("RGB", (40, 30), "teal").save(photo(Path("fine.png")).rename(name), "png")
        done = add(maps, Path(name), classes, common=common)
    append(maps, wrote(replace(done, input=evil, place="evil", status="failed", error=evil)))
    browser.open(write_gallery(maps))
    browser.settle()
    assert browser.complaints() == []  # an alert would also end the test
    assert browser.count() == len(HOSTILE) + 1
    shown = browser.run(
        "return [...document.querySelectorAll('.open')].map((open) => open.title.toWellFormed())"
    )
    assert set(shown) == {re.sub("[\udc80-\udcff]", "\ufffd", name) for name in (*HOSTILE, evil)}
    widths = browser.run(
        "return [...document.querySelectorAll('.card img')].map((image) => image.naturalWidth)"
    )
    assert widths == [40] * 2 * len(HOSTILE)
    assert browser.run("return document.scripts.length") == 2
    assert browser.run("return document.querySelectorAll('[onerror], img[src=x], b').length") == 0
    browser.one("#summary summary").click()
    assert evil in browser.one("#failures li").get_attribute("textContent")
    browser.write("#query", "<img src=x onerror=alert(1)>.png")
    assert browser.count() == 1
    browser.write("#query", "")
    browser.press(Keys.ESCAPE, Keys.ENTER)
    links = _links(browser)
    assert len(links) == len(HOSTILE)
    for link in links:
        browser.driver.get(link)
        assert browser.run("return document.images[0].naturalWidth") == 40, link


def _links(browser: Browser) -> list[str]:
    """The addresses of all full-size results, read from the large view."""
    links = []
    while True:
        assert browser.all("#viewer-name *") == []
        link = browser.one("#viewer-result")
        if link.is_displayed():
            links.append(link.get_attribute("href"))
        following = browser.one("#next")
        if following.get_attribute("aria-disabled") == "true":
            return links
        following.click()


def test_results_stand_in_where_no_map_was_kept(maps: Path, browser: Browser) -> None:
    add(maps, photo(Path("a.png")), keep=())
    add(maps, photo(Path("gone.png")), keep=())
    Path("gone.png").unlink()
    browser.open(write_gallery(maps, inputs=[Path()]))
    known, gone = browser.all(".card .frame")
    for view, colors in (("3", [(254, 0, 0)] * 2), ("1", [(70, 130, 180), None]), ("2", [None, None])):
        browser.press(view)
        for frame, color in zip((known, gone), colors, strict=True):
            if color is None:
                assert frame.text.startswith(
                    "Photo not available" if view == "1" else "No separate map available"
                )
            else:
                middle = np.array(browser.pixels(frame).shape) // 2
                assert tuple(browser.pixels(frame)[middle[0], middle[1]]) == pytest.approx(color, abs=4)
    assert browser.complaints() == []


def test_ten_thousand_images_are_no_burden(maps: Path, browser: Browser) -> None:
    count = 10_000
    crowd(maps, count)
    browser.open(write_gallery(maps))
    browser.settle()
    assert browser.count() == count
    few = browser.run("return document.querySelectorAll('*').length")
    assert few < 2000
    browser.one("#query").send_keys("kind-7")
    browser.until(lambda: browser.count() == count // 10)
    assert browser.names()[0] == "00007.jpg"
    browser.write("#query", "")
    browser.choose("#sort", "score")
    browser.one("#descending").click()
    browser.run("scrollTo(0, document.documentElement.scrollHeight)")
    browser.until(lambda: "00001.jpg" in browser.names())
    browser.settle()
    assert browser.run("return document.querySelectorAll('*').length") < 2000
    assert browser.run("return [...document.images].every((image) => image.naturalWidth > 0)")
    browser.run("document.querySelector('.card:last-child .open').click()")
    assert browser.one("#position").text.endswith("of 10000")
    browser.press(Keys.ESCAPE)
    browser.settle()  # the card is made anew when the large view is closed
    browser.press(Keys.HOME)
    assert browser.run("return scrollY") < 400
    assert browser.complaints() == []


def test_pictures_lie_exactly_over_each_other(maps: Path, browser: Browser) -> None:
    """Whatever the shape of the photo: its upper left quarter is lit, and so is that of the map."""
    for size in ((300, 200), (200, 300), (900, 100), (77, 101)):
        source = photo(Path(f"{size[0]}.png"), size, "black")
        record = add(maps, source, CATS[:1])
        quarter = np.zeros((size[1], size[0], 4), np.uint8)
        quarter[: size[1] // 2, : size[0] // 2] = 255
        names = names_of(record)
        Image.fromarray(quarter[..., :3]).save(maps / names.photo, quality=100)
        Image.fromarray(quarter).save(maps / names.map(COMMON.layer, 282))
    browser.open(write_gallery(maps))
    for frame in browser.all(".card .frame"):
        browser.press("1")
        lit = browser.pixels(frame).sum(-1) > 750
        browser.press("2")
        assert (
            np.abs(np.argwhere(browser.pixels(frame).sum(-1) > 750).mean(0) - np.argwhere(lit).mean(0)).max()
            < 0.6
        )
