"""Networks with several inputs or heads, with values in place of classes, and with one channel."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import several_inputs
import two_heads
import value_nets
from asking import maps, network, run_command
from browser import Browser
from color_net import BLUE, RED, painted
from live import command, settled, state
from selenium.webdriver.common.keys import Keys
from starlette.testclient import TestClient

from ebcli.models import load_model
from ebcli.serve.network import Network

SIDE = 64
RED_SQUARE, BLUE_SQUARE = (40, 8, 56, 24), (8, 32, 24, 56)
IN_RED, IN_BLUE, IN_NOTHING = (48, 16), (16, 44), (4, 4)
TABLE = [0.1, 0.02, 0.01]  # of which class 0 has 2, 5 and -4 times as much, beside 3 times the mean red


@pytest.fixture(autouse=True)
def real_networks(ten_photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    painted((SIDE, SIDE), (RED, RED_SQUARE), (BLUE, BLUE_SQUARE)).save("a.png")
    painted((SIDE, SIDE), ((230, 230, 230), RED_SQUARE)).save("bright.png")
    Path("a.json").write_text(json.dumps(TABLE))


def patient() -> Network:
    return network(f"{several_inputs.__file__}:Patient", "act")


def heights() -> Network:
    return network(f"{value_nets.__file__}:Heights", "cells", scores="raw")


def bright() -> Network:
    return network(f"{value_nets.__file__}:Bright", "cells")


def click(browser: Browser, pixel: tuple[int, int]) -> None:
    """On a pixel of the photo."""
    frame = browser.one(".shown")
    scale = min(frame.size["width"], frame.size["height"]) / SIDE
    offsets = [round((at + 0.5 - SIDE / 2) * scale) for at in pixel]
    browser.actions().move_to_element_with_offset(frame, *offsets).click().perform()


# The positive terms of class 0: the square is a sixteenth of the picture
RED_TERM, TABLE_TERMS = 3 / 16, [2 * TABLE[0], 5 * TABLE[1]]
TERMS = RED_TERM + sum(TABLE_TERMS)


def test_each_input_has_its_share_and_columns_are_ranked(opened: Callable[..., TestClient]) -> None:
    client = opened(patient(), paths=("a.png",))
    for method, third in (
        ("marginal", 0),
        ("", -1),
    ):  # the dual's only positive term is that of the third column
        about, _ = maps(client, photo="a.png", target="0", method=method)
        (map_,) = about["maps"]
        assert [name for name, _ in map_["inputs"]] == ["image", "table"]
        shares = [share for _, share in map_["inputs"]]
        assert shares == pytest.approx([RED_TERM / TERMS, sum(TABLE_TERMS) / TERMS])
        ((table, columns),) = map_["columns"]
        assert (table, columns[-1]) == ("table", ["dose", pytest.approx(third)])
        evidence = {"10": TABLE_TERMS[0] / TERMS, "9": TABLE_TERMS[1] / TERMS}
        assert [column for column, _ in columns[:2]] == ["10", "9"]  # the larger one first
        assert dict(columns[:2]) == pytest.approx(evidence)
    about, _ = maps(client, "/atlas", photo="a.png")
    assert [name for name, _ in about["maps"][0]["inputs"]] == ["image", "table"]
    query = {"photo": "a.png", "target": "0"}
    made, _ = run_command(client, query)
    assert made == client.get("/picture", params=query).content


def test_an_upload_that_lacks_its_other_inputs_is_a_sentence(opened: Callable[..., TestClient]) -> None:
    client = opened(patient(), paths=("a.png",))
    answer = client.post("/photos", params={"name": "a.png"}, content=Path("a.png").read_bytes())
    key = answer.json()["key"]
    for path in ("/maps", "/subjects", "/picture"):
        problem = client.get(path, params={"photo": key}).json()["problem"]
        assert problem.startswith("an upload has no path, by which ")
        assert problem.endswith(
            "Patient reads its other inputs: start eb-saliency serve with the photo's file"
        )
    assert client.get("/maps", params={"photo": "a.png"}).status_code == 200


def test_a_pixel_of_a_map_of_values_is_explained(opened: Callable[..., TestClient]) -> None:
    client = opened(heights(), paths=("a.png",))
    mean = 40 / 16 - 20 * 3 / 32
    for pixel, value in (("", mean), ("48,16", 40), ("16,44", -20)):
        query = {"photo": "a.png", "pixel": pixel}
        (subject,) = client.get("/subjects", params=query).json()
        assert (subject["name"], subject["score"]) == ("value", pytest.approx(value, rel=1e-5))
        about, (values,) = maps(client, **query, method="marginal")
        assert about["subjects"] == [subject]
        if pixel == "48,16":  # the 3 x 3 cells around that at row 4, column 12
            np.testing.assert_allclose(values[3:6, 11:14], 1 / 9, rtol=1e-5)
            assert values.sum() == pytest.approx(1)
        made, line = run_command(client, query)
        assert (f"--where {pixel}" in line) == bool(pixel)
        assert made == client.get("/picture", params=query).content


@pytest.mark.parametrize(
    ("pixel", "sentence"),
    [
        ("90,3", "the pixel 90,3 is outside the image of 64 x 64 pixels"),
        ("3", "this is no address of the page"),
        ("a,b", "this is no address of the page"),
    ],
)
def test_a_wrong_pixel_is_a_sentence(opened: Callable[..., TestClient], pixel: str, sentence: str) -> None:
    client = opened(heights(), paths=("a.png",))
    answer = client.get("/maps", params={"photo": "a.png", "pixel": pixel})
    assert answer.status_code == 400
    assert sentence in answer.json()["problem"]


def test_an_address_names_no_file_as_a_method(opened: Callable[..., TestClient]) -> None:
    Path("uploaded.py").write_text("from pathlib import Path\nPath('it-ran').touch()\n")
    client = opened(heights(), paths=("a.png",))
    answer = client.get("/maps", params={"photo": "a.png", "method": "uploaded.py:anything"})
    assert answer.status_code == 400
    assert "the page has no method 'uploaded.py:anything'" in answer.json()["problem"]
    assert not Path("it-ran").exists()


def test_a_pixel_of_a_classifier_is_refused(opened: Callable[..., TestClient]) -> None:
    client = opened(patient(), paths=("a.png",))
    answer = client.get("/maps", params={"photo": "a.png", "pixel": "48,16"})
    assert answer.status_code == 400
    assert "--where works only with segmentation networks" in answer.json()["problem"]


def test_the_head_is_named_with_its_map(opened: Callable[..., TestClient]) -> None:
    client = opened(network(f"{two_heads.__file__}:usual", "pixels"), paths=("a.png",))
    about, _ = maps(client, photo="a.png")
    assert about["maps"][0]["head"] == "out"
    client = opened(bright(), paths=("bright.png",))
    about, _ = maps(client, photo="bright.png")
    assert about["maps"][0]["head"] is None


def test_one_channel_has_the_object_and_then_the_background(opened: Callable[..., TestClient]) -> None:
    painted((SIDE, SIDE)).save("dark.png")
    client = opened(bright(), paths=("bright.png", "dark.png"))
    found = client.get("/subjects", params={"photo": "bright.png"}).json()
    assert [(one["name"], one["score"]) for one in found] == [("object", 1 / 16), ("background", 15 / 16)]
    for one, is_bright in zip(found, (True, False), strict=True):
        query = {"photo": "bright.png", "target": str(one["index"])}
        about, (values,) = maps(client, **query, method="marginal")
        assert about["subjects"] == [one]
        left, top, right, bottom = RED_SQUARE
        inside = values[top:bottom, left:right].sum()
        assert inside == pytest.approx(values.sum() if is_bright else 0)
        made, _ = run_command(client, query)
        assert made == client.get("/picture", params=query).content
    (only,) = client.get("/subjects", params={"photo": "dark.png"}).json()
    assert (only["name"], only["score"]) == ("background", 1)


def test_the_page_shows_shares_and_ranked_columns(served: Callable[..., str], browser: Browser) -> None:
    browser.visit(served(patient(), paths=("a.png",)))
    settled(browser, target="0")
    facts = [fact.text for fact in browser.all(".fact button")]
    assert "image 38%, table 62% of the evidence" in facts
    assert browser.one(".columns caption").text == "table: evidence of each column"
    rows = [row.text.split() for row in browser.all(".columns tr")]
    assert rows == [["10", "0.410"], ["9", "0.205"], ["dose", "-1.000"]]
    browser.one("#files").send_keys(str(Path("a.png").resolve()))
    browser.until(lambda: "reads its other inputs: start" in browser.one(".note").text)
    assert not browser.one(".columns").is_displayed()
    browser.all(".thumbnail")[0].click()
    settled(browser, photo="a.png")
    assert browser.one(".columns").is_displayed()


def test_a_click_explains_the_value_at_a_place(served: Callable[..., str], browser: Browser) -> None:
    browser.visit(served(heights(), network("tiny"), paths=("a.png", "bright.png")))
    settled(browser, target="0")
    assert browser.one(".where").text == "The mean of all pixels: click on the photo for the value of one"
    click(browser, IN_RED)
    found = settled(browser, photo="a.png", target="0", pixel="48,16")
    assert browser.one(".score").text == "40.000"
    assert browser.one(".facts").text.startswith("value 40.000")
    assert browser.one(".where span").text == "At pixel 48, 16"
    assert "--where 48,16" in command(browser)
    assert len(browser.all("path.chosen")) == 1
    assert state(browser)["pixel"] == "48,16"
    click(browser, IN_BLUE)  # where the outline of the first one is not, nor a class
    settled(browser, pixel="16,44", layer=found["layer"][0])
    assert browser.one(".note").text == "Nothing raises this value: choose Signed to see what lowers it"
    browser.one("#signed").click()
    browser.until(lambda: not browser.one(".note").is_displayed())
    click(browser, IN_BLUE)  # now on its outline
    settled(browser, pixel="16,44")
    browser.one(".whole").click()
    settled(browser, pixel="")
    assert browser.all("path.chosen") == []
    click(browser, IN_RED)
    settled(browser, pixel="48,16")
    browser.all(".thumbnail")[1].click()
    settled(browser, photo="bright.png", pixel="")
    assert not browser.one(".point").is_displayed()
    browser.driver.back()
    settled(browser, photo="a.png", pixel="48,16")
    assert browser.complaints() == []


def test_a_place_is_chosen_with_the_keyboard(served: Callable[..., str], browser: Browser) -> None:
    browser.visit(served(heights(), paths=("a.png",)))
    settled(browser, target="0")
    browser.run("document.querySelector('.shown').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ENTER)
    found = settled(browser, pixel="31,29")
    assert found["photo"] == ["a.png"]
    assert browser.one(".shown [aria-live]").get_attribute("textContent") == "Pixel 31, 29"
    assert browser.one(".point").is_displayed()
    assert not browser.one(".here").is_displayed()


def test_the_background_is_chosen_by_a_click_beside_the_object(
    served: Callable[..., str], browser: Browser
) -> None:
    browser.visit(served(bright(), paths=("bright.png",)))
    settled(browser, target="0")
    assert [tab.text for tab in browser.all(".found strong")] == ["object", "background"]
    click(browser, IN_NOTHING)
    settled(browser, target="1")
    click(browser, IN_RED)  # the object, which is a hole in the background
    settled(browser, target="0")
    assert browser.complaints() == []


def test_the_page_says_which_heads_there_are(served: Callable[..., str], browser: Browser) -> None:
    sentence = "the network has several heads: choose one of kind (B, 2); color (B, 3), by head= or --head"
    nets = f"{two_heads.__file__}:"
    browser.visit(
        served(network(f"{nets}two", "pixels"), network(f"{nets}usual", "pixels"), paths=("a.png",))
    )
    browser.until(lambda: browser.one(".note").text.lower() == sentence.lower())
    assert sentence in browser.one("#lead").text
    browser.choose(".network", f"{nets}usual, head out")
    settled(browser, network="1")
    assert "head out" in browser.one(".facts").text
