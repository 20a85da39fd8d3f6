"""Maps of segments: the command with a network that segments by color, one pixel at a time."""

import json
import re
from pathlib import Path

import color_tasks
import numpy as np
import pytest
from click.testing import CliRunner, Result
from color_net import BLUE, GREEN, RED, painted
from PIL import Image

from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Box
from ebcli.run.masks import polygons

SIZE = 128, 128  # halved for the network
RED_SQUARE, GREEN_SQUARE, SPECK = (16, 16, 56, 56), (80, 40, 120, 100), (10, 100, 14, 104)


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    painted(SIZE, (RED, RED_SQUARE), (GREEN, GREEN_SQUARE), (BLUE, SPECK)).save("squares.png")
    return tmp_path


def invoke(*arguments: str) -> Result:
    model = f"{color_tasks.__file__}:Segmenter"
    return CliRunner().invoke(
        main, ["--model", model, "--layer", "pixels", "-o", "maps", "--workers", "0", *arguments]
    )


def run(*arguments: str, status: int = 0) -> dict:
    result = invoke("--json", "squares.png", *arguments)
    assert result.exit_code == status, result.stderr
    return json.loads(result.stdout)


def share(map_: np.ndarray, square: tuple[int, int, int, int]) -> float:
    """Of the positive map, the part within a square of the image."""
    left, top, right, bottom = (side // 2 for side in square)
    positive = np.maximum(map_, 0)
    return float(positive[top:bottom, left:right].sum() / positive.sum())


def test_each_segment_but_the_background_has_a_map_on_its_own_pixels() -> None:
    record = run("--raw")
    assert [
        (one["name"], one["score"]) for one in record["classes"]
    ] == [  # the score is the share of the pixels
        ("green", pytest.approx(40 * 60 / 128**2)),
        ("red", pytest.approx(40 * 40 / 128**2)),
    ]
    green, red = np.load(record["output"][-1])["maps"]
    assert share(green, GREEN_SQUARE) == pytest.approx(1)
    assert share(red, RED_SQUARE) == pytest.approx(1)


def test_a_background_without_a_name_is_explained_and_said() -> None:
    """Torchvision's networks for classes of one's own have no names: class 0 may be the background, or a class."""
    Path("nets.py").write_text(
        "from torchvision.models.segmentation import lraspp_mobilenet_v3_large\n"
        "def net():\n"
        "    net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()\n"
        "    net.classifier.low_classifier.bias.data[0] = 1e4\n"
        "    return net\n"
    )
    model = ("--model", "nets.py:net", "--json", "-o", "maps", "--workers", "0", "squares.png")
    result = CliRunner().invoke(main, [*model])
    assert [one["index"] for one in json.loads(result.stdout)["classes"]] == [0]
    assert (
        "Warning: class 0 is explained like the others: if it is the background, class names" in result.stderr
    )
    Path("names.txt").write_text("background\na\nb\nc\n")
    named = CliRunner().invoke(main, [*model, "--class-names", "names.txt"])
    assert json.loads(named.stdout)["classes"] == []
    for quiet in (named, CliRunner().invoke(main, [*model, "--target", "0"])):
        assert "class 0 is explained" not in quiet.stderr


def test_small_segments_are_explained_if_asked_for() -> None:
    assert [one["name"] for one in run("--above", "0.0001")["classes"]] == ["green", "red", "blue"]
    assert [one["name"] for one in run("--above", "0.12")["classes"]] == ["green"]
    assert [one["name"] for one in run("--target", "blue")["classes"]] == ["blue"]
    assert [one["name"] for one in run("--target", "background")["classes"]] == ["background"]


def test_what_is_not_in_the_photo_has_no_map() -> None:
    painted(SIZE, (GREEN, GREEN_SQUARE)).save("squares.png")
    assert run("--target", "red")["classes"] == []
    assert [one["name"] for one in run("--target", "red", "--target", "green")["classes"]] == ["green"]


def test_a_word_of_several_names_means_all_segments_and_the_best_one_of_a_pixel() -> None:
    Path("names.txt").write_text("background\nwarm red\nwarm green\nblue\n")
    warm = "--target", "warm", "--class-names", "names.txt"
    assert [one["name"] for one in run(*warm)["classes"]] == ["warm green", "warm red"]
    place = ",".join(str(side + 8) for side in RED_SQUARE[:2])
    assert [one["name"] for one in run(*warm, "--where", place)["classes"]] == ["warm red"]


def test_the_outline_of_the_segment_is_drawn() -> None:
    record = run("--target", "red", "--style", "mask")
    pixels = np.asarray(Image.open(record["output"][0]).convert("RGB")).astype(int).sum(2)
    left, top, right, bottom = RED_SQUARE
    middle = (top + bottom) // 2
    assert (
        pixels[middle, left - 2 : left + 2].max() > 450 and pixels[middle, right - 2 : right + 2].max() > 450
    )
    assert pixels[middle, left + 10 : right - 10].max() < 300


@pytest.mark.parametrize("size", [SIZE, (192, 128), (128, 192)])
def test_a_pixel_and_a_mask_have_maps_of_their_own(size: tuple[int, int]) -> None:
    """The network sees the square in the middle of the photo, halved."""
    right, down = (size[0] - 128) // 2, (size[1] - 128) // 2

    def moved(square: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        return square[0] + right, square[1] + down, square[2] + right, square[3] + down

    painted(size, (RED, moved(RED_SQUARE)), (GREEN, moved(GREEN_SQUARE))).save("squares.png")
    painted(size, ((255, 255, 255), moved((20, 20, 40, 30)))).save("mask.png")
    cells = [[row, column] for row in range(10, 15) for column in range(10, 20)]
    for where, name, expected in (
        (f"{100 + right},{60 + down}", "green", [[30, 50]]),
        ("mask.png", "red", cells),
    ):
        record = run("--where", where, "--raw", "-o", name, "--style", "mask", "--fit", "crop")
        (one,) = record["classes"]
        assert one["name"] == name and one["score"] > 0.99
        (map_,) = np.load(record["output"][-1])["maps"]
        assert np.argwhere(map_ > 0).tolist() == expected
        drawn = np.asarray(Image.open(record["output"][0]).convert("RGB")).astype(int).sum(2)
        rows, columns = np.nonzero(drawn > 450)  # the outline is light, red and green are 255
        (first, left), (last, end) = 2 * np.min(expected, 0), 2 * np.max(expected, 0) + 2
        assert (rows.min(), rows.max() + 1) == pytest.approx((first + down, last + down), abs=2)
        assert (columns.min(), columns.max() + 1) == pytest.approx((left + right, end + right), abs=2)


@pytest.mark.parametrize(("size", "place"), [((192, 128), "3,60"), ((128, 192), "60,3")])
def test_a_pixel_outside_the_center_crop_is_refused(size: tuple[int, int], place: str) -> None:
    painted(size).save("squares.png")
    error = run("--where", place, "--fit", "crop", status=1)["error"]
    assert error == f"the pixel {place} is outside what the network sees of the image"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("128,3", "the pixel 128,3 is outside the image of 128 x 128 pixels"),
        (
            "black.png",
            "the mask 'black.png' has no bright pixels in the part of the image that the network sees",
        ),
        ("small.png", "the mask 'small.png' has 64 x 64 pixels, but the image has 128 x 128"),
        ("text.png", "cannot read the mask 'text.png': not an image that Pillow can read"),
    ],
)
def test_a_wrong_place_is_an_error_of_the_picture(where: str, message: str) -> None:
    painted(SIZE).save("black.png")
    painted((64, 64)).save("small.png")
    Path("text.png").write_text("no image")
    assert run("--where", where, status=1)["error"] == message


def test_options_that_do_not_fit() -> None:
    for arguments, message in (
        (
            ["--where", "1,2,3,4"],
            "--where X,Y,W,H works only with detectors, but .* is for segmentation: drop it",
        ),
        (
            ["--where", "missing.png"],
            "'missing.png' is neither a pixel X,Y, a box X,Y,W,H nor the file of a mask",
        ),
        (["--labels", "folders"], "--labels works only with classifiers"),
    ):
        result = invoke("squares.png", *arguments)
        assert result.exit_code == 2
        assert re.search(message, result.stderr), result.stderr


def test_a_mask_counts_by_its_content() -> None:
    def computed(name: str, box: tuple[int, int, int, int]) -> int:
        painted(SIZE, (RED, box)).convert("L").point(lambda value: 255 * (value > 40)).save(name)
        return len(invoke("squares.png", "--where", name, "--skip-existing").stdout.splitlines())

    boxes = (16, 16, 30, 30), (30, 30, 50, 50)
    found = [
        computed(name, box) for name, box in (("a.png", boxes[0]), ("b.png", boxes[0]), ("a.png", boxes[1]))
    ]
    assert found == [1, 0, 1]


def test_outlines_are_around_their_pixels_of_the_image() -> None:
    """Of an output of 2 x 4 pixels, each has 10 x 15 pixels of the image, from 20 and 30 on."""
    mask = np.zeros((2, 4), bool)
    mask[1, 2] = True
    (outline,) = polygons(mask, Box(20, 30, 60, 60))
    np.testing.assert_allclose((outline.min(0), outline.max(0)), [(40, 45), (50, 60)])
