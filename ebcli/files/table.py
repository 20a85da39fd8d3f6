"""The records of a run as a table with a row per map, in a CSV or Parquet file."""

import csv
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ebcli.errors import ConfigurationError
from ebcli.files.records import Record, read_records
from ebcli.files.sink import check_file, replacing
from ebcli.imports import import_optional

_BOX = ("left", "top", "width", "height")
_OF_RECORD = {
    **dict.fromkeys(("input", "status", "error", "model", "weights", "method"), "string"),
    **{"label": "int64", "predicted": "int64", "seconds": "float64"},
}
_OF_MAP = {
    **{"output": "string", "index": "int64", "name": "string", "layer": "string", "evidence": "string"},
    **dict.fromkeys(("score", "mass", "strength", "times_noise", "peak"), "float64"),
    **{"blank": "bool", "at_border": "bool"},
}
COLUMNS = {**_OF_RECORD, **_OF_MAP, **dict.fromkeys(_BOX, "float64")}  # and their types, as Arrow names them
_AT_A_TIME = 10_000  # rows


def check_table(path: Path, overwrite: bool) -> None:
    """Check that a table can be written, before a run begins.

    Raises:
        ConfigurationError: its name has another suffix, or the file is something else.
        OutputError: its directory cannot be written to.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigurationError(f"--records takes a table, but '{path}' is none: name a .csv or .parquet file")
    check_file(path, overwrite, lambda: _columns(path) == [*COLUMNS], "--records")


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file), [])
    return list(import_optional("pyarrow.parquet", "pyarrow").read_schema(path).names)


def write_table(path: Path, directory: Path, configuration: str) -> None:
    """Write the last record of each input that has this configuration.

    Memory grows with the number of inputs by little more than their names.

    Raises:
        OSError: there are no records.
        OutputError: the file cannot be written.
    """
    latest: dict[str, int] = {}
    for number, record in enumerate(read_records(directory)):
        if record.configuration == configuration:
            latest[record.input] = number
    chosen = {*latest.values()}
    found = (record for number, record in enumerate(read_records(directory)) if number in chosen)
    rows = (row for record in found for row in _rows(record))
    with replacing(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, COLUMNS)
                table.writeheader()
                table.writerows(rows)
        else:
            _write_parquet(temporary, rows)


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    arrow, parquet = (import_optional(name, "pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    schema = arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(path, schema) as table:
        while part := [*islice(rows, _AT_A_TIME)]:
            table.write_table(arrow.Table.from_pylist(part, schema))


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    """A row for each map of an input; one for an input without any."""
    common = {name: getattr(record, name) for name in _OF_RECORD}
    outputs = record.output if len(record.output) >= len(record.classes) else record.output[:1] * len(record.classes)
    for one, output in zip(record.classes, outputs, strict=False):
        box = one.box or (one.region or {}).get("box")
        edges = dict(zip(_BOX, box.sized, strict=True)) if box else {}
        known = {name: getattr(one, name) for name in _OF_MAP if name != "output"}
        yield _printable({**common, **known, "output": output, **edges})
    if not record.classes:
        yield _printable(common)


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which bytes of file names that are not UTF-8 are spelled out."""
    return {
        name: os.fsencode(value).decode(errors="backslashreplace") if isinstance(value, str) else value
        for name, value in row.items()
    }
