"""Texts and pictures on the command line become classes of the plan. Loads no model."""

from pathlib import Path
from unittest import mock

import pytest
from plans import command_plan
from stub_run import invoke

CLIP, LIKE = ("--model", "clip/x"), ("--similar-to", "b.png", "--similar-to", "7")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*CLIP, "--target", "a red car"], {"class_names": ("a red car",), "target": ("0",)}),
        (
            [
                *CLIP,
                "--target",
                "7",
                "--target",
                "a",
                "--target",
                "7",
                "--against",
                "a car",
                "--against",
                "1",
            ],
            {"class_names": ("7", "a", "a car", "1"), "target": ("0", "1", "0"), "against": ("2", "3")},
        ),
        (
            [*CLIP, "--class-names", __file__, "--target", "7"],
            {"class_names": Path(__file__), "target": ("7",)},
        ),
        ([*CLIP, "--against", "7"], {"against": ("7",)}),
        (LIKE, {"similar_to": (Path("b.png"), Path("7")), "target": ("0", "1")}),
        (
            [*LIKE[:2], "--against", "c.png"],
            {"similar_to": (Path("b.png"), Path("c.png")), "target": ("0",), "against": ("1",)},
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
    assert worker.mock_calls == [mock.call(command_plan("a.jpg", **model, **drawn, **expected), None)]


def test_a_picture_and_a_class_exclude_each_other(worker: mock.Mock) -> None:
    result = invoke("--similar-to", "b.png", "--target", "tabby", "a.jpg")
    assert result.exit_code == 2
    assert "--target and --similar-to both choose the classes: drop one of them" in result.output
