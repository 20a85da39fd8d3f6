"""The gallery page: one HTML file that opens from disk and loads nothing but its thumbnails."""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ebcli.drawing.legend import bar, ends
from ebcli.drawing.style import FINE, DrawingStyle
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.naming import PAGE
from ebcli.gallery.backfill import make_missing
from ebcli.gallery.entries import Entry, MapEntry, Outcome, read_entries
from ebcli.pages.shell import page
from ebcli.workers import processors

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
