"""The annotations of a run, as pycocotools reads them."""

import base64
import io
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from runs import invoke, photos, records

from ebcli.gallery.exports import coco_files

pytestmark = pytest.mark.usefixtures("working_directory")


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
    content = json.loads(coco_files(Path("saliency"), broken["configuration"])[Path("annotations.json")])
    assert [image["file_name"] for image in content["images"]] == [json.loads(lines[1])["input"]]


def test_heatmaps_of_a_run_are_a_dataset_of_fiftyone() -> None:
    """Read as the documentation of `FiftyOneDataset` and of `Heatmap` describes them."""
    photos(Path("photos"), 2)
    assert invoke("--annotations", "heatmaps", "--top-k", "2", "photos/0").exit_code == 0
    result = invoke("--annotations", "heatmaps", "--top-k", "2", "--skip-existing", "photos")
    assert "Annotations: saliency/fiftyone\n" in result.stderr
    metadata = json.loads(Path("saliency/fiftyone/metadata.json").read_text())
    samples = json.loads(Path("saliency/fiftyone/samples.json").read_text())["samples"]
    assert metadata["media_type"] == "image"
    latest = {str(Path(record["input"]).absolute()): record for record in records(Path("saliency"))}
    assert [sample["filepath"] for sample in samples] == sorted(latest)
    assert len(latest) == 2
    declared = {field["name"]: field for field in metadata["sample_fields"]}
    assert declared.keys() - {"id", "filepath"} == {"saliency", "saliency_2"}
    ids = [
        one["_id"]["$oid"] for sample in samples for one in (sample, sample["saliency"], sample["saliency_2"])
    ]
    assert len({int(name, 16) for name in ids if len(name) == 24}) == 6
    for sample in samples:
        record = latest[sample["filepath"]]
        with np.load(next(path for path in record["output"] if path.endswith(".npz"))) as raw:
            (left, top, right, bottom), maps = raw["crop"], raw["maps"]
        for name, values, one in zip(("saliency", "saliency_2"), maps, record["classes"], strict=True):
            heatmap = sample[name]
            names = {field["name"] for field in declared[name]["fields"]}
            assert heatmap.keys() - {"_cls", "_id"} == names - {"id"}
            assert (heatmap["_cls"], heatmap["label"], heatmap["layer"]) == (
                "Heatmap",
                one["name"],
                one["layer"],
            )
            assert heatmap["confidence"] == pytest.approx(one["score"])
            drawn = np.load(
                io.BytesIO(zlib.decompress(base64.b64decode(heatmap["map"]["$binary"]["base64"])))
            )
            assert drawn.ndim == 2
            assert drawn.shape[1] / drawn.shape[0] == pytest.approx(48 / 40, rel=0.02)
            assert heatmap["range"] == [0, pytest.approx(drawn.max())]
            assert drawn.max() == pytest.approx(values.max(), rel=0.2)  # interpolation exceeds it
            row, column = np.unravel_index(values.argmax(), values.shape)
            y = top + (row + 0.5) * (bottom - top) / len(values)
            x = left + (column + 0.5) * (right - left) / values.shape[1]
            assert drawn[int(y / 40 * drawn.shape[0]), int(x / 48 * drawn.shape[1])] > 0.9 * drawn.max()
