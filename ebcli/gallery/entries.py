"""The records of an output directory as the gallery page shows them: each input once, with its results."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.files.directory import first_link
from ebcli.files.history import ParsedRecord, read_records
from ebcli.files.naming import numbered
from ebcli.files.storage import Stamp


@dataclass(frozen=True)
class MapEntry:
    """One map of an input, as recorded.

    ``number`` tells the objects of a class apart, from 1. ``result`` is its picture or panel, relative to the output
    directory; None if it does not exist.
    """

    index: int
    name: str | None
    score: float | None
    mass: float | None
    blank: bool
    at_border: bool
    number: int
    result: Path | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of an input at one layer with one method, as recorded.

    Attributes:
        names: the thumbnails' names; None for a failure.
        raw: the ``.npz`` file, relative to the output directory; None if it does not exist.
        label, predicted: the true class and the most likely one, if the true one is known.
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
    label: int | None = None
    predicted: int | None = None


@dataclass(frozen=True)
class Entry:
    """One input: its path as last given, and its outcome for each layer and method, latest last."""

    input: str
    outcomes: tuple[Outcome, ...]


def read_entries(directory: Path) -> list[Entry]:
    """All inputs, in the order of their first records.

    For each input, layer and method, the latest record counts. A result file is left out if a later record wrote it,
    too, or if it does not exist with the recorded size.

    Raises:
        OSError: there are no records, or they cannot be read.
    """
    latest: dict[str, dict[tuple[str, str], ParsedRecord]] = {}
    writers: dict[str, ParsedRecord] = {}
    for record in read_records(directory):
        of_input = latest.setdefault(record.place, {})
        key = record.layer, record.method
        of_input.pop(key, None)
        of_input[key] = record
        writers.update((relpath, record) for relpath, _, _ in record.results)

    def is_there(relpath: str, size: int, record: ParsedRecord) -> bool:
        with suppress(OSError):
            linked = first_link(directory, Path(relpath))
            return writers[relpath] is record and not linked and (directory / relpath).stat().st_size == size
        return False

    entries = []
    for of_input in latest.values():
        outcomes: dict[tuple[str, str], Outcome] = {}
        for record in of_input.values():
            there = {Path(relpath) for relpath, size, _ in record.results if is_there(relpath, size, record)}
            for outcome in _outcomes(record, there):
                outcomes.pop((outcome.layer, outcome.method), None)
                outcomes[outcome.layer, outcome.method] = outcome
        if outcomes:  # none if no class scored above a threshold
            entries.append(Entry(record.input, tuple(outcomes.values())))
    return entries


def _outcomes(record: ParsedRecord, there: Collection[Path]) -> Iterator[Outcome]:
    """One outcome per layer, with those result files that exist; of a failure, one."""
    common: dict[str, Any] = {"model": record.model, "weights": record.weights, "method": record.method}
    if record.stamp is None:
        yield Outcome(
            **common,
            layer=record.layer,
            seconds=record.seconds,
            error=record.error,
            names=None,
            classes=(),
            raw=None,
        )
        return
    names = ThumbnailNames(record.place, Stamp(*record.stamp), record.configuration, record.method)
    results = [Path(relpath) for relpath, _, _ in record.results]
    pictures = [result for result in results if result.suffix != ".npz"]
    if len(pictures) == 1:  # a panel of all maps
        pictures *= len(record.classes)
    pictures = pictures[len(pictures) - len(record.classes) :]  # the videos of the same maps stand before
    layers: dict[str, list[MapEntry]] = {}
    numbers = [number for _, number in numbered((one["index"], one.get("layer")) for one in record.classes)]
    for one, number, picture in zip(record.classes, numbers, pictures, strict=True):
        entry = MapEntry(
            index=one["index"],
            name=one["name"],
            score=one["score"],
            mass=one["mass"],
            blank=one["blank"],
            at_border=one.get("at_border") is True,
            number=number,
            result=picture if picture in there else None,
        )
        layers.setdefault(one.get("layer") or record.layer, []).append(entry)
    raw = next((result for result in results if result.suffix == ".npz" and result in there), None)
    for layer, classes in reversed(layers.items()):  # the page shows the last outcome: that of the first layer
        yield Outcome(
            **common,
            layer=layer,
            seconds=record.seconds / len(layers),  # which were computed together
            error=None,
            names=names,
            classes=tuple(classes),
            raw=raw,
            label=record.label,
            predicted=record.predicted,
        )
