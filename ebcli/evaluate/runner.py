"""Running a benchmark unit by unit; each result is saved as soon as it is measured."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from ebcli.errors import ImageError, OutputError
from ebcli.files.records import append_lines
from ebcli.models.loaded import configuration_hash

Row = dict[str, Any]  # of a table; values are text and numbers


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, ready to run.

    Attributes:
        name: its name.
        settings: everything that results depend on.
        units: names of the units of work, in order; usually images.
        unit: what to call one unit.
        measure: measures a unit and yields rows; if it raises ``ImageError``, the unit is skipped.
        keys: what a row of the table is about, besides method and layer: columns of the rows of units.
        columns: the other columns of that row, from the rows of units that agree in these.
    """

    name: str
    settings: Mapping[str, Any]
    units: Sequence[str]
    _: KW_ONLY
    unit: str
    measure: Callable[[str], Iterable[Row]]
    keys: Sequence[str] = ()
    columns: Callable[[list[Row]], Row] = lambda _: {}

    def summarize(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of the table, from those of all units."""
        keys = "method", "layer", *self.keys
        groups = grouped(rows, *keys).items()
        return [dict(zip(keys, values, strict=True)) | self.columns(found) for values, found in groups]


def run_benchmark(
    benchmark: Benchmark, folder: Path, failed: Callable[[str, ImageError], None], quiet: bool = False
) -> list[Row]:
    """Measure all units and return their rows, reusing those that an earlier run with equal settings has saved.

    Args:
        benchmark: the benchmark.
        folder: directory for ``NAME-SETTINGS.jsonl``, which has one line for the settings and one per unit.
        failed: called for each unit that is skipped, with the reason.
        quiet: show no progress bar; it is shown on terminals only.

    Raises:
        OutputError: the directory cannot be written to.
    """
    from tqdm import tqdm

    path = folder / f"{benchmark.name}-{configuration_hash(benchmark.settings)}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        known = _read(path)
        if not path.stat().st_size:
            append_lines(path, json.dumps({"settings": benchmark.settings}, allow_nan=False))
        left = [unit for unit in benchmark.units if unit not in known]
        total = len(benchmark.units)
        bar = {"total": total, "initial": total - len(left), "unit": benchmark.unit, "disable": quiet or None}
        for unit in tqdm(left, benchmark.name, **bar):
            try:
                known[unit] = [*benchmark.measure(unit)]
            except ImageError as error:
                with tqdm.external_write_mode():
                    failed(unit, error)
            else:
                append_lines(path, json.dumps({"unit": unit, "rows": known[unit]}, allow_nan=False))
    except OSError as error:
        raise OutputError(f"cannot write to '{path}': {error.strerror or error}") from error
    return [row for unit in benchmark.units if unit in known for row in known[unit]]


def table(rows: Sequence[Row]) -> str:
    """Format rows with equal keys as a Markdown table."""
    cells = [list(rows[0]), *([_formatted(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [str.ljust if isinstance(value, str) else str.rjust for value in rows[0].values()]
    rule = ["-" if align is str.ljust else ":" for align in aligned]
    lines = [
        [align(cell, width, *fill) for align, cell, width in zip(aligned, line, widths, strict=True)]
        for line, fill in ((cells[0], ()), (rule, "-"), *((line, ()) for line in cells[1:]))
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(rows: Iterable[Row], key: str, *others: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of a key, in order of first appearance, and each group by those of the other keys."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[key],), []).append(row)
    if not others:
        return groups
    return {(*one, *more): found for one, group in groups.items() for more, found in grouped(group, *others).items()}


def mean(rows: Sequence[Row], key: str) -> float | None:
    """Mean of a key's values; None if there are no rows."""
    return sum(row[key] for row in rows) / len(rows) if rows else None


def _formatted(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _read(path: Path) -> dict[str, list[Row]]:
    """Read the rows by unit; what else is there is ignored, such as half a line, which a killed run may have left."""
    found: dict[str, list[Row]] = {}
    for line in path.read_bytes().splitlines():
        with suppress(ValueError, TypeError, LookupError):
            entry = json.loads(line)
            found[entry["unit"]] = entry["rows"]
    return found
