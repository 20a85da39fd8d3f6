"""The records of an output directory, as the page tells them: each input once, with its results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.files.records import FILE, SCHEMA
from ebcli.files.storage import Stamp


@dataclass(frozen=True)
class MapEntry:
    """One map of an input, as in its record.

    ``result`` is its picture, or a panel that it is in, relative to the output directory; None if it is not there.
    """

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
    classes: tuple[MapEntry, ...]
    raw: Path | None


@dataclass(frozen=True)
class Entry:
    """One input: its path as it was last given, and what came of it, once for each layer and method, latest last."""

    input: str
    outcomes: tuple[Outcome, ...]


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
            with suppress(Exception):  # whatever it is, it cannot be read as one of ours
                record = json.loads(line)
                results = _results(record)
                list(_outcomes(record, results))
                of_input = lines.setdefault(record["place"], {})
                key = record["layer"], record["method"]
                of_input.pop(key, None)
                of_input[key] = record
                writers.update(dict.fromkeys(results, record))

    def is_there(result: Path, size: int, record: Mapping[str, Any]) -> bool:
        with suppress(OSError, ValueError):  # no name of a file may hold a NUL
            return writers[result] is record and (directory / result).stat().st_size == size
        return False

    entries = []
    for of_input in lines.values():
        outcomes: dict[tuple[str, str], Outcome] = {}
        for record in of_input.values():
            there = [result for result, size in _results(record).items() if is_there(result, size, record)]
            for outcome in _outcomes(record, there):
                outcomes.pop((outcome.layer, outcome.method), None)
                outcomes[outcome.layer, outcome.method] = outcome
        entries.append(Entry(record["input"], tuple(outcomes.values())))
    return entries


def _results(record: Mapping[str, Any]) -> dict[Path, int]:
    """The result files relative to the output directory, and their sizes; they lie beside the input's place."""
    place = Path(record["place"])
    if place.is_absolute() or ".." in place.parts:
        raise ValueError("it leads out of the directory")
    sizes = zip(record["output"], record["output_bytes"], strict=True)
    return {place.with_name(Path(path).name): size for path, size in sizes}


def _outcomes(record: Mapping[str, Any], there: Collection[Path]) -> Iterator[Outcome]:
    """A record's outcomes, layer by layer, with those of the result files that are there; of a failure, one."""
    if record["schema"] != SCHEMA or record["status"] not in ("done", "failed"):
        raise ValueError("it is of no use here")
    for key in ("input", "place", "model", "weights", "layer", "method", "configuration"):
        os.fsencode(record[key])  # raises unless it is text that a file name could be
    common = {key: record[key] for key in ("model", "weights", "method")}
    common["seconds"] = _number(record["seconds"]) or 0.0
    if record["status"] == "failed":
        yield Outcome(**common, layer=record["layer"], error=str(record["error"]), names=None, classes=(), raw=None)
        return
    stamp = Stamp(int(record["input_bytes"]), int(record["input_mtime_ns"]))
    names = ThumbnailNames(record["place"], stamp, record["configuration"], record["method"])
    results = list(_results(record))
    pictures = [result for result in results if result.suffix != ".npz"]
    if len(pictures) == 1:  # a panel of all
        pictures *= len(record["classes"])
    layers: dict[str, list[MapEntry]] = {}
    for one, picture in zip_longest(record["classes"], pictures):
        name = None if one["name"] is None else str(one["name"])
        shown = MapEntry(
            index=int(one["index"]),
            name=name,
            score=_number(one["score"]),
            mass=_number(one["mass"]),
            blank=bool(one["blank"]),
            result=picture if picture in there else None,
        )
        layers.setdefault(str(one.get("layer") or record["layer"]), []).append(shown)
    raw = next((result for result in results if result.suffix == ".npz" and result in there), None)
    common["seconds"] /= max(1, len(layers))  # which were computed together
    for layer, classes in reversed(layers.items()):  # the page shows the last one, and that should be the first named
        yield Outcome(**common, layer=layer, error=None, names=names, classes=tuple(classes), raw=raw)


def _number(value: Any) -> float | None:
    """A number for JSON, which has no NaN."""
    return float(value) if value is not None and math.isfinite(float(value)) else None
