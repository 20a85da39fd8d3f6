"""The records of an output directory as the gallery page shows them: each input once, with its results."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from ebcli.drawing.thumbnails import ThumbnailNames
from ebcli.files.naming import is_raw, numbered
from ebcli.files.records import ClassRecord, Record, Result, records_of_run
from ebcli.files.safe_open import first_link


@dataclass(frozen=True)
class MapEntry:
    """One map of an input.

    Attributes:
        recorded: its part of the record.
        result: its picture or panel, relative to the output directory; None if it does not exist.
        map, overlay: its thumbnail, and what is shown in its place if that cannot be made.
    """

    recorded: ClassRecord
    result: Path | None
    map: Path
    overlay: Path


@dataclass(frozen=True)
class Outcome:
    """The outcome of an input at one layer with one method.

    Attributes:
        record: what the run recorded.
        layer: the layer.
        maps: the maps there.
        seconds: the time that they took.
        raw: the ``.npz`` file, relative to the output directory; None if it does not exist.
        photo: the photo's thumbnail; None for a failure.
    """

    record: Record
    layer: str
    maps: tuple[MapEntry, ...]
    _: KW_ONLY
    seconds: float
    raw: Path | None = None
    photo: Path | None = None


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
        ConfigurationError: there are no records, or they cannot be read.
    """
    latest: dict[str, dict[tuple[str, str], Record]] = {}
    writers: dict[str, Record] = {}
    for record in records_of_run(directory):
        of_input = latest.setdefault(record.place, {})
        key = record.layer, record.method
        of_input.pop(key, None)
        of_input[key] = record
        writers.update((result.path, record) for result in record.results)

    def is_there(result: Result, record: Record) -> bool:
        with suppress(OSError):
            linked = first_link(directory, Path(result.path))
            is_last = writers[result.path] is record
            return is_last and not linked and (directory / result.path).stat().st_size == result.bytes
        return False

    entries = []
    for of_input in latest.values():
        outcomes: dict[tuple[str, str], Outcome] = {}
        for record in of_input.values():
            there = {Path(result.path) for result in record.results if is_there(result, record)}
            for outcome in _outcomes(record, there):
                outcomes.pop((outcome.layer, record.method), None)
                outcomes[outcome.layer, record.method] = outcome
        if outcomes:  # none if no class scored above a threshold
            entries.append(Entry(record.input, tuple(outcomes.values())))
    return entries


def _outcomes(record: Record, there: Collection[Path]) -> Iterator[Outcome]:
    """One outcome per layer, with those result files that exist; of a failure, one."""
    if record.status == "failed" or record.stamp is None:
        yield Outcome(record, record.layer, (), seconds=record.seconds)
        return
    names = ThumbnailNames(record.place, record.stamp, record.configuration, record.method)
    results = [Path(result.path) for result in record.results]
    pictures = [result for result in results if not is_raw(result.name)]
    if len(pictures) == 1:  # a panel of all maps
        pictures *= len(record.classes)
    pictures = pictures[len(pictures) - len(record.classes) :]  # the videos of the same maps stand before
    layers: dict[str, list[MapEntry]] = {}
    each = numbered((one.layer, one.index) for one in record.classes)
    for one, (key, number), picture in zip(record.classes, each, pictures, strict=True):
        result, thumbnails = (
            picture if picture in there else None,
            (names.map(*key, number), names.overlay(*key, number)),
        )
        layers.setdefault(one.layer, []).append(MapEntry(one, result, *thumbnails))
    raw = next((result for result in results if result.suffix == ".npz" and result in there), None)
    for layer, maps in reversed(layers.items()):  # the page shows the last outcome: that of the first layer
        seconds = record.seconds / len(layers)  # they were computed together
        yield Outcome(record, layer, tuple(maps), seconds=seconds, raw=raw, photo=names.photo)
