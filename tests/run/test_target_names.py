"""A target that several classes match means the one that scores highest in an image."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from color_net import color_images, load_colors
from PIL import Image
from runs import invoke

import ebcli
from ebcli.models import LoadedModel

RED, GREEN, BLUE = range(3)


def load_warm_colors(*arguments: Any, **options: Any) -> LoadedModel:
    """The network for colors, of which two share a word."""
    return replace(load_colors(*arguments, **options), categories=("warm red", "warm green", "blue"))


def test_each_image_has_the_map_of_the_best_of_them(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_warm_colors)
    colors = color_images(Path("photos"), 3)

    def found(*arguments: str, warned: bool = True) -> list[list[int]]:
        result = invoke("--json", "--model", "colors3", "photos", *arguments)
        assert result.exit_code == 0, result.output
        said = "'warm' means 2 classes (warm red, warm green): of these, the one that scores highest is explained"
        assert (said in result.stderr) is warned
        records = sorted(map(json.loads, result.stdout.splitlines()), key=lambda one: one["input"])
        assert [Path(one["input"]).name for one in records] == list(colors)
        return [[each["index"] for each in one["classes"]] for one in records]

    first, second, third = found("--target", "warm")
    assert (first, second) == ([RED], [GREEN])
    assert third == [RED]  # neither is there, so the first of them
    # a class is explained once
    assert found("--target", "warm", "--target", "red")[:2] == [[RED], [GREEN, RED]]
    assert found("--target", "blue", "--target", "warm", "--target", "Blue", "--target", "0")[0] == [
        BLUE,
        RED,
    ]
    assert found("--target", "warm", "--against", "green", warned=False) == [[RED]] * 3


def test_python_says_so_as_the_command_does() -> None:
    green = Image.new("RGB", (32, 32), (0, 255, 0))
    with pytest.warns(UserWarning, match=r"'warm' means 2 classes \(warm red, warm green\)"):
        assert ebcli.explain(load_warm_colors(), green, "warm", layer="0").classes == ["warm green"]
    with pytest.raises(ebcli.ConfigurationError, match="did you mean 'warm red'"):
        ebcli.explain(load_warm_colors(), green, "arm r", layer="0")
