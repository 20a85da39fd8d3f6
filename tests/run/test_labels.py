"""True classes beside predicted ones, and maps for every class above a score."""

import base64
import io
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import invoke, photos, tiny_model

from ebcli.gallery.page import read_entries

LETTERS = "abcdefg"


@pytest.fixture(autouse=True)
def predicted(working_directory: Path) -> dict[str, int]:
    """Six photos, and the class that the network finds in each."""
    photos(Path("photos"), 6)
    loaded, found = tiny_model(), {}
    for path in sorted(Path("photos").rglob("*.jpg")):
        with torch.no_grad():
            found[str(path)] = int(loaded.net(loaded.transforms(Image.open(path))[None]).argmax())
    return found


def wrong_for(path: str, predicted: dict[str, int]) -> int:
    return (predicted[path] + 1) % 7


def tiny_scores(path: str) -> list[float]:
    loaded = tiny_model()
    with torch.no_grad():
        scores: list[float] = loaded.net(loaded.transforms(Image.open(path))[None])[0].softmax(0).tolist()
    return scores


def records_of(*arguments: str) -> tuple[list[dict[str, Any]], str]:
    result = invoke("--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def test_the_true_class_and_where_it_differs_the_predicted_one(predicted: dict[str, int]) -> None:
    right, wrong = list(predicted)[:4], list(predicted)[4:]
    names = {path: f"class {LETTERS[index]}" for path, index in predicted.items()}
    lines = [f"{path},{names[path]}" for path in right[:2]]
    lines += [f"{Path(path).name},{predicted[path]}" for path in right[2:]]  # the end of the path is enough
    lines += [f"{path},{wrong_for(path, predicted)}" for path in wrong]
    Path("labels.csv").write_text("file,class\n" + "\n".join(lines) + "\n")
    records, stderr = records_of("--labels", "labels.csv", "--raw", "--report", "photos")
    said = [line for line in stderr.splitlines() if ": labeled " in line]
    for path, line in zip(wrong, said, strict=True):
        score = max(tiny_scores(path))
        assert line == (
            f"{path}: labeled class {LETTERS[wrong_for(path, predicted)]}, "
            f"predicted class {LETTERS[predicted[path]]} ({score:.3f})"
        )
    assert "Accuracy 0.667: 4 of 6 labeled images classified correctly\n" in stderr
    for record in records:
        path, best = record["input"], predicted[record["input"]]
        expected = [best] if path in right else [wrong_for(path, predicted), best, best]
        assert [one["index"] for one in record["classes"]] == expected
        label = f"class {LETTERS[expected[0]]}"
        assert [one["against"] for one in record["classes"]] == [None, None, label][: len(expected)]
        assert (record["label"], record["predicted"]) == (expected[0], best)
    # the maps are those of these classes, whatever chose them
    path = wrong[0]
    classes = [wrong_for(path, predicted), predicted[path]]
    invoke("-o", "asked", "--raw", *(word for k in classes for word in ("--target", str(k))), path)
    with (
        np.load(f"saliency/{Path(path).relative_to('photos')}.npz") as labeled,
        np.load(f"asked/{path}.npz") as asked,
    ):
        for key in ("maps", "classes", "scores"):
            assert labeled[key][:2] == pytest.approx(asked[key], abs=1e-6)
        third, drawn = labeled["maps"][2], Path("saliency", f"{Path(path).relative_to('photos')}")
    # the third one tells them apart, as if it had been asked for
    label, best = map(str, classes)
    invoke("-o", "apart", "--raw", "--target", best, "--against", label, path)
    (raw,) = Path("apart").rglob("*.npz")
    with np.load(raw) as apart:
        assert third == pytest.approx(apart["maps"][0], abs=1e-6)
    (picture,) = drawn.parent.glob(f"{drawn.name}.{best}-*-2.jpg")
    (asked_for,) = Path("apart").rglob("*.jpg")
    with Image.open(picture) as one, Image.open(asked_for) as other:
        assert np.abs(np.asarray(one, int) - np.asarray(other, int)).mean() < 2  # both in two colors
    entries = {entry.input: entry.outcomes[0] for entry in read_entries(Path("saliency"))}
    assert {
        name for name, outcome in entries.items() if outcome.record.label != outcome.record.predicted
    } == set(wrong)
    # other labels for the same images are other results
    assert records_of("--labels", "labels.csv", "--raw", "--report", "--skip-existing", "photos")[0] == []
    Path("labels.csv").write_text("".join(f"{path},{predicted[path]}\n" for path in predicted))
    assert len(records_of("--labels", "labels.csv", "--raw", "--skip-existing", "photos")[0]) == 6


def write_labels(predicted: dict[str, int]) -> tuple[list[str], list[str], str]:
    """Labels of all photos but one: the first three are right, the next two wrong; these, and the one without."""
    right, wrong, (unlabeled,) = list(predicted)[:3], list(predicted)[3:5], list(predicted)[5:]
    lines = [f"{path},{predicted[path]}" for path in right]
    lines += [f"{path},{wrong_for(path, predicted)}" for path in wrong]
    Path("labels.csv").write_text("\n".join(lines) + "\n")
    return right, wrong, unlabeled


@pytest.mark.parametrize("batch_size", ["1", "4"])
def test_only_wrong_predictions_have_maps(predicted: dict[str, int], batch_size: str) -> None:
    right, wrong, unlabeled = write_labels(predicted)
    options = "--labels", "labels.csv", "--only", "wrong", "--raw", "--batch-size", batch_size
    records, stderr = records_of(*options, "photos")
    assert "Accuracy 0.600: 3 of 5 labeled images classified correctly\n" in stderr
    assert "6 images: 2 done, 3 classified correctly (no map), 1 without a label (no map)\n" in stderr
    assert ": no map" not in stderr
    by_input = {record["input"]: record for record in records}
    for path in (*right, unlabeled):
        record = by_input[path]
        assert (record["status"], record["output"], record["classes"]) == ("done", [], [])
    assert [by_input[path]["label"] for path in right] == [predicted[path] for path in right]
    assert by_input[unlabeled]["label"] is None
    # the maps are those of a run that explains all
    invoke("--labels", "labels.csv", "--raw", "-o", "all", "--batch-size", batch_size, "photos")
    for path in wrong:
        classes = [wrong_for(path, predicted), predicted[path], predicted[path]]
        assert [one["index"] for one in by_input[path]["classes"]] == classes
        name = f"{Path(path).relative_to('photos')}.npz"
        with np.load(Path("saliency", name)) as only, np.load(Path("all", name)) as all_:
            assert only["maps"] == pytest.approx(all_["maps"], abs=1e-6)
    assert {path.name.partition(".jpg")[0] for path in Path("saliency").rglob("*.npz")} == {
        Path(path).stem for path in wrong
    }


def test_only_wrong_predictions_resume(predicted: dict[str, int]) -> None:
    _, wrong, _ = write_labels(predicted)
    options = "--labels", "labels.csv", "--only", "wrong", "--skip-existing"
    records_of(*options, "photos")
    records, stderr = records_of(*options, "photos")
    assert records == []
    assert "6 images: 6 up to date\n" in stderr
    Path(next(Path("saliency").rglob(f"{Path(wrong[0]).name}.*.jpg"))).unlink()
    assert [record["input"] for record in records_of(*options, "photos")[0]] == [wrong[0]]
    # without the option, all have maps, so those without are not up to date
    assert len(records_of(*options[:2], "--skip-existing", "photos")[0]) == 6


@pytest.mark.parametrize(
    "style", [("--panel",), ("--scale", "run"), ("--annotations", "boxes"), ("--sufficiency",)]
)
def test_nothing_wrong_is_no_error(predicted: dict[str, int], style: tuple[str, ...]) -> None:
    path = next(iter(predicted))
    Path("labels.csv").write_text(f"{path},{predicted[path]}\n")
    options = "--labels", "labels.csv", "--only", "wrong", "--report", "--records", "maps.csv"
    (record,), stderr = records_of(*options, *style, path)
    assert (record["label"], record["predicted"]) == (predicted[path], predicted[path])
    assert "1 image: 1 classified correctly (no map)\n" in stderr
    assert f"{path}: classified correctly, skipped\n" in records_of(*options, *style, "-v", path)[1]


def test_only_wrong_predictions_need_labels() -> None:
    result = invoke("--only", "wrong", "photos")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: --only wrong needs the true classes: add --labels FILE, or --labels folders\n",
    )


def test_a_map_that_is_no_contrast_is_not_told_apart(predicted: dict[str, int]) -> None:
    path = next(iter(predicted))
    Path("labels.csv").write_text(f"{path},{wrong_for(path, predicted)}\n")
    for option in (("--marginal",), ("--against", str((predicted[path] + 2) % 7))):
        (record,), _ = records_of("--labels", "labels.csv", *option, path)
        assert len(record["classes"]) == 2
    for option in (("--style", "paper"), ("--scale", "0.5,image")):  # which show no signs
        (record,), _ = records_of("--labels", "labels.csv", *option, path)
        assert len(record["classes"]) == 3
    against_label = "--against", str(wrong_for(path, predicted))
    (record,), _ = records_of("--labels", "labels.csv", *against_label, path)
    assert [one["index"] for one in record["classes"]] == [predicted[path]]


def test_a_map_of_two_classes_marks_no_region_of_one(predicted: dict[str, int]) -> None:
    path = next(iter(predicted))
    Path("labels.csv").write_text(f"{path},{wrong_for(path, predicted)}\n")
    (record,), _ = records_of("--labels", "labels.csv", "--annotations", "boxes", path)
    found = [
        (one["index"], one["against"] is not None, one["region"] is not None) for one in record["classes"]
    ]
    label, best = wrong_for(path, predicted), predicted[path]
    assert found == [(label, False, True), (best, False, True), (best, True, False)]
    assert len(json.loads(Path("saliency/annotations.json").read_text())["annotations"]) == 2


def test_a_map_of_two_classes_has_both_signs_in_a_dataset(predicted: dict[str, int]) -> None:
    path = next(iter(predicted))
    Path("labels.csv").write_text(f"{path},{wrong_for(path, predicted)}\n")
    records_of("--labels", "labels.csv", "--annotations", "heatmaps", path)
    (sample,) = json.loads(Path("saliency/fiftyone/samples.json").read_text())["samples"]
    for name, has_both in {"saliency": False, "saliency_2": False, "saliency_3": True}.items():
        values = np.load(
            io.BytesIO(zlib.decompress(base64.b64decode(sample[name]["map"]["$binary"]["base64"])))
        )
        low, high = sample[name]["range"]
        assert low == (-high if has_both else 0)
        assert low <= values.min() and values.max() <= high
        assert bool(values.min() < 0) is has_both


def test_directories_named_after_classes(predicted: dict[str, int]) -> None:
    for path, best in predicted.items():
        name = (
            f"class_{LETTERS[best]}" if path.endswith(("0.jpg", "1.jpg")) else str(wrong_for(path, predicted))
        )
        Path("sorted", name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, Path("sorted", name))
    records, stderr = records_of("--labels", "folders", "sorted")
    assert "Accuracy 0.333: 2 of 6" in stderr
    assert sum(record["label"] == record["predicted"] for record in records) == 2
    wrong = invoke("--labels", "folders", "photos/0")
    assert wrong.exit_code == 0  # "0" is the index of a class
    Path("zebra").mkdir()
    shutil.copy("photos/0/0000.jpg", "zebra")
    result = invoke("--labels", "folders", "zebra")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the directory 'zebra' is not named after a class (unknown class 'zebra': " in result.stderr


def test_images_without_a_label_get_the_predicted_class(predicted: dict[str, int]) -> None:
    path = next(iter(predicted))
    Path("labels.csv").write_text(f"{path},{predicted[path]}\n")
    records, stderr = records_of("--labels", "labels.csv", "photos")
    assert "5 images have no label in 'labels.csv'" in stderr
    assert "match" not in stderr
    assert "1 of 1 labeled images" in stderr
    assert [record["label"] for record in records].count(None) == 5
    assert all(one["index"] == predicted[record["input"]] for record in records for one in record["classes"])


def test_of_rows_that_overlap_the_longest_path_counts(predicted: dict[str, int]) -> None:
    """Whatever their order; equal rows must agree."""
    first, second, *_ = predicted
    rows = [
        "0003.jpg,3",
        f"{Path(first).name},1",
        f"0/{Path(second).name},4",
        f"{first},2",
        f"{Path(second).name},3",
    ]
    for lines in (rows, rows[::-1]):
        Path("labels.csv").write_text("\n".join([*lines, f"{first},2"]))
        records, _ = records_of("--labels", "labels.csv", "photos/0", "photos/1")
        assert [record["label"] for record in records[:2]] == [2, 4]
        assert records[2]["label"] is None
        Path("labels.csv").write_text("\n".join([*lines, f"{first},5"]))
        result = invoke("--labels", "labels.csv", "photos/0", "-o", "others")
        assert (result.exit_code, result.stdout) == (2, "")
        line = lines.index(f"{first},2") + 1
        assert f"line 6: '{first}' has class 5, but 2 in line {line}: keep one" in result.stderr


def test_only_images_need_labels_and_labels_need_images(predicted: dict[str, int]) -> None:
    Path("photos/SOURCES.md").write_text("where they come from")
    rows = [f"{path},{index}" for path, index in predicted.items()]
    Path("labels.csv").write_text("\n".join(["file,class", *rows, "gone.jpg,1"]))
    _, stderr = records_of("--labels", "labels.csv", "photos")
    assert [line for line in stderr.splitlines() if line.startswith("Warning")] == [
        f"Warning: 1 row of 'labels.csv' matches no image, such as 'gone.jpg' in line {len(rows) + 2}"
    ]
    # the images of other shards are not here, which is no reason for a warning
    assert "match" not in records_of("--labels", "labels.csv", "--shard", "1/2", "photos")[1]
    Path("labels.csv").write_text("\n".join(rows[1:]))
    assert (
        "Warning: 1 image has no label in 'labels.csv'" in records_of("--labels", "labels.csv", "photos")[1]
    )


def test_a_directory_of_images_named_after_classes_may_have_other_files(predicted: dict[str, int]) -> None:
    path, index = next(iter(predicted.items()))
    Path("sorted", str(index)).mkdir(parents=True)
    shutil.copy(path, Path("sorted", str(index)))
    Path("sorted/README.md").write_text("ours")
    assert "1 of 1" in records_of("--labels", "folders", "sorted")[1]


def test_the_working_directory_can_be_named_after_a_class(
    predicted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, index = next(iter(predicted.items()))
    for name in (f"class_{LETTERS[index]}", "class_z"):
        Path(name).mkdir()
        shutil.copy(path, Path(name, "a.jpg"))
    whole = Path.cwd()
    monkeypatch.chdir(whole / f"class_{LETTERS[index]}")
    assert "1 of 1" in records_of("--labels", "folders", "a.jpg")[1]
    monkeypatch.chdir(whole / "class_z")
    result = invoke("--labels", "folders", "a.jpg")
    assert result.exit_code == 2
    assert (
        "the directory 'class_z' is not named after a class (unknown class 'class_z': did you mean"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0000.jpg,class z\n", "labels.csv, line 1: unknown class 'class z'"),
        ("0001.jpg,1\n0000.jpg,9\n", "labels.csv, line 2: class 9 does not exist"),
        ("0000.jpg\n", "labels.csv, line 1: '0000.jpg' must be a file, a comma, a class"),
        ("other.jpg,1\n", "names none of the images, such as 'photos/0/0000.jpg'"),
    ],
)
def test_wrong_labels(content: str, message: str) -> None:
    Path("labels.csv").write_text(content)
    result = invoke("--labels", "labels.csv", "photos")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert (
        "cannot read labels from 'none.csv': No such file or directory\n"
        in invoke("--labels", "none.csv", "photos").stderr
    )
    assert "both choose the classes" in invoke("--labels", "labels.csv", "--top-k", "2", "photos").stderr


def test_every_class_above_a_score() -> None:
    loaded = tiny_model()
    records, _ = records_of("--above", str(1 / 7), "photos")
    for record in records:
        with torch.no_grad():
            scores = loaded.net(loaded.transforms(Image.open(record["input"]))[None])[0].softmax(0)
        expected = [int(k) for k in scores.argsort(descending=True) if scores[k] > 1 / 7]
        assert 0 < len(expected) < 7
        assert [one["index"] for one in record["classes"]] == expected
    # seven classes take two turns, and are the seven most likely ones
    invoke("--above", "0", "--raw", "--verbose", "-o", "above", "photos/0")
    invoke("--top-k", "7", "--raw", "--verbose", "-o", "top", "photos/0")
    for path in ("0000.jpg", "0003.jpg"):
        with np.load(f"above/{path}.npz") as above, np.load(f"top/{path}.npz") as top:
            for key in ("classes", "scores", "maps", "relevance"):
                assert above[key] == pytest.approx(top[key], abs=1e-6), key
    above, top = (
        json.loads(Path(d, "records.jsonl").read_text().splitlines()[0])["classes"] for d in ("above", "top")
    )
    assert [one["losses"] for one in above] == [pytest.approx(one["losses"]) for one in top]


@pytest.mark.parametrize("panel", [False, True])
def test_no_class_above_a_score_is_said_and_done(panel: bool) -> None:
    options = ["--above", "0.999", "--report", *["--panel"] * panel]
    records, stderr = records_of(*options, "photos")
    assert [(record["status"], record["output"], record["classes"]) for record in records] == [
        ("done", [], [])
    ] * 6
    assert "photos/0/0000.jpg: no map, as nothing scores above " in stderr
    assert records_of(*options, "--skip-existing", "photos")[0] == []
