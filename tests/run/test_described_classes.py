"""Runs whose classes are texts or pictures: names of results, records, and what is done again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from two_towers import clip

from ebcli.cli.saliency import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the model ``two`` and three pictures."""
    monkeypatch.chdir(tmp_path)
    clip(Path("two"))
    for seed, name in enumerate(("photo.png", "one.png", "two.png")):
        pixels = torch.randint(
            0, 256, (80, 70, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
        )
        Image.fromarray(pixels.numpy()).save(name)
    return tmp_path


def run(*arguments: str) -> Result:
    options = ("photo.png", "--model", "clip/two", "-o", "maps", "--workers", "0", "--skip-existing")
    return CliRunner().invoke(main, [*options, *arguments])


def written(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [Path(line).name for line in result.stdout.splitlines()]


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("maps/records.jsonl").read_text().splitlines()[-1])
    return found


def test_each_text_has_its_file_and_its_record(folder: Path) -> None:
    assert written(run("--target", "red a", "--target", "pink x")) == [
        "photo.png.0-red-a.png",
        "photo.png.1-pink-x.png",
    ]
    assert [one["name"] for one in record()["classes"]] == ["red a", "pink x"]
    assert all(-1 <= one["score"] <= 1 for one in record()["classes"])
    assert "joint EB" in record()["method"]


@pytest.mark.release
def test_another_text_is_another_run(folder: Path) -> None:
    first, again = run("--target", "red a"), run("--target", "red a")
    assert written(first) and not written(again)
    assert written(run("--target", "blue a")) == ["photo.png.0-blue-a.png"]
    against = [
        written(run("--target", "red a", "--against", text)) for text in ("pink x", "pink s", "pink x")
    ]
    assert against == [["photo.png.0-red-a+against-pink-x.png"], ["photo.png.0-red-a+against-pink-s.png"], []]
    assert "against pink s" in json.loads(Path("maps/records.jsonl").read_text().splitlines()[-1])["method"]


def test_numbers_are_texts_too(folder: Path) -> None:
    assert written(run("--target", "7", "--against", "0")) == ["photo.png.0-7+against-0.png"]
    assert record()["against"] == [1]


def test_the_settings_repeat_the_run(folder: Path) -> None:
    first = run("--target", "red a", "--against", "7")
    again = CliRunner().invoke(main, ["--config", "maps/settings.toml", "-o", "others"])
    assert again.exit_code == 0, again.output
    assert (Path("others") / written(first)[0]).read_bytes() == (
        Path("maps") / written(first)[0]
    ).read_bytes()


def test_class_names_are_texts_to_choose_from(folder: Path) -> None:
    Path("names.txt").write_text("red a\npink x\nblue s\n")
    result = run("--class-names", "names.txt", "--top-k", "2", "--scores", "softmax")
    assert len(written(result)) == 2
    scores = [one["score"] for one in record()["classes"]]
    assert scores == sorted(scores, reverse=True) and 0 < sum(scores) < 1
    assert "unknown class 'green t'" in run("--class-names", "names.txt", "--target", "green t").output


def test_a_picture_is_known_by_its_content(folder: Path) -> None:
    assert len(written(run("--similar-to", "one.png"))) == 1
    assert not written(run("--similar-to", "one.png"))
    assert record()["classes"][0]["name"] == "one.png"
    Image.open("two.png").save("one.png")
    assert len(written(run("--similar-to", "one.png"))) == 1
    name = written(run("--similar-to", "one.png", "--against", "two.png"))[0]
    assert name.startswith("photo.png.0-one-png-") and "+against-two-png-" in name


def test_layers_are_listed_without_a_text(folder: Path) -> None:
    result = CliRunner().invoke(main, ["layers", "--model", "clip/two"])
    assert result.exit_code == 0, result.output
    assert "vision_model.pre_layrnorm" in result.stdout
    result = CliRunner().invoke(
        main, ["layers", "--model", "timm/test_vit", "--weights", "none", "--similar-to", "one.png"]
    )
    assert result.exit_code == 0, result.output
    assert "backbone.blocks.0" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "clip/two compares images with texts: give one, as in --target 'a red car'"),
        (("--target", "red a", "--against", "red a"), "'red a' is explained, so it cannot be contrasted"),
        (
            ("--similar-to", "one.png", "--against", "one.png"),
            "'one.png' is explained, so it cannot be contrasted",
        ),
        (("--target", ""), "a text to compare images with is empty"),
        (("--target", "a " * 9), "reads at most 8: shorten it"),
        (
            ("--similar-to", "missing.png"),
            "cannot read 'missing.png', and --similar-to compares pictures: No",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
