"""VOC and COCO as they are on disk, read to the pixel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from color_net import BLUE, GREEN, RED, painted
from data_sets import Thing, write_annotation, write_coco, write_voc

from ebcli.errors import ConfigurationError, ImageError
from ebcli.evaluate.data_sets import VOC_CLASSES, Coco, Voc, read_annotated_names, read_voc

CAT, DOG, HIDDEN = (
    Thing("cat", (3, 4, 13, 24)),
    Thing("dog", (20, 0, 50, 8)),
    Thing("dog", (0, 30, 9, 40), True),
)
SIZE = (50, 40)


def rectangle(thing: Thing) -> np.ndarray:
    mask = np.zeros(SIZE[::-1], dtype=bool)
    left, top, right, bottom = thing.rectangle
    mask[top:bottom, left:right] = True
    return mask


def photo() -> object:
    return painted(SIZE, (RED, CAT.rectangle), (GREEN, DOG.rectangle), (BLUE, HIDDEN.rectangle))


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return write_voc(tmp_path, {"000001": (photo(), [CAT, DOG, HIDDEN]), "000002": (photo(), [])})  # type: ignore[dict-item]


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    images = {"a.png": (photo(), [CAT, DOG, HIDDEN]), "b.png": (photo(), [])}
    return write_coco(tmp_path, {90: "dog", 7: "cat", 8: "cow"}, images)  # type: ignore[arg-type]


def test_voc(voc: Path) -> None:
    data = Voc(voc)
    assert (data.name, list(data.keys), len(data.classes)) == ("VOC 2007 test", ["000001", "000002"], 20)
    assert data.files["000001"].is_file()
    masks = data.masks("000001", SIZE)
    assert {VOC_CLASSES[index] for index in masks} == {"cat", "dog"}
    assert np.array_equal(masks[VOC_CLASSES.index("cat")], rectangle(CAT))
    assert np.array_equal(masks[VOC_CLASSES.index("dog")], rectangle(DOG) | rectangle(HIDDEN))
    assert data.masks("000002", SIZE) == {}


def test_voc_with_other_class_names(voc: Path) -> None:
    assert set(Voc(voc, class_names=["dog", "cat"]).masks("000001", SIZE)) == {0, 1}
    with pytest.raises(
        ImageError, match="annotated with 'cat', which is not among the class names: did you mean 'cats'"
    ):
        Voc(voc, class_names=["dog", "cats"]).masks("000001", SIZE)


def test_coco(coco: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    data = Coco(*coco)
    assert (data.name, list(data.keys), data.classes) == (
        "COCO instances_val2014",
        ["a.png", "b.png"],
        ("cat", "cow", "dog"),
    )
    masks = data.masks("a.png", SIZE)
    assert set(masks) == {0, 2}
    assert np.array_equal(masks[0], rectangle(CAT))
    assert np.array_equal(masks[2], rectangle(DOG) | rectangle(HIDDEN))
    assert data.masks("b.png", SIZE) == {}
    assert capsys.readouterr().out == ""  # pycocotools prints


def test_an_annotation_for_another_image_size_is_refused(voc: Path, coco: tuple[Path, Path]) -> None:
    message = "the image has 40 x 50 pixels, but its annotation says 50 x 40"
    with pytest.raises(ImageError, match=message):
        Voc(voc).masks("000001", (40, 50))
    with pytest.raises(ImageError, match=message):
        Coco(*coco).masks("a.png", (40, 50))


def test_directories_without_a_data_set(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"VOC 2007 test is not in .* must contain VOCdevkit/VOC2007"
    ):
        Voc(tmp_path / "val2014")
    with pytest.raises(ConfigurationError, match=r"lists no image"):
        Voc(write_voc(tmp_path / "empty", {}))
    photos, _ = coco
    for content in ("no JSON", "[]", '{"images": 3}'):
        broken = tmp_path / "broken.json"
        broken.write_text(content)
        with pytest.raises(ConfigurationError, match=r"broken\.json' is not a file of COCO annotations"):
            Coco(photos, broken)
    broken.write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(ConfigurationError, match=r"broken\.json' lists no images"):
        Coco(photos, broken)


def test_coco_without_masks(coco: tuple[Path, Path]) -> None:
    photos, file = coco
    content = json.loads(file.read_text())
    content["annotations"][1]["segmentation"] = []
    file.write_text(json.dumps(content))
    with pytest.raises(ImageError, match="cannot read the segmentation of annotation 2"):
        Coco(photos, file).masks("a.png", SIZE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<annotation>", "no element found"),
        ("<a/>", "size/width is missing"),
        ("<a><object/></a>", "xmin is missing"),
    ],
)
def test_broken_annotations(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "1.xml"
    path.write_text(content)
    with pytest.raises(ImageError, match=rf"annotation '.*1\.xml' is broken: .*{reason}"):
        read_voc(path)
    with pytest.raises(ImageError, match=r"cannot read annotation '.*2\.xml'"):
        read_voc(tmp_path / "2.xml")


def test_boxes_are_edges_starting_at_0(tmp_path: Path) -> None:
    write_annotation(tmp_path / "1.xml", SIZE, [DOG, HIDDEN])
    size, (dog, _) = read_voc(tmp_path / "1.xml")
    assert size == SIZE
    assert (dog.name, dog.box) == ("dog", (20, 0, 50, 8))


def test_class_names_from_a_synset_file(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("n01440764 tench, Tinca tinca\n\nn01443537 goldfish\ntiger cat\n")
    assert read_annotated_names(path) == ["n01440764", "n01443537", "tiger cat"]
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="one per line"):
        read_annotated_names(path)
