"""The command with detectors whose images it preprocesses itself; their scores depend on the color of one cell each."""

import json
from pathlib import Path

import color_tasks
import numpy as np
import pytest
from click.testing import CliRunner, Result
from color_net import GREEN, RED, painted

from ebcli.cli.saliency import main

SIZE = 192, 96  # padded to a square and halved: a cell of the network is 16 pixels wide
RED_SQUARE, GREEN_SQUARE, SECOND_RED = (32, 16, 48, 32), (128, 64, 144, 80), (160, 16, 176, 32)
FACTORIES = ["yolo", "objectness", "Queries"]


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    painted(SIZE, (RED, RED_SQUARE), (GREEN, GREEN_SQUARE), (RED, SECOND_RED)).save("squares.png")
    painted(SIZE).save("nothing.png")
    return tmp_path


def invoke(*arguments: str, factory: str = "yolo") -> Result:
    model = f"{color_tasks.__file__}:{factory}"
    return CliRunner().invoke(main, ["--model", model, "-o", "maps", "--workers", "0", *arguments])


def run(*arguments: str, status: int = 0, factory: str = "yolo") -> list[dict]:
    result = invoke("--json", *arguments, factory=factory)
    assert result.exit_code == status, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def corners(box: list[float]) -> tuple[float, ...]:
    return box[0], box[1], box[0] + box[2], box[1] + box[3]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fit", [(), ("--fit", "squash"), ("--resize", "48", "--crop", "48")])
@pytest.mark.parametrize("factory", FACTORIES)
def test_each_detection_has_its_box_and_a_map_of_its_own_cell(factory: str, fit: tuple[str, ...]) -> None:
    places = [RED_SQUARE, GREEN_SQUARE, SECOND_RED]
    if "squash" in fit:  # cells are of 16 x 8 pixels
        places = [(32, 16, 48, 24), (128, 64, 144, 72), (160, 8, 176, 16)]
    elif fit:  # cells are of 32 x 32 pixels, from 48 pixels above the image
        places = [(32, 16, 64, 48), (128, 48, 160, 80), (160, 16, 192, 48)]
    painted(SIZE, *zip((RED, GREEN, RED), places, strict=True)).save("squares.png")
    (record,) = run("squares.png", "--raw", *fit, factory=factory)
    assert [one["name"] for one in record["classes"]].count("red") == 2
    arrays = np.load(record["output"][-1])
    left, top, right, bottom = arrays["crop"]
    found = set()
    for one, map_ in zip(record["classes"], arrays["maps"], strict=True):
        (place,) = [place for place in places if corners(one["box"]) == pytest.approx(place)]
        assert one["name"] == ("green" if place == places[1] else "red")
        row, column = np.unravel_index(map_.argmax(), map_.shape)
        assert map_.max() == pytest.approx(np.maximum(map_, 0).sum())
        across, down = (right - left) / map_.shape[1], (bottom - top) / map_.shape[0]
        cell = left + column * across, top + row * down, left + (column + 1) * across, top + (row + 1) * down
        assert cell == pytest.approx(place)
        found.add(place)
    assert found == set(places)


def test_a_tall_image_is_padded_at_its_sides() -> None:
    painted((96, 192), (RED, (16, 32, 32, 48)), (GREEN, (64, 128, 80, 144))).save("tall.png")
    (record,) = run("tall.png")
    assert {one["name"]: corners(one["box"]) for one in record["classes"]} == {
        "red": pytest.approx((16, 32, 32, 48)),
        "green": pytest.approx((64, 128, 80, 144)),
    }


def test_boxes_end_at_the_image() -> None:
    painted((192, 90), (RED, (32, 82, 48, 90))).save("edge.png")  # and cells continue below it
    (record,) = run("edge.png", "--score", "0.4", "--top-k", "1", "--fit", "pad")
    (one,) = record["classes"]
    assert corners(one["box"])[3] == 90
    painted((192, 90), (RED, (32, 0, 48, 12))).save("edge.png")  # above it, too
    (record,) = run("edge.png", "--score", "0.4", "--top-k", "1", "--fit", "pad", "--overwrite")
    (one,) = record["classes"]
    assert corners(one["box"])[1] == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("factory", FACTORIES)
def test_scores_targets_boxes_and_numbers_choose_detections(factory: str) -> None:
    def boxes(*arguments: str) -> list[tuple[float, ...]]:
        (record,) = run("squares.png", *arguments, factory=factory)
        return [corners(one["box"]) for one in record["classes"]]

    assert {*boxes("--target", "red")} == {RED_SQUARE, SECOND_RED}
    assert len(boxes("--top-k", "1")) == 1
    assert boxes("--score", "1") == []
    for square in (RED_SQUARE, GREEN_SQUARE, SECOND_RED):
        left, top, right, bottom = square
        assert boxes("--where", f"{left + 2},{top},{right - left},{bottom - top}") == [square]


def test_options_that_do_not_fit() -> None:
    result = invoke("squares.png", "--tiles", "2")
    assert result.exit_code == 2
    assert "--tiles works only with classifiers, but" in result.stderr
