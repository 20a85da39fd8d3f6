"""The records of an output directory, as the page tells them: each input once, with its results."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebcli.output import origin
from ebcli.records import FILE, SCHEMA
from ebcli.report.thumbnails import ThumbnailNames
from ebcli.tasks import Stamp


@dataclass(frozen=True)
class Shown:
    """One class of an input, as in its record; ``result`` is its picture, relative to the output directory."""

    index: int
    name: str | None
    score: float | None
    mass: float | None
    blank: bool
    result: Path | None


@dataclass(frozen=True)
class Outcome:
    """What came of an input at one layer with one method, as in its record.

    Attributes:
        names: of the thumbnails; None for a failure.
        raw: the arrays, relative to the output directory, where they are there.
    """

    model: str
    weights: str
    layer: str
    method: str
    seconds: float
    error: str | None
    names: ThumbnailNames | None
    classes: tuple[Shown, ...]
    raw: Path | None


@dataclass
class Entry:
    """One input.

    Attributes:
        input: its path as it was last given.
        outcomes: what came of it, by layer and method, the latest one last.
    """

    input: str
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)


def read_entries(directory: Path) -> list[Entry]:
    """All inputs, in the order in which they first came up; lines that make no sense do not count.

    The last line of an input, layer and method counts. A result file that another line has written since, or that
    is not there as it was written, is left out.

    Raises:
        FileNotFoundError: there are no records.
    """
    lines: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    writers: dict[Path, Mapping[str, Any]] = {}
    with (directory / FILE).open("rb") as file:
        for line in file:
            with contextlib.suppress(Exception):  # whatever it is, it cannot be read as one of ours
                record = json.loads(line)
                outcome, results = _outcome(record, {}), _results(record)
                of_input = lines.setdefault(record["place"], {})
                of_input.pop((outcome.layer, outcome.method), None)
                of_input[outcome.layer, outcome.method] = record
                writers.update(dict.fromkeys(results, record))

    def found(record: Mapping[str, Any]) -> dict[int | None, Path]:
        """The results that are there by their classes, and the arrays by None."""
        results = {}
        for result, size in _results(record).items():
            came = origin(result)
            with contextlib.suppress(OSError, ValueError):  # no name of a file may hold a NUL
                if came and writers[result] is record and (directory / result).stat().st_size == size:
                    results[came[1]] = result
        return results

    return [
        Entry([*of_input.values()][-1]["input"], {key: _outcome(line, found(line)) for key, line in of_input.items()})
        for of_input in lines.values()
    ]


def _results(record: Mapping[str, Any]) -> dict[Path, int]:
    """The result files relative to the output directory, and their sizes; they lie beside the input's place."""
    place = Path(record["place"])
    if place.is_absolute() or ".." in place.parts:
        raise ValueError("it leads out of the directory")
    sizes = zip(record["output"], record["output_bytes"], strict=True)
    return {place.with_name(Path(path).name): size for path, size in sizes}


def _outcome(record: Mapping[str, Any], results: Mapping[int | None, Path]) -> Outcome:
    if record["schema"] != SCHEMA or record["status"] not in ("done", "failed"):
        raise ValueError("it is of no use here")
    done = record["status"] == "done"
    for key in ("input", "place", "model", "weights", "layer", "method", "configuration"):
        os.fsencode(record[key])  # raises unless it is text that a file name could be
    names = None
    if done:
        stamp = Stamp(int(record["input_bytes"]), int(record["input_mtime_ns"]))
        names = ThumbnailNames(record["place"], stamp, record["configuration"], record["layer"], record["method"])
    return Outcome(
        model=record["model"],
        weights=record["weights"],
        layer=record["layer"],
        method=record["method"],
        seconds=_number(record["seconds"]) or 0.0,
        error=None if done else str(record["error"]),
        names=names,
        classes=tuple(
            Shown(
                index=int(shown["index"]),
                name=None if shown["name"] is None else str(shown["name"]),
                score=_number(shown["score"]),
                mass=_number(shown["mass"]),
                blank=bool(shown["blank"]),
                result=results.get(int(shown["index"])),
            )
            for shown in record["classes"]
        ),
        raw=results.get(None),
    )


def _number(value: Any) -> float | None:
    """A number for JSON, which has no NaN."""
    return float(value) if value is not None and math.isfinite(float(value)) else None
