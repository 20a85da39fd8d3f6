"""The gallery page: one HTML file that opens from disk and loads nothing but its thumbnails."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ebcli.datatypes.explanation import JsonObject
from ebcli.datatypes.query import Query
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import bar_colors, scale_labels
from ebcli.drawing.overlay import downscale
from ebcli.drawing.style import FINE, DrawingStyle
from ebcli.drawing.thumbnails import THUMBNAILS, ThumbnailNames, map_thumbnail
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode, decoding_memory
from ebcli.files.naming import PAGE, is_raw, with_numbers
from ebcli.files.paths import first_link
from ebcli.files.records import ClassRecord, Record, Result, records_of_run
from ebcli.files.results import Results
from ebcli.files.sources import Source
from ebcli.gallery.comparison import Files, path_below, read_maps, roots_of
from ebcli.pages.shell import page
from ebcli.workers import Workers, processors

_STYLE = DrawingStyle()
_OF_MAP = {
    name: name for name in "score value mass told evidence sufficiency blank at_border against span".split()
}
_OF_MAP |= {"told": "evidence_words"}  # names on the page, and those of records
_AT_A_TIME = 64  # images, whose thumbnails are in memory


class MapEntry(NamedTuple):
    """One map of an input.

    Attributes:
        class_record: its part of the record.
        result: its picture or panel, relative to the output directory; None if it does not exist.
        map, overlay: its thumbnail, and what is shown in its place if that cannot be made.
    """

    class_record: ClassRecord
    result: Path | None
    map: Path
    overlay: Path


class Outcome(NamedTuple):
    """The outcome of an input at one layer with one method.

    Attributes:
        record: what the run recorded.
        layer: the layer.
        method: the method.
        maps: the maps there.
        seconds: the time that they took.
        has_raw: whether its ``.npz`` file exists.
        photo: the photo's thumbnail; None for a failure.
    """

    record: Record
    layer: str
    method: str
    maps: tuple[MapEntry, ...]
    seconds: float
    has_raw: bool = False
    photo: Path | None = None


class Entry(NamedTuple):
    """One input: its path as last given, and its outcome for each layer and method, latest last."""

    input: str
    outcomes: tuple[Outcome, ...]


def read_entries(directory: Path) -> list[Entry]:
    """All inputs, in the order of their first records; of questions about inputs, each one that was asked.

    For each of these, and each layer and method, the latest record counts. A result file is left out if a later record
    wrote it, too, or if it does not exist with the recorded size.

    Raises:
        ConfigurationError: there are no records, or they cannot be read.
    """
    latest: dict[tuple[str, Query], dict[tuple[str, str], Record]] = {}
    results = Results(directory)
    for record in records_of_run(directory):
        records = latest.setdefault((record.place, record.query), {})
        key = record.layer, record.method
        records.pop(key, None)
        records[key] = record
        results.update([record])

    def is_there(result: Result) -> bool:
        return results.has(result) and not first_link(directory, Path(result.path))

    entries = []
    for records in latest.values():
        outcomes: dict[tuple[str, str], Outcome] = {}
        for record in records.values():
            existing = {Path(result.path) for result in filter(is_there, record.results)}
            for outcome in _outcomes(record, existing):
                key = outcome.layer, outcome.method
                outcomes.pop(key, None)
                outcomes[key] = outcome
        if outcomes:  # none if no class scored above a threshold
            entries.append(Entry(record.input, tuple(outcomes.values())))
    return entries


def _outcomes(record: Record, existing: Collection[Path]) -> Iterator[Outcome]:
    """One outcome per layer and method, with those files that exist; one of a failure or of an image without maps."""
    if record.status == "failed" or record.stamp is None:
        yield Outcome(record, record.layer, record.method, (), record.seconds)
        return
    if record.is_without_maps and record.label is not None:
        yield Outcome(record, record.layer.partition(", ")[0], record.method, (), record.seconds)
        return
    names = ThumbnailNames(record.place, record.stamp, record.configuration, record.method)
    results = [Path(result.path) for result in record.results]
    pictures = [result for result in results if not is_raw(result.name)]
    if len(pictures) == 1:  # a panel of all maps
        pictures *= len(record.classes)
    pictures = pictures[len(pictures) - len(record.classes) :]  # the videos of the same maps stand before
    groups: dict[tuple[str, str], list[MapEntry]] = {}
    has_methods = len({class_record.method for class_record in record.classes}) > 1
    keys = with_numbers((class_record.layer, class_record.index) for class_record in record.classes)
    for class_record, (key, number), picture in zip(record.classes, keys, pictures, strict=True):
        result = picture if picture in existing else None
        entry = MapEntry(class_record, result, names.map(*key, number), names.overlay(*key, number))
        method = class_record.method if has_methods else record.method
        groups.setdefault((class_record.layer, method), []).append(entry)
    has_raw = any(path.suffix == ".npz" for path in existing)
    for (layer, method), maps in reversed(
        groups.items()
    ):  # the page shows the last outcome: that of the first layer
        seconds = record.seconds / len(groups)  # they were computed together
        yield Outcome(record, layer, method, tuple(maps), seconds, has_raw, names.photo)


def write_gallery(
    directory: Path,
    style: DrawingStyle = _STYLE,
    workers: int | None = 0,
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
) -> Path:
    """Write the gallery page of an output directory, and the thumbnails that it lacks.

    The page of an earlier call is replaced atomically.

    Args:
        directory: the output directory of one or more runs.
        style: the opacity, and the colors and the scale of maps that are drawn from ``.npz`` files.
        workers: the number of processes that make thumbnails; 0 for none, None for one per CPU.
        overwrite: also replace a page that this program did not write.
        inputs: local files and directories; of the photos that the records name, only those below them are read.

    Returns:
        The page, ``report/index.html`` below the directory.

    Raises:
        ConfigurationError: there are no records, the colormap does not exist, or a file that this program did not
            write would be replaced.
        OutputError: the directory cannot be written to.
    """
    entries = read_entries(directory)
    refuse_foreign_files(directory, [PAGE], overwrite)
    with OutputFolder(directory, overwrite=True) as folder:
        count = processors() if workers is None else workers
        existing = _make_missing(entries, folder, style, count, inputs)
        name = Path(os.path.abspath(directory)).name  # noqa: PTH100 - its own name rather than that of a link's target
        overlay = replace(style, name="overlay", cells=False)
        data = _data(name, entries, existing)
        data["alpha"] = style.alpha
        data["colors"] = bar_colors(overlay)
        data["ends"] = scale_labels(overlay, FINE, has_faint=True)
        folder.add({PAGE: page("gallery.html", data=data)})
    return directory / PAGE


def _data(name: str, entries: Iterable[Entry], existing: Collection[Path]) -> JsonObject:
    """The page's data; repeated text is stored once in tables and referred to by its index."""
    tables: dict[str, dict[Any, int]] = {"classes": {}, "models": {}, "layers": {}, "methods": {}}

    def number(table: str, value: Any) -> int:
        return tables[table].setdefault(value, len(tables[table]))

    def map_data(entry: MapEntry) -> JsonObject:
        class_record = entry.class_record
        class_ = (class_record.index, class_record.name)
        if class_record.span is not None:  # a word is one class, whichever tokens it begins with
            class_ = (0, str(class_record.name).lower())
        return {
            "class": number("classes", class_),
            **{name: getattr(class_record, attribute) for name, attribute in _OF_MAP.items()},
            "map": _url(entry.map, existing),
            "overlay": _url(entry.overlay, existing),
            "result": entry.result and _url(entry.result),
        }

    def outcome_data(outcome: Outcome) -> JsonObject:
        record = outcome.record
        is_answer = record.answer is not None
        weights = "untrained" if record.weights == "none" else record.weights
        if record.head is not None:
            weights += f", head {record.head}"
        # what tells a wrong prediction from the true class comes first
        maps = sorted(outcome.maps, key=lambda map_entry: not map_entry.class_record.against)
        return {
            "model": number("models", (record.model, weights)),
            "layer": number("layers", outcome.layer),
            "method": number("methods", outcome.method),
            "seconds": outcome.seconds,
            **{name: getattr(record, name) for name in ("error", "label", "predicted")},
            "photo": outcome.photo and _url(outcome.photo, existing),
            "film": record.film is not None,
            **({"question": record.question, "answer": record.answer} if is_answer else {}),
            "maps": list(map(map_data, maps)),
        }

    images = [{"name": entry.input, "outcomes": list(map(outcome_data, entry.outcomes))} for entry in entries]
    classes = [{"index": index, "name": name} for index, name in tables.pop("classes")]
    lists = {key: list(values) for key, values in tables.items()}
    return {"name": name, "images": images, "classes": classes, **lists}


def _url(path: Path, existing: Collection[Path] | None = None) -> str | None:
    """The link to a file below the output directory; None if it is not one of those that exist."""
    if existing is not None and path not in existing:
        return None
    relpath = os.path.relpath(path, PAGE.parent)
    return quote(os.fsencode(Path(relpath).as_posix()))


def _make_missing(
    entries: Iterable[Entry], folder: OutputFolder, style: DrawingStyle, workers: int, inputs: Sequence[Path]
) -> set[Path]:
    """Make the missing thumbnails, as far as possible.

    Args:
        entries: the inputs of an output directory.
        folder: the directory.
        style: the colors and the scale of maps that are drawn from ``.npz`` files.
        workers: the number of processes that decode and draw; 0 for none.
        inputs: the records may have been written by anybody, so photos are only read below these paths.

    Returns:
        All thumbnails that exist then, relative to the output directory.

    Raises:
        OutputError: they cannot be written.
        ConfigurationError: matplotlib has no colormap of that name.
    """
    directory = folder.directory
    roots = roots_of(inputs)
    existing = {path.relative_to(directory) for path in (directory / THUMBNAILS).rglob("*")}
    with Workers(workers, memory=decoding_memory()) as pool:

        def make(source: Path | None, outcome: Outcome, missing: Collection[Path]) -> Files:
            try:
                return pool.call(_make, directory, source, outcome, missing, style)
            except ConfigurationError:
                raise
            except Exception:  # out of memory, or the process died: the page does without
                return {}

        jobs = (
            (path_below(entry.input, roots), outcome, missing)
            for entry in entries
            for outcome in entry.outcomes
            if (missing := _missing(outcome, existing))
        )
        while futures := [pool.submit(make, *job) for job in islice(jobs, _AT_A_TIME)]:
            for future in futures:
                folder.add(future.result())
                existing.update(future.result())
    return existing


def _missing(outcome: Outcome, existing: Set[Path]) -> set[Path]:
    """The missing thumbnails: the photo, and each map that has no small overlay as its substitute."""
    maps = [entry for entry in outcome.maps if not entry.class_record.blank]
    thumbnails = {entry.map for entry in maps if entry.overlay not in existing}
    if outcome.photo is not None:
        thumbnails.add(outcome.photo)
    return thumbnails - existing


def _make(
    directory: Path, source: Path | None, outcome: Outcome, missing: Set[Path], style: DrawingStyle
) -> Files:
    files: Files = {}
    photo = outcome.photo
    if outcome.record.film is not None:  # whose run made them
        return files
    with suppress(ImageError, OSError):
        if photo and photo in missing and source and Source(source).stamp() == outcome.record.stamp:
            _, file = Source(source).open_content()
            files[photo] = encode_picture(downscale(decode(file, to_srgb=True)), "jpg")
    with suppress(OSError, ValueError, TypeError, IndexError):  # anybody may have written the arrays
        for entry, frame_maps in _frame_maps(directory, outcome, style):
            content = map_thumbnail(frame_maps, frame_maps.map.values) if entry.map in missing else None
            if content:
                files[entry.map] = content
    for entry in outcome.maps:
        if entry.map in missing - files.keys() and entry.result is not None:
            with suppress(ImageError):
                files[entry.overlay] = encode_picture(downscale(decode(directory / entry.result)), "jpg")
    return files


def _frame_maps(
    directory: Path, outcome: Outcome, style: DrawingStyle
) -> Iterator[tuple[MapEntry, FrameMaps]]:
    """Each map of the ``.npz`` file of an outcome."""
    image = read_maps(directory, outcome.record) if outcome.has_raw else None
    if image is not None:
        maps = [map_ for map_ in image.maps if map_.layer == outcome.layer]
        for number, (entry, map_) in enumerate(zip(outcome.maps, maps, strict=True)):
            yield entry, FrameMaps.from_map(map_, image.size, None, style, number)
