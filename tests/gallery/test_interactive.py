"""Photos whose classes are ranked at each place, in a file: what it shows, and that it asks nothing."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Browser
from click.testing import CliRunner, Result
from color_net import BLUE, GREEN, RED, load_colors, painted
from PIL import Image
from runs import invoke, records
from selenium.webdriver.common.keys import Keys

from ebcli.cli.saliency import main

if TYPE_CHECKING:
    from selenium.webdriver import ActionChains

SIZE = (300, 200)
RED_AT, GREEN_AT, NOTHING_AT = (70, 100), (230, 100), (3, 195)  # columns and rows
HOSTILE = [
    "W" * 1_000_000,
    "</script><script>document.title = 'taken'</script>",
    "<img src=https://example.org/x.png>",
]
MAKES = "document.querySelector('#photo').getBoundingClientRect()"


@pytest.fixture
def colors(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo of a red and a green square, and a network that sees nothing but colors."""
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted(SIZE, (RED, (20, 20, 120, 180)), (GREEN, (180, 20, 280, 180)), (BLUE, (140, 90, 150, 100))).save(
        "squares.png"
    )


def made(*options: str) -> Result:
    arguments = ["--model", "colors20", "--layer", "2", "--workers", "0", *options]
    return CliRunner().invoke(main, arguments)


def point(browser: Browser, place: tuple[int, int]) -> ActionChains:
    frame = browser.run(
        "const { left, top, width } = document.querySelector('#photo').getBoundingClientRect();"
        "return [left, top, width / 300]"
    )
    actions = browser.actions(duration=0)
    x, y = (round(start + at * frame[2]) for start, at in zip(frame, place, strict=False))
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    return actions


def ranking(browser: Browser) -> list[str]:
    return browser.one(".here").text.split("\n")


@pytest.mark.parametrize(("size", "scheme"), [((1280, 800), "light"), ((390, 844), "dark")])
@pytest.mark.usefixtures("colors")
def test_it_opens_from_disk_and_answers(browser: Browser, size: tuple[int, int], scheme: str) -> None:
    assert made("squares.png", "-o", "talk.html").stdout == "talk.html\n"
    browser.visit(Path("talk.html").absolute().as_uri(), size, scheme)
    browser.until(lambda: browser.one(".here").is_displayed())  # where there is the most evidence
    assert ranking(browser)[1] == "100%"
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    for place, told in (
        (RED_AT, ["red", "100%"]),
        (GREEN_AT, ["green", "100%"]),
        (NOTHING_AT, ["nothing clear here"]),
    ):
        point(browser, place).perform()
        assert ranking(browser) == told
        assert browser.one(".region").is_displayed() == (len(told) == 2)

    rows = {row.text.split("\n")[0]: row for row in browser.all("#classes button")}
    assert [*rows][:2] in (["red", "green"], ["green", "red"])
    browser.actions().move_to_element(rows["red"]).perform()
    assert "lit" in browser.one("#photo").get_attribute("class")
    rows["red"].click()
    assert rows["red"].get_attribute("aria-pressed") == "true"
    browser.actions().move_to_element(browser.one("h1")).perform()
    browser.run("document.activeElement.blur()")
    assert browser.one(".region").is_displayed()  # it is kept

    browser.run("document.querySelector('#photo').focus()")
    browser.press(Keys.ARROW_RIGHT, *[Keys.ARROW_LEFT] * 6)
    said = browser.one("#photo [aria-live]")
    assert said.get_attribute("textContent") == "Here: red 100%"
    browser.press(*[Keys.ARROW_RIGHT] * 13)
    assert said.get_attribute("textContent") == "Here: green 100%"
    browser.press(Keys.ESCAPE)
    assert not browser.one(".point").is_displayed()

    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground.strip("rgb()").split(",")) > 3 * 128) == (scheme == "light")
    assert {address.partition(":")[0] for address in browser.requests()} == {"file", "data"}
    assert browser.complaints() == []
    blocked: list[str] = []
    browser.run(
        "fetch('https://example.org/').catch(() => {}); new Image().src = 'https://example.org/x.png'"
    )
    browser.until(lambda: blocked.extend(browser.complaints()) or len(blocked) >= 2)
    assert all("Content Security Policy" in text for text in blocked), blocked


@pytest.mark.usefixtures("colors")
def test_a_finger(browser: Browser) -> None:
    made("squares.png", "-o", "talk.html")
    browser.visit(Path("talk.html").absolute().as_uri(), (390, 844))
    browser.until(lambda: browser.one(".here").is_displayed())
    left, top, width = browser.run(f"const {{ left, top, width }} = {MAKES}; return [left, top, width]")

    red, green = ((left + x * width / 300, top + y * width / 300) for x, y in (RED_AT, GREEN_AT))
    with browser.finger() as touch:
        touch("touchStart", red)
        browser.until(lambda: ranking(browser) == ["red", "100%"])
        touch("touchMove", green)
        browser.until(lambda: ranking(browser) == ["green", "100%"])
        touch("touchEnd")
    assert ranking(browser) == ["green", "100%"]


@pytest.mark.release
@pytest.mark.usefixtures("colors")
def test_a_photo_of_12_megapixels_makes_at_most_1_mb() -> None:
    noise = Image.effect_noise((4000, 3000), 120).convert("RGB")  # as large as JPEG gets
    noise.save("noise.jpg", quality=95)
    painted((4000, 3000), (RED, (0, 0, 2000, 3000))).save("plain.jpg")
    assert made("noise.jpg", "plain.jpg", "--format", "html", "--top-k", "20").exit_code == 0
    for name, least in (("noise", 400), ("plain", 1600)):
        content = Path(f"saliency/{name}.jpg.atlas.html").read_bytes()
        assert len(content) <= 1_000_000
        photo = base64.b64decode(re.search(rb'src="data:image/jpeg;base64,([^"]*)"', content)[1])
        Path("photo.jpg").write_bytes(photo)
        with Image.open("photo.jpg") as image:
            assert image.width >= least


def test_class_names_and_file_names_are_data(
    browser: Browser, working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object, **options: object) -> object:
        loaded = load_colors()
        return type(loaded)(**{**vars(loaded), "categories": tuple(HOSTILE)})

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    name = '"><img src=x onerror=alert(1)>.png'
    painted(SIZE, (GREEN, (20, 20, 120, 180)), (BLUE, (180, 20, 280, 180))).save(name)
    result = made(name, "--format", "html")
    assert result.exit_code == 0, result.output
    (page,) = Path("saliency").glob("*.html")
    assert page.stat().st_size < 1_000_000
    browser.visit(page.absolute().as_uri())
    browser.until(lambda: browser.one(".here").is_displayed())
    assert browser.driver.title == browser.one("h1").text == name
    point(browser, RED_AT).perform()
    assert ranking(browser)[0] == HOSTILE[1]
    assert sorted(row.text.split("\n")[0] for row in browser.all("#classes button")) == sorted(
        ["W" * 200, *HOSTILE[1:]]
    )
    assert {address.partition(":")[0] for address in browser.requests()} == {"file", "data"}
    assert browser.complaints() == []


@pytest.mark.usefixtures("colors")
def test_it_is_a_result_like_others() -> None:
    done = made("squares.png", "--format", "html", "--report")
    assert done.stdout.split() == ["saliency/squares.png.atlas.html"], done.output
    (record,) = records(Path("saliency"))
    assert [one["name"] for one in record["classes"][:2]] in (["red", "green"], ["green", "red"])
    assert len(record["classes"]) == 20
    assert "1 up to date" in made("squares.png", "--format", "html", "--report", "--skip-existing").stderr
    assert "it is now --format html, or -o FILE.html" in made("squares.png", "--interactive").stderr
    assert CliRunner().invoke(main, ["verify", "saliency"]).exit_code == 0
    about = CliRunner().invoke(main, ["info", "saliency/squares.png.atlas.html"]).stdout
    assert "model:    colors20" in about
    assert "input:    squares.png" in about
    assert made("squares.png", "-o", "one.html").exit_code == 0
    assert made("squares.png", "-o", "one.html").exit_code == 0  # it is its own
    Path("notes.html").write_text("<meta name='generator' content='mine'>")
    assert "this program did not write it" in made("squares.png", "-o", "notes.html").stderr
    at = made("squares.png", "--format", "html", "--at", "70,100", "-o", "at")
    assert at.stdout == "at/squares.png.atlas.html  red 1.00\n"
    data = json.loads(
        re.search(r'id="data">(.*?)</script>', Path("at/squares.png.atlas.html").read_text())[1]
    )
    assert data["at"] == [70.5, 100.5]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--style", "heatmap"], "an interactive page shows an atlas: drop the style heatmap"),
        (["-o", "c.png"], "'c.png' is not html: drop --format, or change the name"),
        (["-o", "a.html", "b.png"], "takes one picture, but there are 2 inputs: name a directory with -o"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    working_directory: Path, options: list[str], sentence: str
) -> None:
    painted(SIZE).save("a.png")
    result = invoke("a.png", "--format", "html", *options)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
