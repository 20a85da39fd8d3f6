"""Boxes around the bright part of maps, compared with annotated boxes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import color_net
import pytest
from click.testing import CliRunner, Result
from color_net import COLORS, GREEN, RED, painted
from data_sets import Thing, write_annotation

from ebcli.cli.benchmark import benchmark as main

pytestmark = pytest.mark.usefixtures("colors")

SIZE = (448, 224)  # twice as wide as high, and as the network gets it
RED_THING, GREEN_THING = Thing("red", (30, 40, 130, 160)), Thing("green", (300, 20, 400, 60))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """One image that matches its annotation, and one whose red is elsewhere."""
    monkeypatch.setattr(color_net, "SIDE", SIZE[1])
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
    assert (
        f"there are no annotations (*.xml) in '{folders[1]}': name a directory of VOC's XML" in nothing.stderr
    )


def write_csv(path: Path) -> Path:
    lines = [
        f"{image},{thing.name},{','.join(map(str, thing.rectangle))}"
        for image, things in (("right.png", (RED_THING, GREEN_THING)), ("wrong.png", (RED_THING,)))
        for thing in things
    ]
    path.write_text("\n".join(lines))
    return path


def write_coco_boxes(path: Path) -> Path:
    """Boxes alone, without masks."""
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "right.png"}, {"id": 8, "file_name": "wrong.png"}],
        "categories": [{"id": 1, "name": "red"}, {"id": 3, "name": "green"}],
        "annotations": [],
    }
    for image, category, thing in ((7, 1, RED_THING), (7, 3, GREEN_THING), (8, 1, RED_THING)):
        left, top, right, bottom = thing.rectangle
        box = [left, top, right - left, bottom - top]
        content["annotations"].append({"image_id": image, "category_id": category, "bbox": box})
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("write", [write_csv, write_coco_boxes])
def test_boxes_of_a_file_are_those_of_a_directory(
    write: Callable[[Path], Path], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    images, annotations = folders
    file = write(tmp_path / ("boxes.csv" if write is write_csv else "boxes.json"))
    expected, found = (rows(run((images, place))) for place in (annotations, file))
    assert found == expected
    assert found[0]["questions"] == 3


def test_cover_of_objects(folders: tuple[Path, Path]) -> None:
    """Two of three maps are the object. The third one is a square of 40 pixels beside it, and 0 everywhere else.

    Its strongest pixels are this square, and, at random, some of the others.
    """
    (row,) = rows(run(folders, "--method", "marginal"))
    width, height = SIZE
    left, top, right, bottom = RED_THING.rectangle
    size, square = (right - left) * (bottom - top), 40 * 40
    chance = (size - square) / (width * height - square)
    assert row["equal area"] == pytest.approx((2 + chance) / 3, abs=0.03)
    assert row["best IoU"] == pytest.approx((2 + size / (width * height)) / 3, abs=0.03)
    assert row["photos"] == 2
    low, high = row["equal area, 95%"]
    assert low == pytest.approx(chance, abs=0.05)  # only the photo with the square
    assert high == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", "right.png,red,1,2,3", "line 1, 'right.png,red,1,2,3', must be a file, a class"),
        ("boxes.csv", "right.png,red,1,2,3,wide", "could not convert string to float: 'wide'"),
        ("boxes.csv", "image,class,left,top,right,bottom", "lists no boxes"),
        ("boxes.csv", "other.png,red,1,2,3,4", "the annotations list no image in"),
        ("boxes.json", "[]", "cannot read boxes from"),
        ("boxes.json", "{", "cannot read boxes from"),
    ],
)
def test_a_broken_file_of_boxes(
    name: str, content: str, message: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    result = run((folders[0], tmp_path / name))
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_box_outside_the_image_is_reported(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("right.png,red,600,10,700,20\nwrong.png,red,0,0,40,40")
    result = run((folders[0], tmp_path / "boxes.csv"))
    assert result.exit_code == 1
    assert "right.png: no box of 'red' lies in the image, which has 448 x 224 pixels" in result.stderr
    assert rows(result)[0]["equal area"] == pytest.approx(1, abs=0.03)


def test_a_map_that_is_half_on_an_object_of_its_size(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Half of the pixels are right; of all that the map or the object covers, a third is in both."""
    (tmp_path / "boxes.csv").write_text("wrong.png,red,20,0,60,40")
    (row,) = rows(run((folders[0], tmp_path / "boxes.csv")))
    assert row["equal area"] == pytest.approx(1 / 2, abs=0.03)
    assert row["best IoU"] == pytest.approx(1 / 3, abs=0.03)


def test_other_boxes_in_the_same_file_are_measured_anew(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("wrong.png,red,0,0,40,40")
    assert rows(run((folders[0], tmp_path / "boxes.csv")))[0]["error"] == 0
    (tmp_path / "boxes.csv").write_text("wrong.png,red,100,100,140,140")
    assert rows(run((folders[0], tmp_path / "boxes.csv")))[0]["error"] == 100
