"""Records as tables, read back by other libraries."""

import csv
import json
import os
import re
from pathlib import Path

import pandas
import pytest
from runs import invoke, photos, records

from ebcli.models.classes import read_labels


@pytest.fixture(autouse=True)
def _photos(working_directory: Path) -> None:
    photos(Path("photos"), 3)
    Path("photos/broken.jpg").write_bytes(b"no image")
    Path(os.fsdecode(b'photos/caf\xe9, "au\nlait".jpg')).write_bytes(Path("photos/broken.jpg").read_bytes())


def read(name: str) -> pandas.DataFrame:
    return pandas.read_csv(name) if name.endswith("csv") else pandas.read_parquet(name)


@pytest.mark.parametrize("name", ["maps.csv", "tables/maps.parquet"])
def test_a_table_has_a_row_per_map_of_the_last_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.gallery.exports._AT_A_TIME", 3)  # rows of 8
    photos(Path("others"), 1)
    assert invoke("photos", "others", "--top-k", "3").exit_code == 1
    options = ("photos", "--top-k", "2", "--annotations", "boxes", "--records", name)
    assert invoke(*options).exit_code == 1
    table = read(name)
    done = [one for one in records(Path("saliency")) if one["status"] == "done"][-3:]
    expected = [
        (one["input"], path, each["index"], each["score"], each["strength"], *each["region"]["box"])
        for one in done
        for path, each in zip(one["output"], one["classes"], strict=True)
    ]
    found = table[table.status == "done"][
        ["input", "output", "index", "score", "strength", "left", "top", "width", "height"]
    ]
    assert list(found.itertuples(index=False, name=None)) == expected
    assert (table[table.status == "done"].method == "contrastive").all()  # as --method takes it
    failed = table[table.status == "failed"]
    assert failed.method.isna().all()
    assert sorted(failed.input) == ["photos/broken.jpg", 'photos/caf\\xe9, "au\nlait".jpg']
    assert failed.output.isna().all() and failed.error.str.len().min() > 5
    # what is up to date is in it, too, and an earlier table is replaced
    assert (
        invoke(
            "photos", "--top-k", "2", "--annotations", "boxes", "--records", name, "--skip-existing"
        ).exit_code
        == 1
    )
    same, order = table.columns.drop("seconds"), ["input", "index"]  # failed inputs were tried again
    again, before = (one[same].sort_values(order, ignore_index=True) for one in (read(name), table))
    pandas.testing.assert_frame_equal(again, before)
    # a photo that was broken has its maps in place of its failure
    Path("photos/broken.jpg").write_bytes(Path("photos/1/0001.jpg").read_bytes())
    assert invoke(*options, "--skip-existing").exit_code == 1
    table = read(name)
    assert table[table.input == "photos/broken.jpg"].status.to_list() == ["done", "done"]


def test_other_files_are_not_replaced() -> None:
    Path("mine.csv").write_text("a,b\n")
    Path("mine.parquet").write_bytes(b"PAR1")
    for name in ("mine.csv", "mine.parquet"):
        result = invoke("photos", "--records", name)
        assert (result.exit_code, Path("saliency").exists()) == (2, False)
        assert (
            f"Error: '{name}' would be replaced, but this program did not write it: choose another --records"
            in result.stderr
        )
    assert invoke("photos", "--records", "mine.csv", "--overwrite").exit_code == 1
    assert read("mine.csv").columns[0] == "input"


def test_names_of_other_kinds_and_single_pictures_are_refused() -> None:
    for arguments, said in (
        (["--records", "maps.xlsx"], "'maps.xlsx' is none: name a .csv or .parquet file"),
        (["--records", "no/dir.csv", "--dry-run", "--json"], ""),
        (
            ["photos/0.jpg", "--records", "maps.csv", "-o", "one.png"],
            "--records needs a directory: drop --records",
        ),
    ):
        result = invoke(*arguments, *([] if "photos/0.jpg" in arguments else ["photos"]))
        assert said in result.stderr
        if not said:
            assert [json.loads(line)["status"] for line in result.stdout.splitlines()].count("planned") >= 3
            assert (result.exit_code, Path("no").exists()) == (0, False)
        else:
            assert result.exit_code == 2


def test_no_cell_is_a_formula_and_labels_are_read_back() -> None:
    names = ["=1+1.jpg", "+1.jpg", "-1.jpg", "@A1.jpg", "\tA1.jpg", "'a'.jpg", "'=1.jpg"]
    for name in names:
        Path(name).write_bytes(Path("photos/1/0001.jpg").read_bytes())
    assert invoke("--records", "maps.csv", "--", *names).exit_code == 0
    with Path("maps.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == len(names)
    for row in rows:
        for cell in row.values():
            assert not re.match(r"[=+\-@\t\r]", cell) or float(cell)
    with Path("labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row["input"], row["index"]] for row in rows)
    labels = read_labels(Path("labels.csv"), None, 7)
    assert sorted(labels) == sorted((name,) for name in names)
