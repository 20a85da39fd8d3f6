"""Videos on the gallery page, in a browser: a poster frame that plays while the pointer is on it; and compared runs."""

import json
from pathlib import Path

import pytest
from browser import Browser
from click.testing import CliRunner
from color_net import load_colors
from videos import moving_square, write_video

from ebcli.cli.saliency import main


@pytest.fixture(autouse=True)
def videos(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    Path("inputs").mkdir()
    frames = [frame.resize((64, 64)) for frame in moving_square(20)]
    write_video(Path("inputs/move.mp4"), frames, codec="mpeg4")
    first, *others = frames
    first.save("inputs/move.gif", save_all=True, append_images=others, duration=100, loop=0)


def run(*options: str) -> None:
    arguments = ["--model", "colors", "--layer", "2", "--workers", "0", "inputs", *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("index", "tag"), [(0, "img"), (1, "video")])
def test_a_poster_frame_plays_while_the_pointer_is_on_it(browser: Browser, index: int, tag: str) -> None:
    run("--report")
    browser.open(Path("saliency/report/index.html"))
    assert browser.names() == ["move.gif", "move.mp4"]
    browser.settle()
    poster = browser.all(".card .picture")[index]
    assert poster.find_elements("css selector", ".photo, .map")
    assert not browser.all(".film")
    browser.actions(duration=0).move_to_element(poster).perform()
    (film,) = browser.until(lambda: browser.all(f"{tag}.film"))
    if tag == "video" and browser.run(
        "return document.createElement('video').canPlayType('video/mp4; codecs=avc1')"
    ):
        browser.until(lambda: browser.run("return document.querySelector('.film').currentTime") > 0.2)
    elif tag == "img":
        browser.until(lambda: browser.run("return document.querySelector('.film').naturalWidth") == 64)
    assert film.get_attribute("src").endswith(("move.gif.0-red.gif", "move.mp4.0-red.mp4"))
    browser.actions(duration=0).move_to_element(browser.one("h1")).perform()
    browser.until(lambda: not browser.all(".film"))
    assert browser.complaints() == []


def test_two_runs_over_videos_are_compared() -> None:
    run("--raw", "--target", "red", "-o", "first")
    run("--raw", "--target", "red", "-o", "second")
    result = CliRunner().invoke(main, ["compare", "first", "second"])
    assert result.exit_code == 0, result.output
    (data,) = [json.loads(path.read_text()) for path in Path().rglob("comparison.json")]
    assert [(row["input"], row["rank_correlation"]) for row in data] == [
        ("inputs/move.gif", 1.0), ("inputs/move.mp4", 1.0)]  # fmt: skip
