"""Maps of detections: the command with a detector whose scores depend on the color of one place each."""

import csv
import json
import re
from pathlib import Path

import color_tasks
import numpy as np
import pytest
from click.testing import CliRunner, Result
from color_net import GREEN, RED, painted
from PIL import Image

from ebcli.cli.saliency import main

SIZE = 120, 60  # resized to 192 x 96, so a cell is 5 pixels wide
RED_SQUARE, GREEN_SQUARE, SECOND_RED = (10, 10, 30, 30), (80, 20, 105, 45), (50, 35, 70, 55)


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    painted(SIZE, (RED, RED_SQUARE), (GREEN, GREEN_SQUARE), (RED, SECOND_RED)).save("squares.png")
    painted(SIZE).save("nothing.png")
    return tmp_path


def invoke(*arguments: str) -> Result:
    model = f"{color_tasks.__file__}:detector"
    return CliRunner().invoke(main, ["--model", model, "-o", "maps", "--workers", "0", *arguments])


def run(*arguments: str, status: int = 0) -> list[dict]:
    result = invoke("--json", *arguments)
    assert result.exit_code == status, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def center(box: list[float] | tuple[int, ...]) -> tuple[float, float]:
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def is_inside(point: tuple[float, float], square: tuple[int, int, int, int]) -> bool:
    return square[0] <= point[0] <= square[2] and square[1] <= point[1] <= square[3]


def test_each_detection_has_a_box_and_a_map_on_its_own_object() -> None:
    (record,) = run("squares.png", "--raw", "--layer", "backbone.cells")
    names = [one["name"] for one in record["classes"]]
    assert sorted(names) == ["green", "red", "red"]
    pictures = {Path(path).name for path in record["output"][:-1]}
    assert pictures == {f"squares.png.{name}@backbone-cells.png" for name in ("1-red", "1-red-2", "2-green")}
    arrays = np.load(record["output"][-1])
    left, top, right, bottom = arrays["crop"]
    found = set()
    for one, map_ in zip(record["classes"], arrays["maps"], strict=True):
        row, column = np.unravel_index(map_.argmax(), map_.shape)
        x = left + (column + 0.5) * (right - left) / map_.shape[1]
        y = top + (row + 0.5) * (bottom - top) / map_.shape[0]
        squares = {"green": [GREEN_SQUARE], "red": [RED_SQUARE, SECOND_RED]}[one["name"]]
        (on,) = [square for square in squares if is_inside((x, y), square)]
        assert np.maximum(map_, 0).max() == pytest.approx(
            np.maximum(map_, 0).sum()
        )  # one cell is all it sees
        assert is_inside(center(one["box"]), on)
        found.add(on)
    assert found == {RED_SQUARE, GREEN_SQUARE, SECOND_RED}


@pytest.mark.parametrize("scale", [1, 0.5])
def test_the_box_is_drawn_over_the_picture(scale: float) -> None:
    smaller = ("--max-side", str(round(scale * SIZE[0])))
    (record,) = run("squares.png", "--target", "green", "--score", "0.9", "--style", "mask", *smaller)
    (path,), (one,) = record["output"], record["classes"]
    left, top, width, height = (scale * value for value in one["box"])
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert pixels.shape == (scale * SIZE[1], scale * SIZE[0], 3)
    middle = round(top + height / 2)
    edges = [round(x) for x in (left, left + width) if 3 < x < pixels.shape[1] - 3]
    assert edges
    for x in edges:  # in a color, between black lines
        assert np.ptp(pixels[middle, x - 2 : x + 3], axis=1).max() > 100
    assert pixels[middle, edges[0] + 5 : edges[0] + 9].sum(1).max() < 300  # between the edges


def test_the_detection_nearest_to_a_box() -> None:
    for square in (RED_SQUARE, GREEN_SQUARE, SECOND_RED):
        left, top, right, bottom = square
        (record,) = run("squares.png", "--where", f"{left},{top},{right - left},{bottom - top}")
        (one,) = record["classes"]
        assert is_inside(center(one["box"]), square)


def test_what_is_in_a_box_is_explained_however_low_its_score() -> None:
    painted(SIZE, ((90, 0, 0), RED_SQUARE), (GREEN, GREEN_SQUARE)).save("dim.png")
    assert [one["name"] for one in run("dim.png")[0]["classes"]] == ["green"]
    (record,) = run("dim.png", "--where", "10,10,20,20")
    (one,) = record["classes"]
    assert (one["name"], one["score"] < 0.5) == ("red", True)
    assert is_inside(center(one["box"]), RED_SQUARE)


def test_a_box_is_left_top_width_and_height() -> None:
    """A wide box overlaps with the green square most; of the same width and height, a high one with the second red."""
    for box, square in (("30,5,90,50", GREEN_SQUARE), ("5,30,50,90", SECOND_RED)):
        (record,) = run("squares.png", "--where", box)
        (one,) = record["classes"]
        assert is_inside(center(one["box"]), square)
    painted(SIZE, (GREEN, (106, 20, 120, 45))).save("edge.png")
    (record,) = run("edge.png", "--target", "green")
    (one,) = record["classes"]
    left, top, width, height = one["box"]
    assert left + width == pytest.approx(SIZE[0])  # it ends at the edge of the image, so it is not square
    assert width < 28 < height == pytest.approx(30)
    assert top <= 20 + 12.5 <= top + height


def test_a_picture_without_detections_is_done_without_maps() -> None:
    result = invoke("nothing.png")
    assert result.exit_code == 0
    assert (
        "nothing.png: no map, as nothing is found; a lower --score or --above finds more\n" in result.stderr
    )
    (record,) = (json.loads(line) for line in Path("maps/records.jsonl").read_text().splitlines())
    assert (record["status"], record["output"]) == ("done", [])


def test_a_box_outside_the_picture_is_an_error_of_that_picture() -> None:
    first, second = run("squares.png", "nothing.png", "--where", "200,5,10,10", status=1)
    assert first["error"] == "the box 200,5,10,10 is outside the image of 120 x 60 pixels"
    assert second["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--where", "3,4"],
            "--where works only with segmentation networks and networks that return maps of values, but .* is for "
            "detection: drop it",
        ),
        (["--above", "0.5"], "--above works only with classifiers.*: use --score, or drop it"),
        (["--resize", "64"], "preprocesses images itself: drop --resize"),
        (
            ["--where", "1,2,0,4"],
            "--where is an empty box: give X,Y,WIDTH,HEIGHT with a width and height above 0",
        ),
        (["--where", "1,2,3"], "'1,2,3' is neither a pixel X,Y, a box X,Y,W,H nor the file of a mask"),
        (["--score", "1.5"], "--score is 1.5, but it must be from 0 to 1"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], message: str) -> None:
    result = invoke("squares.png", *arguments)
    assert result.exit_code == 2
    assert re.search(message, result.stderr), result.stderr


def test_finished_pictures_are_skipped_until_the_choice_changes() -> None:
    run("squares.png", "nothing.png")
    assert run("squares.png", "nothing.png", "--skip-existing") == []
    assert len(run("squares.png", "nothing.png", "--skip-existing", "--score", "0.8")) == 2


def test_the_page_and_the_panel_show_every_detection() -> None:
    run("squares.png", "--report")
    page = Path("maps/report/index.html").read_text()
    assert len(set(re.findall(r'"map":"([^"]+)"', page))) == 3
    (record,) = run("squares.png", "--panel")
    assert len(record["output"]) == 1


def test_a_table_has_the_boxes_of_detections() -> None:
    (record,) = run("squares.png", "--records", "maps.csv")
    with Path("maps.csv").open(encoding="utf-8") as file:
        rows = [
            [float(row[name]) for name in ("left", "top", "width", "height")] for row in csv.DictReader(file)
        ]
    assert rows == [one["box"] for one in record["classes"]]


def test_against_another_class_at_the_same_place() -> None:
    (record,) = run("squares.png", "--target", "red", "--against", "green")
    assert len(record["classes"]) == 2
    assert record["method"] == "contrastive joint EB against green"


def test_one_file_takes_one_map() -> None:
    result = invoke("squares.png", "-o", "one.png")
    assert result.exit_code == 2
    assert (
        "squares.png has 3 maps: add --panel to draw them in one figure, add --top-k 1, or" in result.stderr
    )
    assert not Path("one.png").exists()
    assert invoke("squares.png", "--top-k", "1", "-o", "one.png").exit_code == 0
    assert Path("one.png").is_file()


@pytest.mark.parametrize(
    ("fit", "side"), [("whole", 64), ("pad", 96)]
)  # an input of 96 x 64 pixels, or of 96 x 96
def test_boxes_of_an_image_wider_than_high_are_in_its_pixels(fit: str, side: int) -> None:
    options = f"resize={side}, crop={side}, mean=0.0, std=1.0, fit='{fit}'"
    Path("wide.py").write_text(
        "import color_tasks, ebcli\n"
        "class Wide(color_tasks.Yolo):\n"
        f"    preprocessing = ebcli.Preprocessing({options})\n"
    )
    square = (128, 32, 160, 64)
    painted((192, 128), (GREEN, square)).save("wide.png")
    arguments = ["--model", "wide.py:Wide", "--layer", "cells", "--target", "green", "--json"]
    result = CliRunner().invoke(main, ["wide.png", *arguments, "--workers", "0"])
    assert result.exit_code == 0, result.output
    boxes = [one["box"] for one in json.loads(result.stdout)["classes"]]
    assert boxes and all(is_inside(center(box), square) for box in boxes)
