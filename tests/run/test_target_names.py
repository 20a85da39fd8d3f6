"""A target that several classes match means the one that scores highest in an image."""

import json
from pathlib import Path

import pytest
from color_net import color_images, load_colors
from runs import invoke

RED, GREEN, BLUE = range(3)


def test_each_image_has_the_map_of_the_best_of_them(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    colors = color_images(Path("photos"), 3)

    def found(*arguments: str, warned: bool = True) -> list[list[int]]:
        result = invoke("--json", "--model", "colors3", "photos", *arguments)
        assert result.exit_code == 0, result.output
        said = "'re' means 2 classes (red, green): of these, the one that scores highest is explained"
        assert (said in result.stderr) is warned
        records = sorted(map(json.loads, result.stdout.splitlines()), key=lambda one: one["input"])
        assert [Path(one["input"]).name for one in records] == list(colors)
        return [[each["index"] for each in one["classes"]] for one in records]

    first, second, third = found("--target", "re")
    assert (first, second) == ([RED], [GREEN])
    assert third == [RED]  # neither is there, so the first of them
    # a class is explained once
    assert found("--target", "re", "--target", "red")[:2] == [[RED], [GREEN, RED]]
    assert found("--target", "blue", "--target", "re", "--target", "Blue", "--target", "0")[0] == [BLUE, RED]
    assert found("--target", "re", "--against", "green", warned=False) == [[RED]] * 3
