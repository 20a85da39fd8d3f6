"""The gallery page: one HTML file that opens from disk and loads nothing but its thumbnails."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ebcli.drawing.legend import bar, ends
from ebcli.drawing.painters import muting
from ebcli.drawing.style import FINE, DrawingStyle
from ebcli.files.directory import OutputFolder, refuse_foreign_files
from ebcli.files.naming import PAGE
from ebcli.gallery.backfill import make_missing
from ebcli.gallery.entries import Entry, MapEntry, Outcome, read_entries

_STYLE = DrawingStyle()
_LEGEND_COLORS = 33  # odd, so that the middle of a signed scale is one of them
_SCRIPTS = ("model.js", "parts.js", "grid.js", "viewer.js", "page.js")


def write_gallery(
    directory: Path,
    style: DrawingStyle = _STYLE,
    workers: int = 0,
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
) -> Path:
    """Write the gallery page of an output directory, and the thumbnails that it lacks.

    The page of an earlier call is replaced atomically.

    Args:
        directory: the output directory of one or more runs.
        style: the opacity, and the colors and the scale of maps that are drawn from ``.npz`` files.
        workers: the number of processes that make thumbnails; 0 for none.
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
        there = make_missing(directory, entries, folder, style, workers, inputs)
        name = Path(os.path.abspath(directory)).name  # noqa: PTH100 - its own name rather than that of a link's target
        folder.add({PAGE: _html({**_look(style), **_data(name, entries, there)}).encode()})
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
    return {"alpha": style.alpha, "colors": colors, "ends": ends(overlay, FINE)}


def _html(data: dict[str, Any]) -> str:
    """The page with its style, scripts and data; its policy allows no other scripts."""
    style, script = static("page.css"), "\n".join(map(static, _SCRIPTS))
    # ASCII without a < holds no tag
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = static("index.html")
    muting_rows = " ".join(f"{r} {g} {b} 0 {constant / 255}" for r, g, b, constant in muting())
    fillings = {
        "POLICY": policy(style, script),
        "STYLE": style,
        "MUTING": muting_rows,
        "SCRIPT": script,
        "DATA": encoded,
    }
    for mark, content in fillings.items():
        page = page.replace(f"@{mark}@", content, 1)
    return page


def static(name: str) -> str:
    """A part of a page."""
    return files("ebcli.gallery").joinpath("static").joinpath(name).read_text("utf-8")


def policy(style: str, script: str, images: str = "'self'") -> str:
    """The content security policy of a page with this style and script: no others, and no network."""
    return (
        f"default-src 'none'; img-src {images}; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


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
            "strength": one.strength,
            "evidence": one.evidence,
            "proof": one.proof,
            "blank": one.blank,
            "atBorder": one.at_border,
            "map": names and _url(names.map(outcome.layer, one.index, entry.number), there),
            "overlay": names and _url(names.overlay(outcome.layer, one.index, entry.number), there),
            "result": entry.result and _url(entry.result),
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
            "maps": [map_data(entry, outcome) for entry in outcome.maps],
        }

    images = [
        {"name": entry.input, "outcomes": [outcome_data(outcome) for outcome in entry.outcomes]} for entry in entries
    ]
    return {"name": name, "images": images, **{key: list(table) for key, table in tables.items()}}


def _url(path: Path, there: Collection[Path] | None = None) -> str | None:
    """The link to a file below the output directory; None if ``there`` does not contain it."""
    if there is not None and path not in there:
        return None
    return quote(os.fsencode(Path(os.path.relpath(path, PAGE.parent)).as_posix()))
