"""One scale for a whole run: the same for every shard, restart and batch, and what it is found from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import invoke, photos, records, tree

from ebcli.drawing.painters import rounded_up
from ebcli.run.prepare import SAMPLE

pytestmark = pytest.mark.usefixtures("working_directory")
OPTIONS = ("--scale", "run", "--style", "heatmap", "--cmap", "gray")


def told(result: Any) -> float:
    """The scale's end, as it is said on stderr."""
    (line,) = [line for line in result.stderr.splitlines() if "--scale" in line]
    return float(line.partition("--scale ")[2].split()[0])


def brightest(path: str) -> int:
    return int(np.asarray(Image.open(path).convert("L")).max())


def test_all_maps_have_one_scale_that_ends_at_the_greatest_of_them() -> None:
    photos(Path("photos"), 12)
    result = invoke(*OPTIONS, "photos")
    assert result.exit_code == 0, result.output
    peaks = {record["output"][0]: record["classes"][0]["peak"] for record in records(Path("saliency"))}
    vmax = told(result)
    assert max(peaks.values()) <= vmax <= 1.1 * max(peaks.values())
    for path, peak in peaks.items():
        # up-sampling may swing above a peak, and a peak in a corner may be flattened
        assert brightest(path) == pytest.approx(255 * peak / vmax, abs=40)
    each = invoke("-o", "each", "--style", "heatmap", "--cmap", "gray", "photos")
    assert all(brightest(path) > 225 for path in each.stdout.splitlines())
    again = invoke("-o", "again", "--scale", str(vmax), "--style", "heatmap", "--cmap", "gray", "photos")
    assert "scale" not in again.stderr
    assert tree(Path("again")) == tree(Path("saliency"))


def test_shards_restarts_and_batches_have_the_same_scale() -> None:
    photos(Path("photos"), 10)
    whole = invoke(*OPTIONS, "-o", "whole", "photos")
    shards = [
        invoke(*OPTIONS, "-o", "shards", "--batch-size", "3", "--shard", f"{i}/3", "photos")
        for i in (1, 2, 3)
    ]
    assert {told(result) for result in [whole, *shards]} == {told(whole)}
    assert tree(Path("shards")).keys() == tree(Path("whole")).keys()
    again = invoke(*OPTIONS, "-o", "shards", "--skip-existing", "photos")
    assert "10 up to date" in again.stderr


def test_a_sample_is_spread_over_all_files_and_bad_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 2)
    source = Path("photos/0/0000.jpg")
    for number in range(3 * SAMPLE):
        shutil.copy(source, f"photos/{number:04}.jpg")
    Path("photos/0000.jpg").write_bytes(b"broken")
    looked: list[str] = []
    from ebcli.run.reading import Reader

    load = Reader.open

    def counted(self: Reader, source: Any) -> Any:
        looked.append(source.path.name)
        return load(self, source)

    monkeypatch.setattr(Reader, "open", counted)
    assert invoke(*OPTIONS, "--dry-run", "photos").exit_code == 0
    assert len(looked) == SAMPLE
    assert {"0000.jpg", "0001.jpg"} <= set(looked)  # the first file and the last one
    gaps = np.diff(sorted(int(name[:4]) for name in looked if name != "0001.jpg"))
    assert set(gaps) <= {0, 2, 3, 4}


def test_without_any_readable_image_the_scale_ends_at_an_even_spread() -> None:
    Path("a.jpg").write_bytes(b"broken")
    result = invoke(*OPTIONS, "a.jpg")
    assert result.exit_code == 1
    assert told(result) == 1


@pytest.mark.parametrize(
    ("value", "expected"), [(0.3333, 0.34), (0.34, 0.34), (12.01, 13), (1, 1), (9.99e-5, 1e-4)]
)
def test_rounding_is_upwards_to_two_digits(value: float, expected: float) -> None:
    assert rounded_up(value) == pytest.approx(expected)


def test_the_scale_holds_maps_of_other_methods_beside() -> None:
    photos(Path("photos"), 6)
    alone = [told(invoke(*OPTIONS, *option, "-o", "alone", "photos")) for option in ([], ["--marginal"])]
    beside = told(invoke(*OPTIONS, "--panel", "--compare-with", "marginal", "-o", "beside", "photos"))
    assert beside == max(alone) > min(alone)
