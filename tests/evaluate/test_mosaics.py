"""Mosaics of colors: a map of a color highlights its image."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from color_net import SIDE, color_images, load_colors, painted

from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate.benchmark import ModelUnderTest
from ebcli.models import LoadedModel

pytestmark = pytest.mark.usefixtures("colors")

METHODS = ("contrastive", "marginal", "gradient-x-input", "center", "random")


def run(folder: Path, *arguments: str, model: str = "colors", test: str = "grid") -> Result:
    kept = folder.with_name("kept")
    methods = [part for method in METHODS for part in ("--method", method)]
    common = (
        "--model",
        model,
        "--weights",
        "none",
        "--layer",
        "0",
        "-o",
        str(kept),
        "--mosaics",
        "12",
        *methods,
    )
    return CliRunner().invoke(main, (test, str(folder), *common, *arguments))


def rows(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {row["method"]: row for row in map(json.loads, result.stdout.splitlines())}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images with 128 pixels of red, green or blue, and one with 16 white pixels, which is a fourth class."""
    folder = tmp_path / "photos"
    color_images(folder, 9)
    painted((SIDE, SIDE), ((255, 255, 255), (4, 4, 8, 8))).save(folder / "white.png")

    def with_white(*arguments: str, **options: Any) -> LoadedModel:
        loaded = load_colors(*arguments, **options)
        with torch.no_grad():
            loaded.net[5].weight[3] = 16  # type: ignore[index]
        return loaded

    monkeypatch.setattr("ebcli.evaluate.benchmark.load_model", with_white)
    tmp_path.joinpath("labels.csv").write_text("0.png,red\n1.png,1\n2.png,Blue\nwhite.png,3\n")
    return folder


def test_scores_of_maps_that_depend_on_the_class_or_not(photos: Path) -> None:
    labels = str(photos.with_name("labels.csv"))
    found = rows(run(photos, "--json", "--confidence", "0", "--labels", labels, model="colors4"))
    own, in_white = 128, 16  # pixels of a color
    color, white = own / (own + in_white), 3 * in_white / (3 * in_white + 3 * own)
    for method in ("contrastive", "marginal", "gradient-x-input"):
        assert found[method]["questions"] == 48
        assert found[method]["score"] == pytest.approx((3 * color + white) / 4)
        assert found[method]["median"] == pytest.approx(color)
    assert found["center"]["score"] == pytest.approx(0.25)
    assert found["random"]["score"] == pytest.approx(0.25, abs=0.01)


def test_colors_are_named_where_they_are(photos: Path) -> None:
    """In each mosaic, three images have 128 colored pixels and one has 16 white ones; the others are black."""
    labels = str(photos.with_name("labels.csv"))
    common = ("--json", "--confidence", "0", "--labels", labels)
    result = run(photos, *common, model="colors4", test="naming")
    found = {(row["method"], row["compared"]): row for row in map(json.loads, result.stdout.splitlines())}
    for method in ("contrastive", "marginal", "gradient-x-input"):
        row = found[method, "plain"]
        assert (row["clear cells"], row["images"], row["listed"]) == (1, 1, 1)
        # probability: no class leads at white pixels; gradient: white has 3 * 16 there, but 16 against 20 elsewhere
        assert row["clear"] == (16 if method == "gradient-x-input" else 3 * 128) / (4 * SIDE**2)
        assert row["all cells"] == (3 * 128 + 16) / (4 * SIDE**2)
    assert found["contrastive", "evidence"]["clear cells"] > 0.9  # averaged beyond the edges of the images
    assert found["random", "plain"]["clear cells"] == pytest.approx(0.25, abs=0.01)


def test_another_seed_makes_other_mosaics(photos: Path) -> None:
    labels = str(photos.with_name("labels.csv"))
    for seed in ("0", "1", "0"):
        rows(run(photos, "--json", "--confidence", "0", "--labels", labels, "--seed", seed, model="colors4"))
    made = []
    for path in photos.with_name("kept").glob("grid-*"):
        mosaics = [line["rows"] for line in map(json.loads, path.read_text().splitlines()) if "rows" in line]
        made.append([[row["image"] for row in mosaic] for mosaic in mosaics])
    assert [len(mosaics) for mosaics in made] == [12, 12]  # the third run measured nothing
    assert made[0] != made[1]


def test_labels_decide_which_images_are_recognized(photos: Path) -> None:
    labels = photos.with_name("labels.csv")
    labels.write_text("0.png,blue\n1.png,1\n2.png,2\nwhite.png,3\n")  # the first one is red
    result = run(photos, "--labels", str(labels), "--confidence", "0", model="colors4")
    assert result.exit_code == 2
    assert "a mosaic needs images of 4 classes" in result.stderr
    assert "but there are only 3: add images" in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0.png", "labels.csv, line 1: '0.png' must be a file, a comma, a class"),
        ("zero.png,1", "lists 'zero.png', which is not an image in"),
        ("0.png,gren", "unknown class 'gren': did you mean 'green'"),
        ("0.png,77", "class 77 does not exist: valid indices are 0 to 3"),
        ("0.png,1_0", "unknown class '1_0'"),
        ("0.png,1\n./0.png,1\n1.png,3\n0.png,red", "line 4: '0.png' has class 0, but 1 in line 1: keep one"),
        ("0" * (1 << 21), "cannot read labels from"),
    ],
)
def test_labels_that_do_not_fit(photos: Path, line: str, message: str) -> None:
    labels = photos.with_name("labels.csv")
    labels.write_text(line)
    result = run(photos, "--labels", str(labels), model="colors4")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_folder_without_images(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    result = run(folder)
    assert result.exit_code == 2
    assert result.stderr == f"Error: there are no images in '{folder}'\n"


def test_each_image_fills_its_own_cell(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    explain = ModelUnderTest.explain

    def watched(self: ModelUnderTest, inputs: Any, classes: Any, seed: str, net: Any = None) -> Any:
        seen.append((inputs[0], list(classes)))
        return explain(self, inputs, classes, seed, net)

    monkeypatch.setattr(ModelUnderTest, "explain", watched)
    labels = str(photos.with_name("labels.csv"))
    rows(run(photos, "--json", "--confidence", "0", "--labels", labels, "--cell", "40", model="colors4"))
    mosaics = [(image, classes) for image, classes in seen if len(classes) == 4]
    assert len(mosaics) == 12
    for image, classes in mosaics:
        assert image.shape == (3, 80, 80)
        for place, index in enumerate(classes):
            top, left = (40 * part for part in divmod(place, 2))
            shown = image[:, top : top + 40, left : left + 40].amax((1, 2)) > 0.5
            assert shown.tolist() == [index in (channel, 3) for channel in range(3)]
