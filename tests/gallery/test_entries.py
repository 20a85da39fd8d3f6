"""What the page takes from the records, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from galleries import CATS, COMMON, add, append, photo, wrote

from ebcli.files.naming import RECORDS
from ebcli.gallery.page import read_entries


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "maps"


def test_an_input_comes_once_with_its_last_line_for_each_layer_and_method(maps: Path) -> None:
    source = photo(Path("a.png"))
    for common in (
        COMMON,
        replace(COMMON, layer="features.9"),
        replace(COMMON, method="marginal EB"),
        COMMON,
    ):
        last = add(maps, source, CATS[:1], common=common)
    append(maps, replace(last, classes=(replace(last.classes[0], score=0.75),)))
    add(maps, photo(Path("b.png")))
    first, second = read_entries(maps)
    assert (first.input, second.input) == ("a.png", "b.png")
    assert [(outcome.layer, outcome.record.method) for outcome in first.outcomes] == [
        ("features.9", "contrastive EB"),
        ("features.23", "marginal EB"),
        ("features.23", "contrastive EB"),
    ]
    assert first.outcomes[-1].maps[0].class_record.score == 0.75


def test_a_line_of_several_layers_is_an_outcome_for_each(maps: Path) -> None:
    """Of a later one at one of the layers, that one is replaced; pictures are told apart by their order."""
    done = add(maps, photo(Path("a.png")))
    both = tuple(replace(one, layer=layer) for one in CATS for layer in ("features.23", "features.9"))
    output = tuple(f"maps/a.png.{one.index}@{one.layer}.png" for one in both)
    for path in output:
        Path(path).write_bytes(b"1234")
    together = wrote(replace(done, layer="features.23, features.9", classes=both), *output)
    gone = wrote(together, "a.png.282.jpg", "a.png.285.jpg")
    append(maps, together, replace(gone, layer="features.9", classes=both[1::2]))
    (entry,) = read_entries(maps)
    assert [outcome.layer for outcome in entry.outcomes] == ["features.23", "features.9"]
    assert [[one.class_record.index for one in outcome.maps] for outcome in entry.outcomes] == [
        [282, 285]
    ] * 2
    assert [outcome.seconds for outcome in entry.outcomes] == [
        0.25,
        0.5,
    ]  # half of what both took; the later line's
    results = [one.result for outcome in entry.outcomes for one in outcome.maps]
    assert results == [Path("a.png.282@features.23.png"), Path("a.png.285@features.23.png"), None, None]


def test_a_panel_is_the_result_of_all_its_maps(maps: Path) -> None:
    done = add(maps, photo(Path("a.png")))
    Path("maps/a.png.panel.png").write_bytes(b"1234")
    append(maps, wrote(done, "maps/a.png.panel.png"))
    assert [one.result for one in read_entries(maps)[0].outcomes[0].maps] == [Path("a.png.panel.png")] * 2


def test_a_failure_takes_the_place_of_an_earlier_success_and_the_other_way_round(maps: Path) -> None:
    done = add(maps, photo(Path("a.png")))
    failed = wrote(replace(done, status="failed", error="it is broken", classes=()))
    append(maps, failed)
    assert [outcome.record.error for outcome in read_entries(maps)[0].outcomes] == ["it is broken"]
    append(maps, done)
    assert [outcome.record.error for outcome in read_entries(maps)[0].outcomes] == [None]


def test_a_line_that_cannot_be_true_does_not_count(maps: Path) -> None:
    done = add(maps, photo(Path("a.png")))
    with (maps / RECORDS).open("a") as file:
        file.write(done.line().replace('"a.png"', '"../a.png"') + "\n[\n")
    add(maps, photo(Path("c.png")))
    assert [entry.input for entry in read_entries(maps)] == ["a.png", "c.png"]


def test_numbers_that_json_lacks_are_none(maps: Path) -> None:
    add(maps, photo(Path("a.png")), [replace(CATS[0], score=float("nan"), mass=float("inf"))])
    (shown,) = read_entries(maps)[0].outcomes[0].maps
    assert (shown.class_record.score, shown.class_record.mass) == (None, None)


def test_results_are_those_that_the_line_wrote(maps: Path) -> None:
    """Not those of a later line, of another size, or gone."""
    source = photo(Path("dir/a.png"))
    add(maps, source, keep=("raw",), common=replace(COMMON, layer="features.9", configuration="another"))
    add(maps, source, keep=("raw",))
    replaced, kept = read_entries(maps)[0].outcomes
    assert [shown.result for shown in replaced.maps] == [None, None]
    assert not replaced.has_raw
    pictures = [Path("dir/a.png.282-tiger-cat.png"), Path("dir/a.png.285-egyptian-cat.png")]
    assert [shown.result for shown in kept.maps] == pictures
    assert kept.has_raw

    (maps / pictures[0]).write_bytes(b"another one")
    (maps / "dir/a.png.npz").unlink()
    _, kept = read_entries(maps)[0].outcomes
    assert [shown.result for shown in kept.maps] == [None, pictures[1]]
    assert not kept.has_raw
