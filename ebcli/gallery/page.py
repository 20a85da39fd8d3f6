"""The gallery page: one HTML file that opens from disk and loads nothing but its thumbnails."""

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ebcli.drawing.legend import bar, ends
from ebcli.drawing.overlay import shrunk
from ebcli.drawing.style import FINE, DrawingStyle
from ebcli.drawing.thumbnails import THUMBNAILS, map_thumbnail
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode, decoding_memory
from ebcli.files.naming import PAGE, canonical
from ebcli.files.remote import url_of
from ebcli.files.sources import Source
from ebcli.gallery.entries import Entry, MapEntry, Outcome, read_entries
from ebcli.gallery.raw_maps import read_maps
from ebcli.pages.shell import page
from ebcli.workers import Workers, processors

_STYLE = DrawingStyle()
_LEGEND_COLORS = 33  # odd, so that the middle of a signed scale is one of them


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
    check_page(directory, overwrite)
    with OutputFolder(directory, overwrite=True) as folder:
        count = processors() if workers is None else workers
        there = make_missing(directory, entries, folder, style, count, inputs)
        name = Path(os.path.abspath(directory)).name  # noqa: PTH100 - its own name rather than that of a link's target
        data = {**_look(style), **_data(name, entries, there)}
        folder.add({PAGE: page("gallery.html", data=data)})
    return directory / PAGE


def check_page(directory: Path, overwrite: bool, relpath: Path = PAGE) -> None:
    """Check that writing a page would replace no page but this program's own.

    Raises:
        ConfigurationError: it would, and ``overwrite`` is False.
    """
    if not overwrite:
        refuse_foreign_files(directory, others=[relpath])


def _look(style: DrawingStyle) -> dict[str, Any]:
    """The opacity of maps, and the color scale with its ends in words."""
    overlay = replace(style, name="overlay", cells=False)
    colors = np.asarray(bar(overlay, (_LEGEND_COLORS, 1)))[0].tolist()
    return {"alpha": style.alpha, "colors": colors, "ends": ends(overlay, FINE, has_faint=True)}


def _data(name: str, entries: Iterable[Entry], there: Collection[Path]) -> dict[str, Any]:
    """The page's data; repeated text is stored once in tables and referred to by its index."""
    tables: dict[str, dict[Any, int]] = {"classes": {}, "models": {}, "layers": {}, "methods": {}}

    def number(table: str, value: Any) -> int:
        return tables[table].setdefault(value, len(tables[table]))

    def map_data(entry: MapEntry, outcome: Outcome) -> dict[str, Any]:
        one, names = entry.recorded, outcome.names
        return {
            "class": number("classes", (one.index, one.name)),
            "score": one.score,
            "mass": one.mass,
            "told": one.told,
            "evidence": one.evidence,
            "sufficiency": one.sufficiency,
            "blank": one.blank,
            "atBorder": one.at_border,
            "map": names and _url(names.map(outcome.layer, one.index, entry.number), there),
            "overlay": names and _url(names.overlay(outcome.layer, one.index, entry.number), there),
            "result": entry.result and _url(entry.result),
            "against": one.against,
        }

    def outcome_data(outcome: Outcome) -> dict[str, Any]:
        record = outcome.record
        return {
            "model": number("models", (record.model, "untrained" if record.weights == "none" else record.weights)),
            "layer": number("layers", outcome.layer),
            "method": number("methods", record.method),
            "seconds": outcome.seconds,
            "error": record.error,
            "label": record.label,
            "predicted": record.predicted,
            "photo": outcome.names and _url(outcome.names.photo, there),
            # what tells a wrong prediction from the true class comes first
            "maps": [
                map_data(entry, outcome) for entry in sorted(outcome.maps, key=lambda one: not one.recorded.against)
            ],
        }

    images = [
        {"name": entry.input, "outcomes": [outcome_data(outcome) for outcome in entry.outcomes]} for entry in entries
    ]
    classes = [{"index": index, "name": name} for index, name in tables.pop("classes")]
    return {"name": name, "images": images, "classes": classes, **{key: list(one) for key, one in tables.items()}}


def _url(path: Path, there: Collection[Path] | None = None) -> str | None:
    """The link to a file below the output directory; None if ``there`` does not contain it."""
    if there is not None and path not in there:
        return None
    return quote(os.fsencode(Path(os.path.relpath(path, PAGE.parent)).as_posix()))


_AHEAD = 64  # images submitted at a time


def make_missing(
    directory: Path,
    entries: Iterable[Entry],
    folder: OutputFolder,
    style: DrawingStyle,
    workers: int,
    inputs: Sequence[Path] = (),
) -> set[Path]:
    """Make the missing thumbnails, as far as possible.

    Args:
        directory: the output directory.
        entries: its inputs.
        folder: the same directory, opened for writing.
        style: the colors and the scale of maps that are drawn from ``.npz`` files.
        workers: the number of processes that decode and draw; 0 for none.
        inputs: the records may have been written by anybody, so photos are only read below these paths.

    Returns:
        All thumbnails that exist then, relative to the output directory.

    Raises:
        OutputError: they cannot be written.
        ConfigurationError: matplotlib has no colormap of that name.
    """
    there = {
        Path(subdirectory, name).relative_to(directory)
        for subdirectory, _, names in os.walk(directory / THUMBNAILS)
        for name in names
    }
    roots = roots_of(inputs)
    with Workers(workers, memory=decoding_memory()) as pool:

        def make(source: Path | None, outcome: Outcome, missing: Collection[Path]) -> dict[Path, bytes]:
            try:
                return pool.call(_make, directory, source, outcome, missing, style)
            except ConfigurationError:
                raise
            except Exception:  # out of memory, or the process died: the page does without
                return {}

        for files in _in_turn(
            pool.submit(make, below(entry.input, roots), outcome, missing)
            for entry in entries
            for outcome in entry.outcomes
            if (missing := _missing(outcome, there))
        ):
            folder.add(files)
            there.update(files)
    return there


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(canonical(path)))  # noqa: PTH100 - links below the inputs are followed, as in a run


def roots_of(inputs: Sequence[Path]) -> set[Path]:
    """The local ones of some files and directories, for ``below``."""
    return {_absolute(path) for path in inputs if url_of(path) is None}


def below(name: str, roots: Set[Path]) -> Path | None:
    """The local file of a name if it is below one of the roots."""
    if url_of(Path(name)) is not None or "\0" in name:
        return None
    whole = _absolute(Path(name))
    return None if roots.isdisjoint((whole, *whole.parents)) else whole


def _in_turn(futures: Iterator[Future[dict[Path, bytes]]]) -> Iterator[dict[Path, bytes]]:
    """The results of all, a few of which are pending at any time."""
    waiting = deque(islice(futures, _AHEAD))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(futures, 1))


def _missing(outcome: Outcome, there: Collection[Path]) -> set[Path]:
    """The missing thumbnails: the photo, and each map that has no small overlay as its substitute."""
    names = outcome.names
    if names is None:
        return set()
    layer = outcome.layer
    drawn = [(layer, one.recorded.index, one.number) for one in outcome.maps if not one.recorded.blank]
    shown = [one for one in drawn if names.overlay(*one) not in there]
    return {names.photo, *(names.map(*one) for one in shown)}.difference(there)


def _make(
    directory: Path, source: Path | None, outcome: Outcome, missing: Collection[Path], style: DrawingStyle
) -> dict[Path, bytes]:
    names = outcome.names
    assert names is not None  # or nothing would be missing
    files: dict[Path, bytes] = {}
    with suppress(ImageError, OSError):
        if source is not None and names.photo in missing and Source(source).stamp() == names.stamp:
            files[names.photo] = encode_picture(shrunk(decode(Source(source).opened()[1])), "jpg")
    if outcome.raw is not None and (raw := read_maps(directory, outcome.record)) is not None:
        with suppress(OSError, ValueError, TypeError, IndexError):  # anybody may have written the arrays
            size, maps = raw
            for i, (path, map_) in enumerate(zip(names.maps(maps), maps, strict=True)):  # layer by layer
                number = i % len(outcome.maps)
                own = style.of(map_.is_two_sided)
                if path in missing and (content := map_thumbnail(map_, map_.values, size, own, number)) is not None:
                    files[path] = content
    for one in outcome.maps:
        at = outcome.layer, one.recorded.index, one.number
        if names.map(*at) in missing and names.map(*at) not in files and one.result is not None:
            with suppress(ImageError):
                files[names.overlay(*at)] = encode_picture(shrunk(decode(directory / one.result)), "jpg")
    return files
