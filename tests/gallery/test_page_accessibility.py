"""Pages in files for everybody: axe-core finds nothing, in light and dark, on wide and narrow screens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accessibility import unreached, violations
from browser import Browser
from click.testing import CliRunner
from color_net import GREEN, RED, load_colors, painted
from galleries import CATS, add, append, framed, photo
from PIL import Image
from runs import invoke
from torch import nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Box, Explanation, Map, Subject
from ebcli.drawing.pages import answer_page
from ebcli.files.media.medium import DisplayFrame
from ebcli.gallery.audit import CELLS, PLACES, AuditPhoto, Candidate, Finding, write_audit
from ebcli.gallery.page import write_gallery

SCREENS = [((1280, 900), "light"), ((390, 844), "dark")]


def assert_usable(browser: Browser, page: Path, steps: Callable[[], None] = lambda: None) -> None:
    """On each screen, and after some steps."""
    for size, scheme in SCREENS:
        browser.visit(page.absolute().as_uri(), size, scheme)
        assert violations(browser) == []
        assert unreached(browser) == []
        steps()
        assert violations(browser) == []


def test_the_report(maps: Path, browser: Browser) -> None:
    for name, label, predicted in (("right.png", 282, 282), ("wrong.png", 285, 282)):
        record = add(maps, photo(Path(name)), CATS)
        append(maps, replace(record, label=label, predicted=predicted))
    add(maps, photo(Path("blank.png")), [replace(CATS[0], blank=True, evidence="weak"), CATS[1]])
    append(
        maps, replace(record, input="broken.png", place="broken.png", status="failed", error="it is broken")
    )
    page = write_gallery(maps)

    def open_all() -> None:
        for element in browser.all("details:not([open]) > summary"):
            element.click()
        assert violations(browser) == []
        assert unreached(browser) == []
        browser.all(".open")[2].click()
        assert violations(browser) == []
        assert unreached(browser) == []
        browser.one("#close").click()
        browser.write("#query", "nothing has this name")

    assert_usable(browser, page, open_all)


def test_a_comparison(maps: Path, browser: Browser) -> None:
    for directory, hot in (("a", (2, 1)), ("b", (2, 2))):
        add(Path(directory), photo(Path("a.png")), CATS, keep=("raw",), hot=hot)
    assert invoke("compare", "a", "b", "a.png", "-o", "compared").exit_code == 0
    page = Path("compared/comparison/index.html")
    assert_usable(browser, page, lambda: browser.one("label input").send_keys(" "))


def test_an_audit(maps: Path, browser: Browser) -> None:
    grid = np.full((CELLS, CELLS), 1 / CELLS**2, np.float32)
    file = photo(Path("cat.png"))
    seen = AuditPhoto(
        input="cat.png",
        path=file,
        state=("", None, None),
        name="cat",
        is_wrong=False,
        grid=grid,
        look=grid,
        outside=None,
    )
    finding = Finding(Candidate("cat", [(seen, PLACES["upper edge"])], 1), 1, 1, None)
    assert_usable(browser, write_audit(Path("out"), [finding], {"cat": [seen], "dog": [seen]}))


def test_an_atlas(maps: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted((300, 200), (RED, (20, 20, 120, 180)), (GREEN, (180, 20, 280, 180))).save("squares.png")
    arguments = ["squares.png", "--model", "colors20", "--layer", "2", "--workers", "0", "-o", "atlas.html"]
    assert CliRunner().invoke(main, arguments).exit_code == 0

    def move() -> None:
        browser.one("#photo").send_keys("\ue014")  # the right arrow
        browser.until(lambda: browser.one(".here").is_displayed())

    assert_usable(browser, Path("atlas.html"), move)


def test_an_answer(maps: Path, browser: Browser) -> None:
    image = Image.new("RGB", (300, 200), "gray")
    found = []
    for position, (share, word) in enumerate(((0.0, "a"), (0.5, "red"), (1.0, "cat"))):
        start = "a red cat".index(word)
        subject = Subject(position, word, 0.5, span=(start, start + len(word)), position=position)
        values = np.eye(3, dtype=np.float32)
        found.append(
            Map(
                subject=subject,
                layer="5",
                values=values,
                mass=0.5,
                placement=Box(0, 0, 300, 200),
                share=share,
            )
        )
    explanation = Explanation(maps=found, seconds=1.0, question="What is it?", answer="a red cat")
    content = answer_page(
        explanation, [DisplayFrame(image)], framed(found, image.size), "cat.png", "a network"
    )
    Path("answer.html").write_bytes(content)
    assert_usable(browser, Path("answer.html"), lambda: browser.one(".word").send_keys(""))


def tiny() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def test_maps_of_a_training(maps: Path, browser: Browser) -> None:
    watch = ebcli.Watch(torch.rand(2, 3, 32, 32), "watched", target=1, layer="1")
    for _ in range(2):
        watch(tiny())
    assert_usable(browser, Path("watched/index.html"))


def test_a_notebook(maps: Path, browser: Browser) -> None:
    shown = ebcli.explain(tiny().eval(), torch.rand(1, 3, 32, 32), [0, 1], layer="1")[0]._repr_html_()
    page = f"<!doctype html><html lang=en><title>Notebook</title><main><h1>Notebook</h1>{shown}</main></html>"
    Path("notebook.html").write_text(page, encoding="utf-8")

    def choose() -> None:
        browser.all("label input")[1].click()

    assert_usable(browser, Path("notebook.html"), choose)
