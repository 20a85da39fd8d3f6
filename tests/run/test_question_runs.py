"""Runs of `ask` over many photos, with a small random model: what is asked, resumed, recorded and left out."""

from __future__ import annotations

import csv
import signal
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from helpers import vision_language
from runs import Forked, count, photos, records, tree, until

from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError
from ebcli.files.records import read_records
from ebcli.run.plan_parts import WordOptions
from ebcli.run.questions import read_queries

QUESTIONS = "what is on the table ?\nis a dog on the table ?\n"
ASKED = "--questions", "questions.txt", "--answer", "a red cup"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("llava")
    vision_language.save("llava", folder)
    return str(folder)


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    photos(folder / "photos", 6)
    (folder / "photos/notes.txt").write_text("no photo")
    (folder / "questions.txt").write_text(QUESTIONS)
    monkeypatch.chdir(folder)
    return folder


def arguments(model: str, *others: str) -> tuple[str, ...]:
    return ("ask", "photos", "--model", model, "-o", "out", "--workers", "0", "--max-tokens", "4", *others)


def ask(model: str, *others: str) -> Result:
    return CliRunner().invoke(main, arguments(model, *others))


def asked(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(record["input"], record["question"]) for record in found]


def test_each_photo_is_asked_each_question_and_asked_again_only_where_it_failed(
    cwd: Path, model: str
) -> None:
    Path("photos/broken.png").write_bytes(b"\x89PNG")
    options = (*ASKED, "--skip-existing", "--records", "words.csv")
    result = ask(model, *options)
    assert result.exit_code == 1, result.output
    assert "14 answers: 12 done, 2 failed; 1 other file skipped" in result.stderr
    found = records(Path("out"))
    names = [str(path) for path in Path("photos").rglob("*.*g")]
    assert sorted(asked(found)) == sorted(product(names, QUESTIONS.splitlines()))
    done = [record for record in found if record["status"] == "done"]
    assert {path for record in done for path in record["output"]} == set(result.stdout.splitlines())
    assert all(Path(path).with_suffix(".html").exists() for path in result.stdout.splitlines())
    with Path("words.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "done"]
    words = [(record["input"], record["question"], word) for record in done for word in record["classes"]]
    assert len(rows) == len(words) > 12
    for row, (name, question, word) in zip(rows, words, strict=True):
        assert (row["input"], row["question"], row["name"]) == (name, question, word["name"])
        assert (int(row["position"]), float(row["share"])) == (word["position"], word["share"])
        assert 0 < word["share"] + word["unplaced"] < 1
    assert CliRunner().invoke(main, ["verify", "out"]).exit_code == 0
    Path(done[0]["output"][0]).unlink()
    again = ask(model, *options)
    assert "14 answers: 1 done, 11 up to date, 2 failed" in again.stderr
    assert Path(done[0]["output"][0]).exists()
    assert again.exit_code == 1


def test_an_interrupted_run_keeps_what_is_there_and_goes_on(cwd: Path, model: str) -> None:
    options = (*ASKED, "--skip-existing")
    run = Forked(cwd, *arguments(model, *options))
    until(lambda: count(Path("out")) >= 2)
    run.kill(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT
    done = len(records(Path("out")))
    assert 2 <= done < 12
    assert f"Interrupted. 13 answers: {done} done, {13 - done} left" in run.err.read_text()
    assert CliRunner().invoke(main, ["verify", "out"]).exit_code == 0
    assert ask(model, *options).exit_code == 0
    assert ask(model, *ASKED, "-o", "whole").exit_code == 0
    assert tree(Path("out")) == tree(Path("whole"))
    assert Counter(asked(records(Path("out")))) == Counter(asked(records(Path("whole"))))


def test_captions_that_exist_are_explained(cwd: Path, model: str) -> None:
    lines = ["photo,answer", "0000.jpg,a red cup", '0/0000.jpg,"a dog, a cat"', "2/0002.jpg,a table"]
    lines += ["0001.jpg,a cup", "0001.jpg,a dog", "nowhere.jpg,a cat"]
    Path("captions.csv").write_text("\n".join(lines))
    result = ask(model, "--answers", "captions.csv", "--json")
    assert result.exit_code == 0, result.output
    captions = [
        (Path(record.input).name, (record.answer or "").split()) for record in read_records(Path("out"))
    ]
    assert captions == [
        ("0000.jpg", ["a", "dog", "a", "cat"]),  # the longer path belongs to it, too
        ("0001.jpg", ["a", "cup"]),
        ("0001.jpg", ["a", "dog"]),
        ("0002.jpg", ["a", "table"]),
    ]
    assert len({path for record in records(Path("out")) for path in record["output"]}) == 4
    assert all(record["answer_given"] for record in records(Path("out")))
    assert "3 images have no row in 'captions.csv'" in result.stderr
    assert "rows of 'captions.csv' match no image, such as" in result.stderr
    other = ask(model, "what is that", "--answer", "a dog", "--include", "0001.jpg", "--skip-existing")
    assert "1 answer: 1 done" not in other.stderr
    assert len(records(Path("out"))) == 5  # to another question


def test_words_and_phrases_are_explained_where_they_are_said(cwd: Path, model: str) -> None:
    Path("captions.csv").write_text("file,answer\n0000.jpg,a red cup\n0001.jpg,a dog\n0002.jpg,a cup\n")
    options = ("--answers", "captions.csv", "--include", "000[012].jpg", "--word", "dog")
    result = ask(model, *options, "--phrase", "Red  cup", "--skip-existing")
    assert result.exit_code == 0, result.output
    assert "3 answers: 2 done, 1 not said" in result.stderr
    found = {Path(record["input"]).name: record for record in records(Path("out"))}
    assert {name: record["status"] for name, record in found.items()} == {
        "0000.jpg": "done",
        "0001.jpg": "done",
        "0002.jpg": "not said",
    }
    (phrase,) = found["0000.jpg"]["classes"]
    (word,) = found["0001.jpg"]["classes"]
    assert (phrase["name"], phrase["position"], phrase["span"]) == ("red cup", 2, [2, 9])
    assert (word["name"], word["position"]) == ("dog", 2)
    again = ask(model, *options, "--phrase", "Red  cup", "--skip-existing")
    assert "3 answers: 3 up to date" in again.stderr


def test_of_one_photo_the_answer_is_printed_and_the_word_that_it_lacks(cwd: Path, model: str) -> None:
    photo = "photos/0/0000.jpg"
    command = ["ask", photo, "what", "--model", model, "--answer", "a red cup", "--word", "cupp"]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout) == (0, "a red cup\n")
    assert f"{photo}: not said: 'cupp'; did you mean 'cup'?" in result.stderr
    (record,) = records(Path("saliency"))
    assert (record["status"], record["model"]) == ("not said", model)


def test_what_is_said_in_other_signs_or_in_a_phrase_is_said(cwd: Path, model: str) -> None:
    command = ["ask", "photos/0/0000.jpg", "what", "--model", model, "--answer", "a red . cup"]
    result = CliRunner().invoke(main, [*command, "--phrase", "red cup", "--word", "cup"])
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "a red . cup")
    assert "not said" not in result.stderr


def test_the_last_word_is_the_question_unless_it_is_a_photo(
    cwd: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["ask", "photos/0/0000.jpg", "photos/1/0001.jpg", "--model", model, "-o", "out"]
    command += ["--workers", "0", "--dry-run"]
    monkeypatch.setenv("EB_SALIENCY_RETRIES", "0")  # nothing listens at this address
    for question in ([], ["what is it"], ["https://127.0.0.1:1/photo"]):
        result = CliRunner().invoke(main, command[:3] + question + command[3:])
        assert len(result.stdout.splitlines()) == 2 + ("https" in str(question)), result.output
    planned = CliRunner().invoke(
        main, [*command, "--answer", "a cup", "--word", "dog", "--include", "0000.jpg"]
    )
    assert (planned.stdout, planned.stderr) == ("photos/0/0000.jpg\n", "1 answer: 1 to process\n")
    Path("list.txt").write_text("photos/0/0000.jpg\n")
    listed = CliRunner().invoke(main, ["ask", "what is it", "--from-file", "list.txt", *command[3:]])
    assert listed.stdout == "photos/0/0000.jpg\n", listed.output
    typo = CliRunner().invoke(main, [*command[:2], "photo.jpg", *command[3:]])
    assert (typo.exit_code, typo.stdout) == (2, "")
    assert "'photo.jpg' is no file: correct its name, or ask in several words" in typo.stderr


def test_what_one_photo_cannot_answer_does_not_end_the_run(cwd: Path, model: str) -> None:
    Path("captions.csv").write_text('photo,answer\n0000.jpg,"?"\n0001.jpg,a cup\n')
    result = ask(model, "--answers", "captions.csv")
    assert result.exit_code == 1
    assert [record["status"] for record in records(Path("out"))] == ["failed", "done"]
    assert "photos/0/0000.jpg: the answer '?' has no word: ask another question" in result.stderr


def test_one_figure_takes_one_question(cwd: Path, model: str) -> None:
    command = [
        "ask",
        "photos/0/0000.jpg",
        "--model",
        model,
        "-o",
        "figure.png",
        "--questions",
        "questions.txt",
    ]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert (
        "'figure.png' takes one picture, but --questions needs a directory: drop --questions" in result.stderr
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a.jpg,a dog, a cat", "line 1: .* must be photo, answer; put a text with commas in quotation marks"),
        ("photo,question,answer\na.jpg,what\n", "line 2: 'a.jpg,what' must be photo, question, answer"),
        ("a.jpg,\n", "line 1: 'a.jpg,' must be photo, answer"),
        ("photo,text\na.jpg,what\n", "the heading of .* is 'photo,text': name the columns"),
        ("photo,question\na.jpg,what\n", "the heading of .* is 'photo,question': name the columns"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_queries(path, WordOptions(answers=path))


def test_cells_of_tables_that_runs_wrote(tmp_path: Path) -> None:
    """An apostrophe keeps spreadsheets from taking a text for a formula."""
    path = tmp_path / "answers.csv"
    path.write_text("'=1.jpg,'-- a cup\n")
    (key, queries) = read_queries(path, WordOptions(answers=path)).popitem()
    assert (key, queries.queries[0].answer) == (("=1.jpg",), "-- a cup")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"questions": Path("q.txt"), "question": "what"}, "QUESTION and --questions both ask"),
        ({"questions": Path("q.txt"), "answers": Path("a.csv")}, "--answers and --questions both ask"),
        ({"answer": "a dog", "answers": Path("a.csv")}, "--answer and --answers both answer"),
        ({"words": ("traffic light",)}, "--word takes one word: use --phrase 'traffic light'"),
        ({"phrases": (" ",)}, "a phrase is empty"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WordOptions(**options)


def test_questions_can_differ_by_photo(cwd: Path, model: str) -> None:
    Path("questions.csv").write_text("photo,question\n0000.jpg,what is it\n0001.jpg,is it red\n")
    assert ask(model, "--questions", "questions.csv", "--answer", "a cup").exit_code == 0
    found = asked(records(Path("out")))
    assert found == [
        (str(Path("photos/0/0000.jpg")), "what is it"),
        (str(Path("photos/1/0001.jpg")), "is it red"),
    ]
