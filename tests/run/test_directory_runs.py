"""What a run over many images computes, replaces, leaves out and says."""

import json
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from runs import invoke, photos, records, tiny_model, tree

import ebcli.run.explainer
from ebcli.files.images import decode

pytestmark = pytest.mark.usefixtures("working_directory")
SAMPLES = Path(__file__).parents[2] / "sample_images"


def arrays(directory: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(Path(directory).rglob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            found[str(path.relative_to(directory))] = dict(file)
    return found


def assert_equal_maps(ones: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]]) -> None:
    assert ones.keys() == others.keys()
    for name, one in ones.items():
        other = others[name]
        assert np.array_equal(one["classes"], other["classes"])
        for key in ("relevance", "maps", "scores"):
            scale = np.abs(other[key]).max()
            assert np.abs(one[key] - other[key]).max() <= 1e-5 * scale, (name, key)


def below_photos(found: dict[str, Any]) -> dict[str, Any]:
    """Files by their paths below ``photos``: photos that are named keep it, which a named directory is the root of."""
    return {name.removeprefix("photos/"): content for name, content in found.items() if name != "photos"}


def test_maps_do_not_depend_on_batches_workers_order_or_shards() -> None:
    photos(Path("photos"), 10)
    paths = sorted(str(path) for path in Path("photos").rglob("*.jpg"))
    raw = ("--raw", "--top-k", "2")
    for path in paths:  # each one alone
        assert invoke(*raw, "-o", "single", path).exit_code == 0
    single = below_photos(arrays("single"))
    assert len(single) == 10
    for name, arguments in {
        "batches of 3": ("--batch-size", "3", "photos"),
        "batches of 10": ("--batch-size", "10", "photos"),
        "backwards": ("--batch-size", "4", *paths[::-1]),
        "workers": ("--batch-size", "3", "--workers", "2", "photos"),
    }.items():
        result = invoke(*raw, "-o", name, *arguments)
        assert result.exit_code == 0, result.output
        assert_equal_maps(below_photos(arrays(name)), single)
    lines = [
        invoke(*raw, "-o", "shards", "--shard", f"{i}/3", "photos").stdout.splitlines() for i in (1, 2, 3)
    ]
    assert sum(map(len, lines)) == 10 * 3
    assert_equal_maps(arrays("shards"), single)
    # the same number at a time gives the same to the bit, whatever it meets there
    invoke(*raw, "-o", "again", "--batch-size", "4", "photos")
    assert tree(Path("again")) == below_photos(tree(Path("backwards")))


def test_the_raw_file_holds_what_the_python_interface_gives() -> None:
    shutil.copy(SAMPLES / "coffee.jpg", "a.jpg")
    result = invoke("--raw", "--target", "3", "--target", "class f", "a.jpg")
    assert result.stdout.splitlines() == [
        "saliency/a.jpg.3-class-d.jpg",
        "saliency/a.jpg.5-class-f.jpg",
        "saliency/a.jpg.npz",
    ]
    (raw,) = arrays("saliency").values()
    loaded = tiny_model()
    inputs = loaded.transforms(Image.open("a.jpg"))[None]
    expected = ebcli.excitation_backprop(loaded.net, inputs, [[3, 5]], layer="2", contrastive=True)
    assert np.allclose(raw["relevance"], expected.relevance[0].numpy(), rtol=1e-5, atol=1e-8)
    assert raw["relevance"].min() < 0  # signed
    assert np.allclose(raw["maps"], expected.maps[0].numpy(), rtol=1e-5, atol=1e-7)
    assert np.allclose(raw["scores"], expected.logits[0].softmax(0)[[3, 5]].numpy(), rtol=1e-5)
    assert raw["classes"].tolist() == [3, 5]
    assert raw["names"].tolist() == ["class d", "class f"]
    assert [str(raw[key]) for key in ("model", "weights", "layer", "method")] == [
        "tiny",
        "seeded",
        "2",
        "contrastive EB",
    ]
    assert f"torch {version('torch')}" in raw["versions"].tolist()
    place = loaded.transforms.place(decode(Path("a.jpg")).size)
    assert raw["crop"].tolist() == [place.left, place.top, place.right, place.bottom]
    assert raw["image_size"].tolist() == [600, 400]


def test_records_say_what_was_computed() -> None:
    photos(Path("photos"), 2)
    Path("photos/bad.jpg").touch()
    start = time.perf_counter()
    result = invoke("--json", "--target", "3", "--marginal", "photos")
    passed = time.perf_counter() - start
    assert result.exit_code == 1
    first, second, bad = map(json.loads, result.stdout.splitlines())
    assert sorted(result.stdout.splitlines()) == sorted(
        Path("saliency/records.jsonl").read_text().splitlines()
    )
    for record, name in ((first, "0/0000.jpg"), (second, "1/0001.jpg")):
        (path,) = record["output"]
        assert path == f"saliency/{name}.3-class-d+marginal.jpg"
        assert record["output_bytes"] == [Path(path).stat().st_size]
        assert (record["schema"], record["status"], record["error"]) == (1, "done", None)
        assert (record["input"], record["layer"], record["method"]) == (f"photos/{name}", "2", "marginal EB")
        assert record["input_bytes"] == Path("photos", name).stat().st_size
        loaded = tiny_model()
        inputs = loaded.transforms(Image.open(record["input"]))[None]
        expected = ebcli.excitation_backprop(loaded.net, inputs, [[3]], layer="2")
        (shown,) = record["classes"]
        assert (shown["index"], shown["name"]) == (3, "class d")
        assert shown["mass"] == pytest.approx(float(expected.mass[0, 0]), rel=1e-5)
        assert shown["score"] == pytest.approx(float(expected.logits[0].softmax(0)[3]), rel=1e-5)
    assert min(first["seconds"], second["seconds"]) > 0
    assert first["seconds"] + second["seconds"] < passed
    assert (bad["status"], bad["output"], bad["classes"]) == ("failed", [], [])


@pytest.mark.parametrize("target", [[], ["--target", "3"]])
def test_a_file_of_somebody_else_stops_the_run_before_it_begins(target: list[str]) -> None:
    photos(Path("photos"), 3)
    foreign = Path("saliency/2/0002.jpg.3-class-d.jpg")
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"precious")
    before = tree(Path())
    for option in ([], ["--skip-existing"], ["--dry-run"]):
        result = invoke(*target, *option, "photos")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"Error: '{foreign}' would be replaced, but this program did not write it: choose another --output, or "
            "pass --overwrite\n"
        )
        assert tree(Path()) == before
    assert invoke("--overwrite", "--target", "3", "photos").exit_code == 0
    assert foreign.read_bytes() != b"precious"
    assert invoke("--target", "3", "photos").exit_code == 0  # now it is ours


def test_files_with_other_names_are_in_nobody_s_way() -> None:
    photos(Path("photos"), 1)
    others = [
        Path("saliency/0", name) for name in ("0000.jpg", "0000.jpg.3-mine.jpg", "0000.jpg.9.jpg", "npz")
    ]
    others += [Path("saliency/0", name) for name in ("0000.jpg.npz", "0000.jpg.3-class-d.png")]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"precious")
    assert invoke("--top-k", "7", "photos").exit_code == 0
    assert all(other.read_bytes() == b"precious" for other in others)
    result = invoke("--raw", "photos")  # which is in the way of the arrays alone
    assert result.exit_code == 2
    assert "0000.jpg.npz' would be replaced" in result.stderr


def test_own_results_are_replaced_and_never_taken_for_inputs() -> None:
    photos(Path("photos"), 3)
    first = invoke("-o", "photos", "photos")
    assert first.exit_code == 0
    before = tree(Path("photos"))
    second = invoke("-o", "photos", "photos")
    assert (second.exit_code, second.stdout) == (0, first.stdout)
    assert tree(Path("photos")) == before
    (Path("photos") / "records.jsonl").rename("records.jsonl")
    third = invoke("-o", "photos", "photos", "--include", "0000.jpg")  # now nothing says whose they are
    assert (third.exit_code, third.stdout) == (2, "")
    assert "would be replaced, but this program did not write it" in third.stderr
    assert tree(Path("photos")) == before
    Path("records.jsonl").rename("photos/records.jsonl")
    assert invoke("-o", "photos", "--skip-existing", "photos").stdout == ""


def test_a_dry_run_says_what_a_run_would_do_and_does_nothing() -> None:
    photos(Path("photos"), 5)
    Path("photos/notes").write_text("no image")
    assert invoke("--include", "1", "photos").exit_code == 0
    before = tree(Path())
    before_records = records(Path("saliency"))
    planned = invoke("--dry-run", "--skip-existing", "photos")
    assert planned.exit_code == 0
    assert planned.stderr.endswith("5 images: 3 to process, 2 up to date; 1 other file skipped\n")
    assert tree(Path()) == before
    assert records(Path("saliency")) == before_records
    done = invoke("--json", "--skip-existing", "photos")
    assert [json.loads(line)["input"] for line in done.stdout.splitlines()] == planned.stdout.splitlines()
    missing = invoke("--dry-run", "-o", "elsewhere", "photos/1", "gone.jpg", "photos.tgz")
    assert (missing.exit_code, missing.stdout.split()) == (1, ["photos/1/0001.jpg", "photos/1/0004.jpg"])
    assert "gone.jpg: No such file" in missing.stderr
    assert missing.stderr.endswith("4 images: 2 to process, 2 failed\n")
    assert not Path("elsewhere").exists()


def test_failed_images_are_tried_again() -> None:
    photos(Path("photos"), 3)
    bad = Path("photos/1/0001.jpg")
    good = bad.read_bytes()
    bad.write_bytes(good[:200])
    assert invoke("photos").exit_code == 1
    bad.write_bytes(good)
    result = invoke("--skip-existing", "photos")
    assert result.exit_code == 0
    assert result.stdout.startswith("saliency/1/0001.jpg.")
    assert result.stderr == "3 images: 1 done, 2 up to date\n"


def test_fail_fast_stops_at_the_first_failure() -> None:
    photos(Path("photos"), 60)
    Path("photos/0/0006.jpg").write_bytes(b"")
    result = invoke("--batch-size", "2", "photos", fail_fast="1")
    assert result.exit_code == 1
    done = len(result.stdout.splitlines())
    assert 2 <= done <= 12
    assert "photos/0/0006.jpg: not an image that Pillow can read" in result.stderr
    assert result.stderr.endswith(f"60 images: {done} done, 1 failed, {59 - done} left\n")
    assert len(tree(Path("saliency"))) == done + len([p for p in Path("saliency").rglob("*") if p.is_dir()])
    result = invoke("--batch-size", "2", "photos")
    assert len(result.stdout.splitlines()) == 59


def test_fail_fast_stops_also_where_nothing_can_be_read() -> None:
    result = invoke(*(f"missing/{number}.jpg" for number in range(30)), fail_fast="1")
    assert result.exit_code == 1
    assert "30 images: " in result.stderr
    assert 1 <= len(records(Path("saliency"))) < 10


def test_where_memory_is_short_batches_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 11)
    invoke("-o", "expected", "--raw", "photos")
    real, sizes = ebcli.methods.excitation.excitation_backprop, []

    def short(net: Any, inputs: torch.Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(inputs))
        if len(inputs) > 2:
            error: type[RuntimeError] = torch.OutOfMemoryError if len(inputs) > 4 else RuntimeError
            raise error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return real(net, inputs, *rest, **options)

    monkeypatch.setattr(ebcli.methods.excitation, "excitation_backprop", short)
    result = invoke("-o", "short", "--raw", "--batch-size", "8", "photos")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[:-1] == [  # the last line is the rate
        "Warning: cpu ran out of memory: continuing with a batch size of 4",
        "Warning: cpu ran out of memory: continuing with a batch size of 2",
    ]
    assert sizes == [1, 8, 4, 2, 2, 2, 2, 2, 2]  # the first is the check of the layer
    assert_equal_maps(arrays("short"), arrays("expected"))


def test_memory_that_does_not_suffice_for_one_image_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 3)
    network = mock.Mock(side_effect=[mock.DEFAULT, torch.OutOfMemoryError("out of memory")])
    result = mock.Mock(layer="2", maps=torch.zeros(1, 1, 4, 4), relevance=torch.zeros(1, 1, 1, 4, 4))
    network.return_value = (result,)
    monkeypatch.setattr(ebcli.methods.excitation, "excitation_backprop", network)
    result = invoke("--batch-size", "1", "photos")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: cpu has not enough memory for a single image: try another --device\n" in result.stderr


def test_a_layer_without_a_map_is_refused_before_any_work() -> None:
    photos(Path("photos"), 2)
    result = invoke("--layer", "3.2", "photos")
    assert result.exit_code == 2
    assert "no spatial dimensions" in result.stderr
    assert not Path("saliency").exists()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_limit_on_pixels_can_be_lowered_and_raised(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # restored afterwards
    Image.new("RGB", (60, 50)).save("a.png")
    Image.new("RGB", (60, 49)).save("b.png")
    options = ("--workers", workers, "a.png", "b.png")
    result = invoke(*options, max_pixels="2940")
    assert (result.exit_code, [record["status"] for record in records(Path("saliency"))].count("done")) == (
        1,
        1,
    )
    assert "a.png: it has too many pixels: raise EB_SALIENCY_MAX_PIXELS" in result.stderr
    assert invoke(*options, max_pixels="3000").exit_code == 0
