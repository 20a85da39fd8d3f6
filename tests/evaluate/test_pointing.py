"""The pointing game on data sets with known answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from color_net import BLUE, GREEN, RED, painted
from data_sets import Thing, write_coco, write_voc

from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate.localization import POINTING

pytestmark = pytest.mark.usefixtures("colors")

SIZE = (400, 300)
# VOC's first three classes are those of the network's red, green and blue
LARGE_RED, SMALL_RED = Thing("aeroplane", (0, 0, 300, 200)), Thing("aeroplane", (300, 200, 380, 290))
SMALL_GREEN, FLAGGED_BLUE = Thing("bicycle", (20, 220, 80, 280)), Thing("bird", (340, 20, 390, 60), True)
COLORS = {"aeroplane": RED, "bicycle": GREEN, "bird": BLUE}


def scene(*things: Thing, said: tuple[Thing, ...] | None = None) -> tuple[object, tuple[Thing, ...]]:
    """An image of things, and its annotations."""
    return painted(
        SIZE, *((COLORS[thing.name], thing.rectangle) for thing in things)
    ), things if said is None else said


def voc(root: Path, **images: object) -> str:
    return str(write_voc(root / "voc", images))  # type: ignore[arg-type]


def run(
    tmp_path: Path, *arguments: str, methods: tuple[str, ...] = ("contrastive",), classes: int = 20
) -> Result:
    methods = tuple(part for method in methods for part in ("--method", method))
    common = (
        "--model",
        f"colors{classes}",
        "--weights",
        "none",
        "--layer",
        "0",
        "-o",
        str(tmp_path / "kept"),
    )
    return CliRunner().invoke(main, ("pointing", *common, *methods, *arguments))


def cells(result: Result) -> dict[str, list[str]]:
    """The table's cells by method."""
    lines = [re.split(r"\s*\|\s*", line.strip("| ")) for line in result.stdout.splitlines()]
    assert lines[0][:5] == ["method", "layer", "all", "difficult", "questions"]
    return {line[0]: line[1:] for line in lines[2:]}


def test_maps_that_point_at_the_color_hit(tmp_path: Path) -> None:
    root = voc(tmp_path, a=scene(LARGE_RED, SMALL_GREEN), b=scene(SMALL_RED), c=scene(SMALL_RED, SMALL_GREEN))
    result = run(tmp_path, "--voc", root, methods=("contrastive", "marginal", "gradient-x-input"))
    assert result.exit_code == 0, result.output
    for row in cells(result).values():
        assert row[1:4] == ["100.000", "100.000", "5"]


def test_the_center_hits_by_geometry_and_classes_are_averaged(tmp_path: Path) -> None:
    """The image's center (200, 150) is inside the large red object, at least 120 pixels from the others."""
    root = voc(tmp_path, a=scene(LARGE_RED, SMALL_GREEN), b=scene(SMALL_RED), c=scene(SMALL_RED, SMALL_GREEN))
    result = run(tmp_path, "--voc", root, methods=("center",))
    # red: 1 of 3, green: 0 of 2; difficult: one small red next to green, and both greens
    assert cells(result)["center"][1:4] == [f"{100 * (1 / 3 + 0) / 2:.3f}", "0.000", "5"]


@pytest.mark.parametrize(("left", "share"), [(214, "100.000"), (218, "0.000")])
def test_a_hit_is_at_most_15_pixels_off(left: int, share: str, tmp_path: Path) -> None:
    """From the image's center (200, 150)."""
    root = voc(tmp_path, a=scene(Thing("bird", (left, 100, 260, 200))))
    assert cells(run(tmp_path, "--voc", root, methods=("center",)))["center"][1] == share


def test_maps_miss_wrong_annotations(tmp_path: Path) -> None:
    """Red is at the top left, but annotated at the bottom right."""
    root = voc(tmp_path, a=scene(Thing("aeroplane", (0, 0, 80, 60)), said=(SMALL_RED,)))
    assert cells(run(tmp_path, "--voc", root))["contrastive"][1] == "0.000"


def test_a_blank_map_is_a_miss(tmp_path: Path) -> None:
    """In a black image, nothing excites the class."""
    root = voc(tmp_path, a=scene(said=(Thing("bird", (0, 0, 400, 300)),)))
    assert cells(run(tmp_path, "--voc", root, methods=("marginal",)))["marginal"][1] == "0.000"


def test_a_small_object_is_difficult_beside_another_class_only(tmp_path: Path) -> None:
    for things, difficult in (((SMALL_RED,), "-"), ((SMALL_RED, SMALL_GREEN), "100.000")):
        root = voc(tmp_path / str(len(things)), a=scene(*things))
        assert cells(run(tmp_path, "--voc", root))["contrastive"][1:4] == [
            "100.000",
            difficult,
            str(len(things)),
        ]


def test_flagged_objects_and_images_without_objects(tmp_path: Path) -> None:
    root = voc(tmp_path, a=scene(LARGE_RED, FLAGGED_BLUE), b=scene(SMALL_RED, said=()), c=(painted(SIZE), ()))
    assert cells(run(tmp_path, "--voc", root))["contrastive"][1:4] == ["100.000", "100.000", "2"]


def test_coco(tmp_path: Path) -> None:
    images = {
        "a.png": scene(LARGE_RED, SMALL_GREEN),
        "b.png": scene(SMALL_GREEN, FLAGGED_BLUE),
        "c.png": (painted(SIZE), ()),
    }
    categories = {44: "bird", 2: "bicycle", 1: "aeroplane"}
    photos, file = write_coco(tmp_path / "coco", categories, images)  # type: ignore[arg-type]
    arguments = ("--coco", str(photos), "--annotations", str(file))
    assert cells(run(tmp_path, *arguments, classes=3))["contrastive"][1:4] == ["100.000", "100.000", "4"]
    refused = run(tmp_path, *arguments, classes=80)
    assert refused.exit_code == 2
    assert "colors80 has 80 classes, but COCO instances_val2014 has 3: pass --weights" in refused.stderr


def test_published_results_are_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POINTING, ("VOC 2007 test", "colors20", "contrastive"), "paper 80.0 / 66.8")
    row = cells(
        run(tmp_path, "--voc", voc(tmp_path, a=scene(LARGE_RED)), methods=("contrastive", "marginal"))
    )
    assert row["contrastive"][4] == "paper 80.0 / 66.8"
    assert row["marginal"][4] == "-"


def test_a_limit_samples_the_same_images_each_time(tmp_path: Path) -> None:
    root = voc(tmp_path, **{f"i{number}": scene(LARGE_RED) for number in range(6)})
    first, again = (run(tmp_path, "--voc", root, "--limit", "2") for _ in range(2))
    assert cells(first) == cells(again)
    assert cells(first)["contrastive"][3] == "2"
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.read_text().count('"unit"') == 2  # the second run had nothing to do


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass either --voc DIR, or --coco DIR and --annotations FILE"),
        (("--coco", "."), "pass either --voc DIR, or --coco DIR and --annotations FILE"),
        (("--voc", "nowhere"), "'nowhere' does not exist"),
        (("--voc", "."), "VOC 2007 test is not in '.'"),
    ],
)
def test_missing_data_sets(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_broken_images_are_reported_and_the_rest_is_measured(tmp_path: Path) -> None:
    root = voc(tmp_path, a=scene(LARGE_RED), b=scene(SMALL_RED))
    (Path(root) / "VOCdevkit/VOC2007/JPEGImages/a.jpg").write_bytes(b"no image")
    result = run(tmp_path, "--voc", root)
    assert result.exit_code == 1
    assert "a: not an image that Pillow can read\n1 could not be measured\n" in result.stderr
    assert cells(result)["contrastive"][3] == "1"
