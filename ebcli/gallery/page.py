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
_OF_MAP = ("score", "mass", "told", "evidence", "sufficiency", "blank", "at_border", "against")
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
        there = _make_missing(entries, folder, style, count, inputs)
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

    def map_data(entry: MapEntry) -> dict[str, Any]:
        one = entry.recorded
        return {
            "class": number("classes", (one.index, one.name)),
            **{name: getattr(one, name) for name in _OF_MAP},
            "map": _url(entry.map, there),
            "overlay": _url(entry.overlay, there),
            "result": entry.result and _url(entry.result),
        }

    def outcome_data(outcome: Outcome) -> dict[str, Any]:
        record = outcome.record
        # what tells a wrong prediction from the true class comes first
        maps = sorted(outcome.maps, key=lambda one: not one.recorded.against)
        return {
            "model": number("models", (record.model, "untrained" if record.weights == "none" else record.weights)),
            "layer": number("layers", outcome.layer),
            "method": number("methods", record.method),
            "seconds": outcome.seconds,
            **{name: getattr(record, name) for name in ("error", "label", "predicted")},
            "photo": outcome.photo and _url(outcome.photo, there),
            "maps": [*map(map_data, maps)],
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
    directory, roots = folder.directory, roots_of(inputs)
    there = {
        Path(subdirectory, name).relative_to(directory)
        for subdirectory, _, names in os.walk(directory / THUMBNAILS)
        for name in names
    }
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


def _missing(outcome: Outcome, there: Set[Path]) -> set[Path]:
    """The missing thumbnails: the photo, and each map that has no small overlay as its substitute."""
    if outcome.photo is None:
        return set()
    maps = [one.map for one in outcome.maps if not one.recorded.blank and one.overlay not in there]
    return {outcome.photo, *maps} - there


def _make(
    directory: Path, source: Path | None, outcome: Outcome, missing: Collection[Path], style: DrawingStyle
) -> dict[Path, bytes]:
    files, photo = dict[Path, bytes](), outcome.photo
    with suppress(ImageError, OSError):
        if photo and photo in missing and source and Source(source).stamp() == outcome.record.stamp:
            files[photo] = encode_picture(shrunk(decode(Source(source).opened()[1])), "jpg")
    if outcome.raw is not None and (raw := read_maps(directory, outcome.record)) is not None:
        with suppress(OSError, ValueError, TypeError, IndexError):  # anybody may have written the arrays
            maps = (map_ for map_ in raw[1] if map_.layer == outcome.layer)
            for number, (one, map_) in enumerate(zip(outcome.maps, maps, strict=True)):
                own = style.of(map_.is_two_sided)
                if one.map in missing and (content := map_thumbnail(map_, map_.values, raw[0], own, number)):
                    files[one.map] = content
    for one in outcome.maps:
        if one.map in missing and one.map not in files and one.result is not None:
            with suppress(ImageError):
                files[one.overlay] = encode_picture(shrunk(decode(directory / one.result)), "jpg")
    return files
