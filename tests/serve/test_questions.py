"""Questions to a vision-language model on the live page."""

from collections.abc import Callable
from pathlib import Path

import color_tasks
import numpy as np
import pytest
import torch
from accessibility import violations
from asking import maps, network
from browser import Browser
from color_net import RED, painted
from live import settled, state
from PIL import Image
from selenium.webdriver.common.keys import Keys
from starlette.testclient import TestClient

import ebcli
from benchmarks.trained import sentences
from benchmarks.trained.rounded import restored
from ebcli.models import load_model
from ebcli.models.sources import answers_questions

WEIGHTS = Path(__file__).parents[1] / "evaluate" / "weights" / "LLaVA.pt"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    net = sentences.build()
    net.load_state_dict(restored(torch.load(WEIGHTS, weights_only=True)))
    folder = tmp_path_factory.mktemp("llava")
    sentences.save(net, folder)
    return f"hf/{folder}"


@pytest.fixture
def sentence(ten_photos: Path) -> str:
    """What is true of ``photo.png`` in the working directory."""
    pictures = sentences.described(1, torch.Generator().manual_seed(3))
    pixels = (pictures.images[0] * sentences.STD + sentences.MEAN).clamp(0, 1) * 255
    Image.fromarray(pixels.round().byte().permute(1, 2, 0).numpy()).save("photo.png")
    return pictures.sentences[0]


def test_the_page_gives_the_answer_that_python_gives(
    model: str, sentence: str, opened: Callable[..., TestClient]
) -> None:
    client = opened(network(model), paths=("photo.png",))
    (photo,) = client.get("/status").json()["photos"]
    description, values = maps(client, photo=photo, question=sentences.QUESTION)
    answer = ebcli.ask(model, "photo.png", sentences.QUESTION)
    assert description["answer"].strip() == answer.text
    assert [subject["name"] for subject in description["subjects"]] == answer.words
    assert [map_["mass"] for map_ in description["maps"]] == pytest.approx(answer.shares, abs=1e-6)
    np.testing.assert_allclose(values, answer.maps, atol=1e-6)


def test_a_word_that_is_pointed_at_shows_its_map(
    model: str, sentence: str, served: Callable[..., str], browser: Browser
) -> None:
    browser.visit(served(network(model), paths=("photo.png",)))
    settled(browser, target="0")
    browser.write(".target", sentences.QUESTION)
    browser.press(Keys.ENTER)
    settled(browser, question=sentences.QUESTION, target="0")
    assert (
        browser.one(".answer").text.split() == ebcli.ask(model, "photo.png", sentences.QUESTION).text.split()
    )
    first = browser.pixels(browser.one(".map"))
    words = browser.all(".answer .word")
    browser.actions().move_to_element(words[-1]).perform()
    settled(browser, question=sentences.QUESTION, target=str(len(words) - 1))
    assert np.abs(browser.pixels(browser.one(".map")) - first).max() > 100
    assert browser.one(".answer [aria-pressed=true]").text == words[-1].text
    assert state(browser)["question"] == sentences.QUESTION
    assert browser.complaints() == []
    assert violations(browser) == []


def test_the_likely_classes_and_a_frame_are_no_questions(
    model: str, sentence: str, opened: Callable[..., TestClient]
) -> None:
    client = opened(network(model), paths=("photo.png",))
    for answer in (
        client.get("/subjects", params={"photo": "photo.png"}),
        client.post("/frame", content=Path("photo.png").read_bytes()),
    ):
        assert answer.status_code == 400
        assert answer.json()["problem"] == f"{model} answers questions about photos: ask one"


def test_beside_a_network_that_does_not_answer(
    model: str, sentence: str, served: Callable[..., str], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    detector = network(f"{color_tasks.__file__}:detector", "backbone.cells")
    painted((128, 128), (RED, (16, 16, 56, 56))).save("square.png")
    browser.visit(served(detector, network(model), paths=("square.png",)))
    settled(browser)
    browser.until(lambda: browser.all(".found [role=tab]"))
    for name, number, label in ((model, "1", "Question"), (detector.title, "0", "Class")):
        browser.choose("select.network", name)
        settled(browser, network=number)
        assert browser.one(".ask label").text.startswith(label)
        assert bool(browser.all(".answer")) == (label == "Question")
        assert bool(browser.all(".found [role=tab]")) == (label == "Class")
        assert browser.one("#camera").is_displayed() == (label == "Class")
    assert browser.complaints() == []


def test_only_vision_language_models_answer(model: str) -> None:
    assert answers_questions(model)
    assert not answers_questions("vgg16")
