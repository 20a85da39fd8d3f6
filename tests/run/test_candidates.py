"""The classes that are compared: the likeliest of windows of each image, of the whole image, or those in a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from color_net import BLUE, GREEN, RED, load_colors, painted
from PIL import Image, ImageOps

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.atlas import Atlas
from ebcli.datatypes.explanation import Box, Subject, WindowScore
from ebcli.run.network_description import NetworkDescription
from ebcli.run.plan_parts import MapOptions
from ebcli.run.tasks.classes import subjects
from ebcli.run.tasks.task import ImageRequest

SAMPLES = Path(__file__).parents[2] / "sample_images"


@pytest.fixture
def photos(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted((32, 32), (RED, (0, 0, 32, 32))).save("red.png")
    # blue is hardly any of the photo, but a quarter of the first window
    painted((32, 32), (RED, (0, 0, 32, 32)), (GREEN, (16, 16, 32, 32)), (BLUE, (0, 0, 8, 8))).save(
        "three.png"
    )


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["--model", "colors30", "--layer", "2", "--workers", "0", *words])


def colors(*words: str) -> list[dict[str, Any]]:
    result = run("--json", *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_three_classes_of_each_window_and_the_likeliest_of_the_photo() -> None:
    scores = torch.full((21,), 0.01)
    scores[11] = 0.89
    window_scores = torch.zeros(9, 21)
    window_scores[:, :3] = torch.tensor([0.2, 0.5, 0.3])
    window_scores[4, 5] = 0.9  # in place of the first class
    window_scores[4, :3] = torch.tensor([0.0, 0.06, 0.04])
    network = NetworkDescription(loaded=load_colors("colors21"), layers=("2",))
    request = ImageRequest(
        network, MapOptions(candidates="windows"), size=(32, 32), window_scores=window_scores
    )
    chosen = subjects(scores, request)
    # by the highest score in the photo or a window
    assert [subject.index for subject in chosen] == [5, 11, 1, 2, 0]
    assert [subject.score for subject in chosen] == pytest.approx([0.01, 0.89, 0.01, 0.01, 0.01])
    assert [subject.window_score for subject in chosen] == pytest.approx([0.9, 0, 0.5, 0.3, 0.2])
    few = ImageRequest(
        replace(network, against=[11, 1]), request.maps, size=(32, 32), window_scores=window_scores
    )
    assert {subject.index for subject in subjects(scores, few)} == {*range(21)} - {11, 1}


def test_an_atlas_weighs_evidence_by_the_scores_around_each_cell() -> None:
    """Of an image on whose left a window has the first class, and on whose right another has the second one."""
    image = painted((32, 32), (RED, (0, 0, 32, 32)))
    (map_,) = ebcli.explain(load_colors(), image, "red", layer="2").explanation.maps
    left, right = Box(0, 0, 20, 32), Box(12, 0, 32, 32)
    first = Subject(0, "a", 0.1, windows=(WindowScore(left, 0.9), WindowScore(right, 0.0)))
    second = Subject(1, "b", 0.2, windows=(WindowScore(left, 0.0), WindowScore(right, 0.4)))
    atlas = Atlas.from_maps([replace(map_, subject=subject) for subject in (first, second)])
    # the mean of the image's score and that of the windows, or of their mean where they overlap
    for x, scores in ((4, (0.5, 0.1)), (16, (0.275, 0.2)), (28, (0.05, 0.3))):
        shares = {subject.name: share for subject, share in atlas.classes_at(x, 16)}
        weights = [score**0.75 for score in scores]
        assert shares["a"] == pytest.approx(weights[0] / sum(weights), rel=1e-5)


@pytest.mark.usefixtures("photos")
def test_maps_do_not_depend_on_how_many_classes_others_have() -> None:
    options = {"layer": "2", "candidates": "windows"}
    net = load_colors("colors30")
    together = ebcli.explain(net, ["red.png", "three.png"], **options)
    assert [len(found.classes) for found in together] != [len(together[0].classes)] * 2
    for name, found in zip(("red.png", "three.png"), together, strict=True):
        alone = ebcli.explain(net, name, **options)
        assert found.classes == alone.classes
        np.testing.assert_array_equal(found.maps, alone.maps)


@pytest.mark.usefixtures("photos")
def test_records_say_which_classes_were_compared_and_why() -> None:
    (windows,) = colors("three.png", "--style", "atlas", "-o", "windows")
    (photo,) = colors("three.png", "--style", "atlas", "--candidates", "photo", "-o", "photo")
    assert (windows["candidates"], photo["candidates"]) == ("windows", "photo")
    assert len(photo["classes"]) == 20 and {one["window_score"] for one in photo["classes"]} == {None}
    by_name = {one["name"]: one for one in windows["classes"]}
    assert {"red", "green", "blue"} <= by_name.keys() and len(by_name) < 30
    # softmax of 20 times the mean of each color, in each window by hand
    areas = np.zeros((9, 30))
    for number in range(9):
        top, left = 8 * (number // 3), 8 * (number % 3)
        blue = max(0, 8 - top) * max(0, 8 - left)
        green = max(0, top) * max(0, left)
        areas[number, :3] = np.array([256 - blue - green, green, blue]) / 256
    scores = np.exp(20 * areas) / np.exp(20 * areas).sum(1, keepdims=True)
    for index, name in enumerate(("red", "green", "blue")):
        assert by_name[name]["window_score"] == pytest.approx(scores[:, index].max(), rel=1e-4)
    (again,) = colors("three.png", "--config", "windows/settings.toml", "-o", "again")
    assert again["classes"] == windows["classes"]


@pytest.mark.usefixtures("photos")
def test_a_file_of_classes_is_as_good_as_targets() -> None:
    Path("classes.txt").write_text("blue\n\n7\nred\n")
    (of_file,) = colors("three.png", "--style", "atlas", "--candidates", "classes.txt")
    (of_targets,) = colors(
        "three.png", "--style", "atlas", "--target", "blue", "--target", "7", "--target", "red"
    )
    assert [one["index"] for one in of_file["classes"]] == [2, 7, 0]
    assert of_file["classes"] == of_targets["classes"]
    assert (of_file["candidates"], of_targets["candidates"]) == ("classes.txt", "")
    saliency = ebcli.explain(load_colors("colors30"), "three.png", layer="2", candidates=Path("classes.txt"))
    assert saliency.classes == ["blue", "nothing 7", "red"]


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--candidates", "window"],
            "'window' is neither windows, photo nor the file of the names of classes",
        ),
        (["--candidates", "empty.txt"], "class names in 'empty.txt' must be one per line"),
        (["--candidates", "wrong.txt"], "purple"),
        (["--candidates", "windows", "--target", "red"], "--target and --candidates both choose the classes"),
        (["--candidates", "photo", "-o", "a.png"], "there are several maps: add --panel"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], problem: str) -> None:
    Path("empty.txt").touch()
    Path("wrong.txt").write_text("purple\n")
    result = run("red.png", *words)
    assert result.exit_code == 2 and problem in " ".join(result.stderr.split()), result.output


@pytest.mark.parametrize(
    "model", ["ssdlite320_mobilenet_v3_large", pytest.param("mc3_18", marks=pytest.mark.release)]
)
def test_networks_for_other_tasks_have_no_candidates(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clip.mp4" if model == "mc3_18" else "a.png").write_bytes((SAMPLES / "coffee.jpg").read_bytes())
    words = [".", "--model", model, "--weights", "none", "--candidates", "windows"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"--candidates compares the classes of images, but {model} is for" in result.stderr


def test_each_of_four_photos_is_named() -> None:
    """The whole picture hardly shows an espresso, so that a cup gets its place."""
    four = Image.new("RGB", (448, 448))
    for number, name in enumerate(("chelsea", "coffee", "rocket", "coffee")):
        with Image.open(SAMPLES / f"{name}.jpg") as photo:
            four.paste(ImageOps.fit(photo, (224, 224)), (224 * (number % 2), 224 * (number // 2)))
    names = {}
    for candidates in ("photo", "windows"):
        found = ebcli.explain("efficientnet_lite0", four, candidates=candidates)
        names[candidates] = [found.at(336, y)[0][0] for y in (112, 336)]
        assert found.at(112, 112)[0][0] in {"tabby", "tiger cat", "Egyptian cat"}
    assert names == {"photo": ["cup", "cup"], "windows": ["espresso", "espresso"]}
