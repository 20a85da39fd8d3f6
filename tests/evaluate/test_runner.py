"""Measurements are saved, whatever ends a run."""

import json
import resource
from pathlib import Path

import pytest

from ebcli.errors import ImageError, OutputError
from ebcli.evaluate.benchmark import Benchmark, Row, group_rows, mean, run_benchmark, table

UNITS = [f"unit {number}" for number in range(12)]


def benchmark(measured: list[str] | None = None, **settings: object) -> Benchmark:
    def measure(unit: str) -> list[Row]:
        if measured is not None:
            measured.append(unit)
        number = int(unit.partition(" ")[2])
        return [{"method": method, "value": number / 7} for method in ("a", "b")]

    return Benchmark(name="tenths", settings=settings, units=UNITS, unit="image", measure=measure)


def refuse(unit: str, error: ImageError) -> None:
    raise AssertionError(unit) from error


def test_other_settings_are_measured_separately(tmp_path: Path) -> None:
    first: list[str] = []
    run_benchmark(benchmark(first, layer="one"), tmp_path, refuse)
    second: list[str] = []
    run_benchmark(benchmark(second, layer="two"), tmp_path, refuse)
    assert first == second == UNITS
    settings = [json.loads(path.read_text().splitlines()[0])["settings"] for path in tmp_path.iterdir()]
    assert sorted(setting["layer"] for setting in settings) == ["one", "two"]


def test_failures_are_reported_and_retried(tmp_path: Path) -> None:
    test, failures = benchmark(), []

    def measure(unit: str) -> list[Row]:
        if unit == "unit 3":
            raise ImageError("it is broken")
        return test.measure(unit)

    broken = Benchmark(
        name=test.name, settings=test.settings, units=test.units, unit=test.unit, measure=measure
    )
    for _ in range(2):
        rows = run_benchmark(broken, tmp_path, lambda unit, error: failures.append((unit, str(error))))
        assert len(rows) == 22
    assert failures == [("unit 3", "it is broken")] * 2
    assert len(run_benchmark(test, tmp_path, refuse)) == 24


def test_half_a_line_of_a_killed_run_is_nothing_to_another_that_goes_on(tmp_path: Path) -> None:
    """That one may have appended to the file since, and may at any time."""
    whole = run_benchmark(benchmark(), tmp_path, refuse)
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    lines[3] = lines[3][:20]
    file.write_text(before := "\n".join(lines))
    measured: list[str] = []
    assert run_benchmark(benchmark(measured), tmp_path, refuse) == whole
    assert measured == [UNITS[2]]
    assert file.read_text().startswith(before)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "9" * 5000, '{"unit": "unit 1", "rows": 5}', '{"unit": [], "rows": []}']
)
def test_a_line_that_is_no_measurement_costs_no_other(line: str, tmp_path: Path) -> None:
    whole = run_benchmark(benchmark(), tmp_path, refuse)
    (file,) = tmp_path.iterdir()
    file.write_text(f"{file.read_text()}{line}\n")
    measured: list[str] = []
    assert run_benchmark(benchmark(measured), tmp_path, refuse) == whole
    assert not measured


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write to '.*file/tenths-.*: File exists"):
        run_benchmark(benchmark(), tmp_path / "file", refuse)


def test_tables_are_markdown() -> None:
    rows = [{"method": "a", "score": 0.98765, "images": 3}, {"method": "longer", "score": None, "images": 12}]
    assert table(rows).splitlines() == [
        "| method | score | images |",
        "| ------ | ----: | -----: |",
        "| a      | 0.988 |      3 |",
        "| longer |     - |     12 |",
    ]


def test_grouping_and_means() -> None:
    rows = [{"a": 1, "b": 2, "v": 4.0}, {"a": 0, "b": 2, "v": 1.0}, {"a": 1, "b": 2, "v": 5.0}]
    groups = group_rows(rows, "a", "b")
    assert list(groups) == [(1, 2), (0, 2)]
    assert mean(groups[1, 2], "v") == 4.5
    rows.append({"a": 0, "b": 3, "v": 0.0})
    rows.append({"a": 1, "b": 3, "v": 2.0})
    assert list(group_rows(rows, "a", "b")) == [(1, 2), (1, 3), (0, 2), (0, 3)]  # group by group


def test_what_does_not_fit_is_not_written_by_half(tmp_path: Path) -> None:
    """A file that may not grow fails as one on a full disk does: some bytes fit."""
    test, hard = benchmark(), resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def measure(unit: str) -> list[Row]:
        (file,) = tmp_path.iterdir()
        room = file.stat().st_size + 20 if unit == "unit 3" else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        return test.measure(unit)

    full = Benchmark(
        name=test.name, settings=test.settings, units=test.units, unit=test.unit, measure=measure
    )
    try:
        with pytest.raises(OutputError, match="cannot write to"):
            run_benchmark(full, tmp_path, refuse, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    (file,) = tmp_path.iterdir()
    assert [json.loads(line).get("unit") for line in file.read_text().splitlines()] == [None, *UNITS[:3]]
    measured: list[str] = []
    run_benchmark(benchmark(measured), tmp_path, refuse)
    assert measured == UNITS[3:]
