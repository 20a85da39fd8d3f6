"""The annotations of a run, as pycocotools reads them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from runs import invoke, photos, records

from ebcli.files.coco import coco_file

pytestmark = pytest.mark.usefixtures("working_directory")
ROOT = Path(__file__).parents[2]


def test_boxes_and_masks_of_a_run_open_with_pycocotools() -> None:
    photos(Path("photos"), 3)
    Path("photos/bad.jpg").touch()
    result = invoke("--annotations", "masks", "--top-k", "2", "--threshold", "0.3", "photos")
    assert result.exit_code == 1
    assert "Annotations: saliency/annotations.json\n" in result.stderr
    coco = COCO("saliency/annotations.json")
    assert [image["file_name"] for image in coco.loadImgs(coco.getImgIds())] == [
        f"photos/{i}/{i:04}.jpg" for i in range(3)
    ]
    scores = {(record["input"], one["index"]): one["score"] for record in records(Path("saliency"))
              for one in record["classes"] if not one["blank"]}  # fmt: skip
    found = {}
    for annotation in coco.loadAnns(coco.getAnnIds()):
        (image,) = coco.loadImgs([annotation["image_id"]])
        (category,) = coco.loadCats([annotation["category_id"]])
        assert category["name"] == f"class {'abcdefg'[category['id']]}"
        mask = coco.annToMask(annotation)
        assert mask.shape == (image["height"], image["width"]) == (40, 48)
        rows, columns = np.nonzero(mask)
        left, top, width, height = annotation["bbox"]
        assert (columns.min(), rows.min()) == pytest.approx((left, top), abs=1.5)
        assert (columns.max() + 1, rows.max() + 1) == pytest.approx((left + width, top + height), abs=1.5)
        found[image["file_name"], annotation["category_id"]] = annotation["score"]
    assert found == scores
    coco.loadRes(list(coco.loadAnns(coco.getAnnIds())))  # as results of a detector


def test_boxes_have_no_polygons_and_resumed_runs_add_to_them() -> None:
    photos(Path("photos"), 4)
    assert invoke("--annotations", "boxes", "photos/0").exit_code == 0
    assert invoke("--annotations", "boxes", "--threshold", "0.2", "photos").exit_code == 0  # other settings
    other = COCO("saliency/annotations.json")
    assert invoke("--annotations", "boxes", "--skip-existing", "photos").exit_code == 0
    coco = COCO("saliency/annotations.json")
    assert len(coco.getImgIds()) == len(other.getImgIds()) == 4
    pairs = zip(coco.loadAnns(coco.getAnnIds()), other.loadAnns(other.getAnnIds()), strict=True)
    assert any(one["bbox"] != another["bbox"] for one, another in pairs)
    # Label Studio's converter takes an empty list of polygons for one
    assert all("segmentation" not in one for one in coco.loadAnns(coco.getAnnIds()))


def test_a_file_of_one_s_own_stops_the_run() -> None:
    photos(Path("photos"), 1)
    Path("saliency").mkdir()
    Path("saliency/annotations.json").write_text('{"images": []}')
    assert invoke("photos").exit_code == 0  # which writes no annotations
    result = invoke("--annotations", "boxes", "photos")
    assert result.exit_code == 2
    assert "'saliency/annotations.json' would be replaced" in result.stderr
    for wrong in ("0", "1", "max:2", "area:0.5", "x"):
        assert "is not a threshold" in invoke("--annotations", "boxes", "--threshold", wrong, "photos").stderr


def test_records_that_lie_about_regions_are_left_out() -> None:
    photos(Path("photos"), 2)
    invoke("--annotations", "boxes", "photos")
    lines = Path("saliency/records.jsonl").read_text().splitlines()
    broken = json.loads(lines[0])
    broken["image_size"], broken["classes"][0]["region"] = ["1", None], {"box": "x"}
    Path("saliency/records.jsonl").write_text(f"{json.dumps(broken)}\n{lines[1]}\n")
    content = json.loads(coco_file(Path("saliency"), broken["configuration"]))
    assert [image["file_name"] for image in content["images"]] == [json.loads(lines[1])["input"]]


def test_the_example_for_fiftyone_covers_each_image_with_its_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package, which brings a database server."""

    class Sample(dict[str, Any]):
        def __init__(self, filepath: str) -> None:
            self.filepath = filepath

    stub = SimpleNamespace(Sample=Sample, Heatmap=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "fiftyone", stub)
    photos(Path("photos"), 2)
    assert invoke("--raw", "--top-k", "2", "photos").exit_code == 0
    samples = list(runpy.run_path(str(ROOT / "docs/examples/fiftyone_maps.py"))["samples"]("saliency"))
    assert [Path(sample.filepath).name for sample in samples] == ["0000.jpg", "0001.jpg"]
    for sample in samples:
        assert len(sample) == 2
        for name, heatmap in sample.items():
            assert name.startswith("class_")
            assert heatmap.map.shape == (40, 48)
            assert heatmap.range == [0, heatmap.map.max()]
            with np.load(f"saliency/{Path(sample.filepath).relative_to(Path('photos').absolute())}.npz") as raw:
                left, top, right, bottom = raw["crop"]
                k = [f"class_{'abcdefg'[index]}" for index in raw["classes"]].index(name)
                row, column = np.unravel_index(raw["maps"][k].argmax(), raw["maps"][k].shape)
                rows, columns = raw["maps"][k].shape
            y, x = top + (row + 0.5) * (bottom - top) / rows, left + (column + 0.5) * (right - left) / columns
            assert heatmap.map[int(y), int(x)] == heatmap.map.max()
