"""Texts and pictures on the command line become classes of the plan. Loads no model."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from plans import command_plan
from stub_run import invoke

CLIP, LIKE = ("--model", "clip/x"), ("--like", "b.png", "--like", "7")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*CLIP, "--target", "a red car"], {"class_names": ("a red car",), "targets": ("0",)}),
        (
            [*CLIP, "--target", "7", "--target", "a", "--target", "7", "--against", "a car", "--against", "1"],
            {"class_names": ("7", "a", "a car", "1"), "targets": ("0", "1", "0"), "against": ("2", "3")},
        ),
        ([*CLIP, "--class-names", __file__, "--target", "7"], {"class_names": Path(__file__), "targets": ("7",)}),
        ([*CLIP, "--against", "7"], {"against": ("7",)}),
        (LIKE, {"like": (Path("b.png"), Path("7")), "targets": ("0", "1")}),
        (
            [*LIKE[:2], "--against", "c.png"],
            {"like": (Path("b.png"), Path("c.png")), "targets": ("0",), "against": ("1",)},
        ),
    ],
)
def test_texts_and_pictures_become_the_classes(
    arguments: list[str], expected: dict[str, object], worker: mock.Mock
) -> None:
    result = invoke(*arguments, "a.jpg")
    assert result.exit_code == 0, result.output
    model = {"model": "clip/x"} if "clip/x" in arguments else {}
    drawn = {"signed": True} if "against" in expected else {}
    assert worker.mock_calls == [mock.call(command_plan("a.jpg", **model, **drawn, **expected))]


def test_a_picture_and_a_class_exclude_each_other(worker: mock.Mock) -> None:
    result = invoke("--like", "b.png", "--target", "tabby", "a.jpg")
    assert result.exit_code == 2
    assert "--target and --like both choose the classes: drop one of them" in result.output


def test_a_project_file_names_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.eb-saliency]\nlike = ["/secret.png"]\n')
    result = invoke("a.jpg")
    assert result.exit_code == 2
    assert "pyproject.toml: like names an input: pass --like, or a file of your own with --config" in result.output
