"""Boxes around the bright part of maps, compared with annotated boxes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from color_net import COLORS, GREEN, RED, painted
from data_sets import Thing, write_annotation

from ebcli.cli.benchmark import benchmark as main

pytestmark = pytest.mark.usefixtures("colors")

SIZE = (448, 224)  # twice as wide as high, and no smaller than the network gets it
RED_THING, GREEN_THING = Thing("red", (30, 40, 130, 160)), Thing("green", (300, 20, 400, 60))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One image that matches its annotation, and one whose red is elsewhere."""
    images, annotations = tmp_path / "images", tmp_path / "boxes"
    images.mkdir()
    (annotations / "below").mkdir(parents=True)
    painted(SIZE, (RED, RED_THING.rectangle), (GREEN, GREEN_THING.rectangle)).save(images / "right.png")
    painted(SIZE, (RED, (0, 0, 40, 40))).save(images / "wrong.png")
    write_annotation(annotations / "right.xml", SIZE, [RED_THING, GREEN_THING])
    write_annotation(annotations / "below" / "wrong.xml", SIZE, [RED_THING])
    return images, annotations


def run(folders: tuple[Path, Path], *arguments: str) -> Result:
    images, annotations = folders
    common = *COLORS, "-o", str(images.with_name("kept")), "--json"
    return CliRunner().invoke(main, ("localize", str(images), str(annotations), *common, *arguments))


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_errors_by_method_and_alpha(folders: tuple[Path, Path]) -> None:
    """The mean of the red map is 12000 / 100352 of its maximum: 9 times the mean is above it."""
    result = run(folders, "--method", "contrastive", "--method", "marginal", "--alpha", "1", "--alpha", "9")
    assert result.exit_code == 0, result.output
    assert [(row["method"], row["alpha"], row["questions"]) for row in rows(result)] == [
        ("contrastive", 1.0, 3),
        ("contrastive", 9.0, 3),
        ("marginal", 1.0, 3),
        ("marginal", 9.0, 3),
    ]
    for row in rows(result):
        # Of red and green in the first image and red in the second, the last is wrong; with alpha 9, so is the first
        assert row["error"] == pytest.approx(100 / 3 if row["alpha"] == 1 else 200 / 3)


def test_matching_one_of_several_boxes_is_enough(folders: tuple[Path, Path]) -> None:
    write_annotation(folders[1] / "below" / "wrong.xml", SIZE, [RED_THING, Thing("red", (0, 0, 40, 50))])
    (row,) = rows(run(folders))
    assert row["error"] == 0


@pytest.mark.parametrize(("height", "error"), [(80, 0), (81, pytest.approx(100 / 3))])
def test_half_of_both_boxes_is_enough(height: int, error: float, folders: tuple[Path, Path]) -> None:
    """The map's box is the red square of 40 x 40 pixels."""
    write_annotation(folders[1] / "below" / "wrong.xml", SIZE, [Thing("red", (0, 0, 40, height))])
    (row,) = rows(run(folders))
    assert row["error"] == error


def test_a_box_of_another_class_is_no_match(folders: tuple[Path, Path]) -> None:
    swapped = [Thing("green", RED_THING.rectangle), Thing("red", GREEN_THING.rectangle)]
    write_annotation(folders[1] / "right.xml", SIZE, swapped)
    (row,) = rows(run(folders))
    assert (row["error"], row["questions"]) == (100, 3)


def test_class_names_from_a_file(folders: tuple[Path, Path], tmp_path: Path) -> None:
    names = {"red": "n00000001", "green": "n00000002"}
    for path in folders[1].rglob("*.xml"):
        text = path.read_text()
        for name, number in names.items():
            text = text.replace(f"<name>{name}</name>", f"<name>{number}</name>")
        path.write_text(text)
    unnamed = run(folders)
    assert unnamed.exit_code == 2
    assert "right.png: annotation: unknown class 'n00000001'" in unnamed.stderr
    assert "nothing was measured: none of 2 images gave a result" in unnamed.stderr
    classes = tmp_path / "classes.txt"
    classes.write_text("n00000001 red, crimson\nn00000002 green\nn00000003 blue\n")
    (row,) = rows(run(folders, "--class-names", str(classes)))
    assert row["error"] == pytest.approx(100 / 3)


def test_images_without_annotation_are_reported(folders: tuple[Path, Path]) -> None:
    (folders[1] / "below" / "wrong.xml").unlink()
    result = run(folders)
    assert result.exit_code == 1
    assert "wrong.png: its annotation wrong.xml does not exist\n1 could not be measured\n" in result.stderr
    assert [(row["error"], row["questions"]) for row in rows(result)] == [(0, 2)]
    (folders[1] / "right.xml").unlink()
    nothing = run(folders)
    assert nothing.exit_code == 2
    assert f"there are no annotations (*.xml) in '{folders[1]}'" in nothing.stderr
