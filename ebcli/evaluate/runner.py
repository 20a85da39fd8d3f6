"""Carrying a test out: one unit of work after another, each kept in a file as soon as it is done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebcli.errors import ImageError, OutputError
from ebcli.models.fingerprint import configuration_hash

Row = dict[str, Any]  # of a table; of texts and numbers


@dataclass(frozen=True)
class Benchmark:
    """A test that is ready to go.

    Attributes:
        name: the test's.
        settings: all that its results depend on.
        units: names of its parts, in order; most often images.
        unit: what a unit is called.
        measure: a unit's name -> what was found, as rows; an ``ImageError`` leaves the unit out.
        summarise: the rows of all units -> those of the table.
    """

    name: str
    settings: Mapping[str, Any]
    units: Sequence[str]
    unit: str
    measure: Callable[[str], list[Row]]
    summarise: Callable[[list[Row]], list[Row]]


def run_benchmark(
    test: Benchmark, folder: Path, failed: Callable[[str, ImageError], None], quiet: bool = False
) -> list[Row]:
    """The rows of all units. What an earlier run with equal settings has measured is not measured again.

    Args:
        test: what to do.
        folder: where ``NAME-SETTINGS.jsonl`` is kept: a line with the settings, and one for each unit.
        failed: is told which units were left out, and why.
        quiet: no progress bar, which is shown on a terminal only in any case.

    Raises:
        OutputError: the folder cannot be written to.
    """
    from tqdm import tqdm

    path = folder / f"{test.name}-{configuration_hash(test.settings)}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            known = _read(path)
            if not file.tell():
                _append(file.fileno(), {"settings": test.settings})
            left = [unit for unit in test.units if unit not in known]
            done = len(test.units) - len(left)
            for unit in tqdm(left, test.name, len(test.units), initial=done, unit=test.unit, disable=quiet or None):
                try:
                    known[unit] = test.measure(unit)
                except ImageError as error:
                    with tqdm.external_write_mode():
                        failed(unit, error)
                else:
                    _append(file.fileno(), {"unit": unit, "rows": known[unit]})
    except OSError as error:
        raise OutputError(f"cannot write to '{path}': {error.strerror or error}") from error
    return [row for unit in test.units if unit in known for row in known[unit]]


def table(rows: Sequence[Row]) -> str:
    """Rows with equal keys as a Markdown table."""
    cells = [list(rows[0]), *(list(map(_shown, row.values())) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_number = [not isinstance(value, str) for value in rows[0].values()]
    rule = ["-" * (width - number) + ":" * number for width, number in zip(widths, is_number, strict=True)]
    aligned = (
        [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        ]
        for line in (cells[0], rule, *cells[1:])
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by their values of some keys, in the order in which those come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def mean(rows: Sequence[Row], key: str) -> float | None:
    """The mean of a key's values; None if there are none."""
    return sum(row[key] for row in rows) / len(rows) if rows else None


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _append(file: int, entry: Mapping[str, Any]) -> None:
    """Add a line in one piece."""
    os.write(file, json.dumps(entry, allow_nan=False).encode() + b"\n")


def _read(path: Path) -> dict[str, list[Row]]:
    """The rows by unit, in a file whose half line at the end, left by a killed run, is removed."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    entries = map(json.loads, content[:end].splitlines())
    return {entry["unit"]: entry["rows"] for entry in entries if "unit" in entry}
