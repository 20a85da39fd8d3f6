"""`ebcli.ask`: a model in memory or by name, and the same answers as the command's; answers while they come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from helpers import vision_language
from PIL import Image
from runs import records

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.query import Query
from ebcli.models.sources.vision_language import VisionLanguage
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import WordOptions
from ebcli.run.reading import NetworkInput

QUESTION, ANSWER = "what is on the table ?", "a red cup and a dog"
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    vision_language.save("llava", folder)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    """The network, as one trains it, and its processor."""
    net = transformers.AutoModelForImageTextToText.from_pretrained(folder).train()
    return net, transformers.AutoProcessor.from_pretrained(folder)


@pytest.fixture
def ask(loaded: tuple[Any, Any]) -> Callable[..., Any]:
    net, processor = loaded
    return lambda photo=PIXELS, **options: ebcli.ask(
        net, photo, QUESTION, **{"processor": processor, "answer": ANSWER} | options
    )


def test_all_doors_give_the_same_answer(
    folder: Path, ask: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PIXELS).save("photo.png")
    command = ["ask", "photo.png", QUESTION, "--answer", ANSWER, "-m", str(folder)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    (record,) = records(Path("saliency"))
    for answer in (ask(), ask("photo.png"), ebcli.ask(str(folder), "photo.png", QUESTION, answer=ANSWER)):
        assert answer.text == record["answer"].strip()
        assert answer.words == [word["name"] for word in record["classes"]] == ["red", "cup", "dog"]
        assert answer.shares == pytest.approx([word["share"] for word in record["classes"]], abs=1e-6)
        assert answer.maps.shape == (3, 4, 4)


def test_a_network_is_left_as_it_was(loaded: tuple[Any, Any], ask: Callable[..., Any]) -> None:
    net, _ = loaded
    before = [parameter.requires_grad for parameter in net.parameters()]
    assert all(before)
    ask()
    assert net.training
    assert [parameter.requires_grad for parameter in net.parameters()] == before
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_network_in_memory_is_probed_once(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask()
    monkeypatch.setattr("ebcli.models.sources.vision_language.find_entry", None)
    np.testing.assert_array_equal(ask().maps, first.maps)


def test_words_phrases_and_several_photos(ask: Callable[..., Any]) -> None:
    first, second = ask([PIXELS, PIXELS[::-1].copy()], words=["dog"], phrases="red cup")
    assert first.words == second.words == ["red cup", "dog"]
    assert first.shares != second.shares
    separate = ask(words=("red", "cup"))
    assert first.scores[0] == pytest.approx(separate.scores[0] * separate.scores[1])
    unsaid = ask(words="cat")
    assert (unsaid.text, unsaid.words, unsaid.shares, unsaid.maps.size) == (ANSWER, [], [], 0)
    assert "no word" in repr(unsaid)
    assert ANSWER in unsaid._repr_html_()
    with pytest.raises(ebcli.ConfigurationError, match="nothing to draw"):
        _ = unsaid.picture


def test_figures_and_pages(ask: Callable[..., Any], tmp_path: Path) -> None:
    answer = ask()
    answer.save(tmp_path / "answer.png")
    answer.save(tmp_path / "answer.html")
    with Image.open(tmp_path / "answer.png") as figure:
        assert figure.size == answer.picture.size
    assert "Point at a colored word" in (tmp_path / "answer.html").read_text()
    assert answer._repr_html_().count("<figure") == 3
    assert repr(answer).startswith(f"<Answer '{ANSWER}'; from the picture: red 0.")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (lambda net, processor: (net, PIXELS), {}, "needs its processor"),
        (lambda net, processor: ("name", PIXELS), {"processor": 1}, "brings its processor"),
        (lambda net, processor: ("name", PIXELS), {"dtype": "float"}, "must be float32 or bfloat16"),
        (lambda net, processor: (net, PIXELS), {"processor": 1, "against": "a", "all_words": True}, "drop"),
    ],
)
def test_mistakes(loaded: tuple[Any, Any], arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ebcli.ConfigurationError, match=message):
        ebcli.ask(*arguments(*loaded), **options)


def test_a_photo_without_an_answer_is_named(ask: Callable[..., Any]) -> None:
    with pytest.raises(ebcli.ImageError, match="photo 1 of 2: the answer '\\?' has no word"):
        ask([PIXELS, PIXELS], answer="?")


def test_an_answer_is_told_while_it_comes(folder: Path) -> None:
    model = VisionLanguage(str(folder), "cpu", torch.float32)
    texts: list[str] = []
    answer = model.exchange(Image.fromarray(PIXELS), QUESTION, None, 6, texts.append)
    assert len(set(texts)) > 1
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1].split() == answer.text.split()


def test_a_stop_ends_an_answer(folder: Path) -> None:
    network = VisionLanguage(str(folder), "cpu", torch.float32).as_loaded()
    plan = RunPlan.from_values(images=(Path("photo"),), words=WordOptions())
    explainer = Explainer(plan, 1, network)
    stopping = Event()
    texts: list[str] = []

    def stop(text: str) -> None:
        texts.append(text)
        stopping.set()

    explainer.on_text = stop
    image = NetworkInput(pixels=PIXELS, size=(60, 40), query=Query(QUESTION))
    with pytest.raises(CancelledError):
        explainer.explain([image], stopping)
    assert len(texts) == 1
