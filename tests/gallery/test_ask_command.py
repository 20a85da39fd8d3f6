"""The command ``ask``, with a small trained LLaVA: what it writes and prints, and its page in a browser."""

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from browser import Browser
from click.testing import CliRunner, Result
from galleries import framed
from PIL import Image

import ebcli
from benchmarks.trained import sentences
from benchmarks.trained.rounded import restored
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Box, Explanation, Map, Subject
from ebcli.drawing.pages import answer_page
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.records import read_records

WEIGHTS = Path(__file__).parents[1] / "evaluate" / "weights" / "LLaVA.pt"
RESULT = "maps/photo.png.answer+describe-the-picture"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = sentences.build()
    net.load_state_dict(restored(torch.load(WEIGHTS, weights_only=True)))
    folder = tmp_path_factory.mktemp("llava")
    sentences.save(net, folder)
    return folder


@pytest.fixture
def sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is true of ``photo.png`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    pictures = sentences.described(8, torch.Generator().manual_seed(3))
    # "A" is an article, too
    number = next(i for i, one in enumerate(pictures.sentences) if "A" not in one and "left" in one)
    pixels = ((pictures.images[number] * sentences.STD + sentences.MEAN).clamp(0, 1) * 255).round().byte()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save("photo.png")
    return pictures.sentences[number]


def ask(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["ask", "photo.png", "--model", str(model), "-o", "maps", *arguments])


def test_a_model_must_be_named(sentence: str) -> None:
    result = CliRunner().invoke(main, ["ask", "photo.png", sentences.QUESTION])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ask needs a vision-language model: add --model hf/NAME" in result.stderr


def test_a_question_is_answered_with_the_shares_of_words(model: Path, sentence: str) -> None:
    result = ask(model, sentences.QUESTION)
    assert result.exit_code == 0, result.stderr
    told, *words, figure, page = result.stdout.splitlines()
    assert told == sentence
    assert [word.split(":")[0] for word in words] == [
        word for word in sentence.split() if word not in (",", ".", "of")
    ]
    assert (figure, page) == (f"{RESULT}.png", f"{RESULT}.html")
    (record,) = read_records(Path("maps"))
    assert [f"{one.name}: {one.share:.2f} from the picture" for one in record.classes] == words
    assert [one.position for one in record.classes] == [1, 2, 4, 5]
    assert (record.output, record.question, (record.answer or "").strip()) == (
        (f"{RESULT}.png",),
        sentences.QUESTION,
        sentence,
    )
    with Image.open(figure) as picture:
        assert picture.info["class"].split("; ")[0].split() == [str(record.classes[0].index), told.split()[0]]
    verified = CliRunner().invoke(main, ["verify", "maps"])
    assert verified.exit_code == 0, verified.stdout
    assert ask(model, sentences.QUESTION).exit_code == 0  # it replaces its own files


def test_the_answer_and_its_words_can_be_chosen(model: Path, sentence: str) -> None:
    first, *_ = sentence.split()
    other = next(letter for letter in "STX" if letter not in sentence)
    given = ask(
        model, "--answer", sentence.replace(first, other, 1), "--word", other.lower(), "--against", first
    )
    assert given.exit_code == 0, given.stderr
    assert given.stdout.splitlines()[1].startswith(f"{other}: ")
    (record,) = read_records(Path("maps"))
    assert record.method == f"contrastive EB against {first}, given answer"
    written = ask(model, sentences.QUESTION, "--all-words", "--json", "--format", "svg")
    found = json.loads(written.stdout)
    assert [one["name"] for one in found["classes"]] == sentence.replace(",", "").replace(".", "").split()
    text = Path(found["output"][0]).read_text()
    assert all(f">{word}</text>" in text for word in sentence.split())


def test_a_file_takes_the_figure_alone(model: Path, sentence: str) -> None:
    result = ask(model, "-o", "figure.png")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "figure.png"
    assert sorted(path.name for path in Path().iterdir()) == ["figure.png", "photo.png"]
    with Image.open("figure.png") as picture:
        assert picture.info["class"]
    refused = ask(model, "-o", "-")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "ask prints the answer to stdout" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--against", "T", "--all-words"), "drop --all-words"), (("--device", "cuda:9"), "is not available")],
)
def test_mistakes_are_told_in_a_sentence(
    model: Path, sentence: str, arguments: tuple[str, ...], message: str
) -> None:
    result = ask(model, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not Path(f"{RESULT}.png").exists()


def test_nothing_of_others_is_replaced(model: Path, sentence: str) -> None:
    Path("maps").mkdir()
    Path(f"{RESULT}.html").write_text("mine")
    result = ask(model, sentences.QUESTION)
    assert result.exit_code == 2
    assert "would be replaced" in result.stderr
    assert ask(model, sentences.QUESTION, "--overwrite").exit_code == 0


def test_pointing_at_a_word_shows_its_map(model: Path, sentence: str, browser: Browser) -> None:
    assert ask(model, sentences.QUESTION).exit_code == 0
    browser.visit(Path(f"{RESULT}.html").absolute().as_uri())
    photo = browser.one("p + img")
    plain = browser.pixels(photo)
    seen = []
    for word in browser.all(".word"):
        browser.run("arguments[0].focus()", word)
        seen.append(browser.pixels(photo))
        assert np.abs(seen[-1] - plain).max() > 100
    assert len(seen) == 4
    assert np.abs(seen[0] - seen[2]).max() > 100  # the letters' maps differ
    assert browser.one(".answer").text.split() == sentence.split()
    assert browser.complaints() == []
    assert [one for one in browser.requests() if not one.startswith(("file:", "data:"))] == []
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_question_without_spaces_is_wrapped(model: Path, sentence: str, browser: Browser) -> None:
    asked = "x" * 300
    result = ask(model, asked, "--answer", sentence, "--format", "svg")
    assert result.exit_code == 0, result.stderr
    figure, page = (Path(one) for one in result.stdout.splitlines()[-2:])
    texts = [one for one in ElementTree.parse(figure).iter() if set(one.text or "") == {"x"}]
    assert "".join(one.text or "" for one in texts) == asked
    assert len({one.get("y") for one in texts}) > 1
    browser.visit(page.absolute().as_uri())
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("answer", ["a <b>cat</b>", "a cat </style><script>1</script>"])
def test_what_is_asked_and_answered_is_data_on_the_page(answer: str) -> None:
    """A page that loads nothing, whatever the question, the photo's name or the network say."""
    image, hostile = Image.new("RGB", (30, 20), "gray"), "<img src=x> & \"'></title><script>alert(1)</script>"
    start = answer.index("cat")
    subject = Subject(5, "cat", 0.5, span=(start, start + 3), position=2)
    values = np.eye(3, dtype=np.float32)
    map_ = Map(subject=subject, layer="5", values=values, mass=0.5, placement=Box(0, 0, 30, 20), share=0.25)
    explanation = Explanation(maps=[map_], seconds=1.0, question=hostile, answer=answer)
    page = answer_page(
        explanation, [DisplayFrame(image)], framed([map_], image.size), hostile, hostile
    ).decode()
    assert page.count("<script") == 1 and "alert(1)" in page
    assert "<img src=x" not in page and "<b>" not in page
    text = html.unescape(re.sub(r"<[^>]*>", "", page.partition("<h1>")[2]))
    assert text.count(hostile) >= 2 and answer in text
    assert "default-src 'none'" in html.unescape(page)


def test_in_a_notebook_a_word_shows_its_map(model: Path, sentence: str, browser: Browser) -> None:
    answer = ebcli.ask(str(model), "photo.png", sentences.QUESTION)
    Path("view.html").write_text(f"<meta charset=utf-8>{answer._repr_html_()}")
    browser.visit(Path("view.html").absolute().as_uri())
    for number, word in enumerate(browser.all("label")):
        browser.actions().move_to_element(word).perform()
        shown = [figure.is_displayed() for figure in browser.all("figure")]
        assert shown == [other == number for other in range(len(answer.words))]
    assert [word.text for word in browser.all("label")] == answer.words
    assert browser.complaints() == []
