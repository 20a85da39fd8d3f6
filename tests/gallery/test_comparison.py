"""Two runs side by side."""

import html
import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from browser import Browser
from galleries import CATS, add, photo
from lightness import difference, lightness
from PIL import Image
from runs import invoke, photos

pytestmark = pytest.mark.usefixtures("working_directory")


def compare(*arguments: str) -> list[dict[str, Any]]:
    result = invoke("compare", *arguments, "-o", "compared")
    assert (result.exit_code, result.stdout) == (0, "compared/comparison/index.html\n"), result.output
    rows: list[dict[str, Any]] = json.loads(Path("compared/comparison/comparison.json").read_text())
    return rows


def test_pairs_by_input_and_class_sorted_by_disagreement() -> None:
    photos(Path("photos"), 4)
    invoke("--raw", "--target", "3", "--target", "5", "-o", "a", "photos")
    invoke("--raw", "--target", "5", "--target", "1", "--marginal", "-o", "b", "photos/0", "photos/1")
    rows = compare("a", "b")
    assert {(row["input"], row["class"], row["name"]) for row in rows} == {
        (f"photos/{path}", 5, "class f") for path in ("0/0000.jpg", "0/0003.jpg", "1/0001.jpg")
    }
    found = [row["rank_correlation"] for row in rows]
    assert found == sorted(found)
    assert rows[0]["a"]["run"] == "tiny (seeded), 2, contrastive EB"
    assert rows[0]["b"]["run"] == "tiny (seeded), 2, marginal EB"
    for row in rows:  # upsampling changes ranks a little
        place = row["input"].removeprefix("photos/")
        with np.load(f"a/{place}.npz") as a, np.load(f"b/{place}.maps+marginal.npz") as b:
            exact = scipy.stats.spearmanr(a["maps"][1].ravel(), b["maps"][0].ravel()).statistic
        assert row["rank_correlation"] == pytest.approx(exact, abs=0.15)
        with Image.open(Path("compared/comparison", row["picture"])) as strip:
            assert strip.width == 3 * 256 + 2 * 8  # A, B and the difference; no photos were named
    compare("a", "b", "photos")
    with Image.open(Path("compared/comparison", rows[0]["picture"])) as strip:
        assert strip.width == 4 * 256 + 3 * 8


def test_the_picture_shows_both_maps_at_their_places_and_where_one_is_higher() -> None:
    """Cells of 4 x 4 of a photo of 96 x 64; the second run saw only its right half, of 48 x 64."""
    source = photo(Path("a.png"))
    for directory, hot in (("a", (2, 1)), ("b", (2, 2))):
        add(Path(directory), source, CATS[:1], keep=("raw",), hot=hot)
    (raw,) = Path("b").rglob("*.npz")
    with np.load(raw) as arrays:
        np.savez(raw, **{**arrays, "crop": np.array([48, 0, 96, 64])})
    (row,) = compare("a", "b", "a.png")
    with Image.open(Path("compared/comparison", row["picture"])) as opened:
        strip = np.asarray(opened.convert("RGB")).astype(int)
    scale = 256 / 96
    tiles = [strip[:, start : start + 256] for start in range(0, strip.shape[1], 256 + 8)]
    plain, *maps, difference = tiles

    def hottest(values: np.ndarray) -> tuple[float, float]:
        """The center of the highest values, in pixels of the photo."""
        rows, columns = np.nonzero(values > 0.95 * values.max())
        return (columns.mean() + 0.5) / scale, (rows.mean() + 0.5) / scale

    expected = [(60, 24), (48 + 30, 40)]
    for shown, place in zip(maps, expected, strict=True):
        assert hottest((shown - plain) @ [1, -1, 0]) == pytest.approx(place, abs=3)
    light, is_green = difference.sum(-1), difference[..., 1] > difference[..., 0]
    assert hottest(light * ~is_green) == pytest.approx(expected[0], abs=3)
    assert hottest(light * is_green) == pytest.approx(expected[1], abs=3)  # where B is higher
    assert np.ptp(light[:, : round(44 * scale)]) < 40  # where only A looked, nothing is compared


def test_a_run_agrees_with_itself_and_other_resolutions_can_be_compared() -> None:
    photos(Path("photos"), 2)
    invoke("--raw", "--target", "3", "-o", "a", "photos")
    assert [(row["rank_correlation"], row["mean_difference"]) for row in compare("a", "a")] == [
        (1, 0),
        (1, 0),
    ]
    page = Path("compared/comparison/index.html").read_text()
    assert page.count("A and B are equal") == 2
    assert "A − B" not in page  # there is no picture of no difference
    invoke("--raw", "--target", "3", "--layer", "0", "--layer", "input", "-o", "b", "photos")  # "2", too
    rows = compare("a", "b")
    assert [(row["rank_correlation"], row["b"]["run"]) for row in rows] == [
        (1, "tiny (seeded), 2, contrastive EB")
    ] * 2


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_in_a_browser_has_captions_legends_a_filter_and_zoom(width: int, browser: Browser) -> None:
    for name, hot in (("cup.png", (2, 1)), ("dog.png", (0, 0))):
        for directory, shift in (("a", 0), ("b", 1)):
            add(Path(directory), photo(Path(name)), CATS[:1], keep=("raw",), hot=(hot[0] + shift, hot[1]))
    compare("a", "b", "cup.png", "dog.png")
    browser.open(Path("compared/comparison/index.html"), (width, 740))
    browser.settle()
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.one("#count").text == "2 of 2 pairs"
    first = browser.all("article")[0]
    assert [one.text for one in first.find_elements("css selector", "figcaption")] == [
        "photo",
        "A",
        "B",
        "A − B",
    ]
    for at, caption in enumerate(first.find_elements("css selector", "figcaption")):  # above its own picture
        image = first.find_element("css selector", "img").rect
        assert caption.rect["x"] == pytest.approx(image["x"] + at * image["width"] / 4, abs=8)
    assert [one.text.split("\n") for one in browser.all(".legend")] == [
        ["0", "each map's maximum"],
        ["B higher", "A higher"],
    ]
    overlay, signed = (browser.pixels(legend)[5, 4:-4:10] for legend in browser.all(".legend i"))
    assert (np.diff(difference(overlay, overlay[0])) > 0).all()
    away = np.diff(lightness(signed)) > 0  # both ends of a difference are light
    assert not away[: len(away) // 2 - 1].any() and away[len(away) // 2 + 1 :].all()
    browser.write("#query", "DOG tiger")
    assert browser.one("#count").text == "1 of 2 pairs"
    assert [one.is_displayed() for one in browser.all("article")].count(True) == 1
    browser.write("#query", "")
    image = first.find_element("css selector", "img")
    before = image.rect["width"]
    image.click()
    assert image.rect["width"] >= 1.5 * before
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    image.click()
    assert image.rect["width"] == before


def test_names_and_records_are_data() -> None:
    photos(Path("photos"), 1)
    name = "<img src=x onerror=alert(1)>.jpg"
    Path("photos/0/0000.jpg").rename(f"photos/0/{name}")
    invoke("--raw", "--target", "3", "-o", "a", "photos")
    compare("a", "a")
    page = Path("compared/comparison/index.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert page.count("<script>") == 1
    (script,) = re.findall("<script>(.*)</script>", page, re.DOTALL)
    (allowed,) = re.findall("script-src '(.*?)'", html.unescape(page))
    assert allowed == "sha256-" + b64encode(sha256(script.encode()).digest()).decode()
    Path("a/0", f"{name}.npz").write_bytes(b"PK broken")
    assert (
        "no image and class has raw maps in both runs" in invoke("compare", "a", "a", "-o", "compared").stderr
    )


def test_what_cannot_be_compared_says_so() -> None:
    photos(Path("photos"), 1)
    invoke("-o", "plain", "photos")
    result = invoke("compare", "plain", "plain", "-o", "compared")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "repeat both with --raw" in result.stderr
    assert "cannot read 'none/records.jsonl'" in invoke("compare", "plain", "none").stderr
    invoke("--raw", "-o", "raw", "photos")
    page = Path("compared/comparison/index.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("precious")
    assert "would be replaced" in invoke("compare", "raw", "raw", "-o", "compared").stderr
    assert page.read_text() == "precious"
