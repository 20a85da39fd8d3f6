"""Records and thumbnails -> the page, one file that opens from disk and asks for nothing but its pictures."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Collection, Iterable
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import REPORT
from ebcli.errors import ConfigurationError
from ebcli.files.directory import OutputFolder
from ebcli.files.records import FILE, History
from ebcli.gallery.backfill import make_missing
from ebcli.gallery.entries import Entry, MapEntry, Outcome, read_entries

PAGE = REPORT / "index.html"

_MARK = b'<meta name="generator" content="eb-saliency">'
_STYLE = DrawingStyle()
_SCRIPTS = ("model.js", "parts.js", "grid.js", "viewer.js", "page.js")


def write_gallery(directory: Path, style: DrawingStyle = _STYLE, workers: int = 0, overwrite: bool = False) -> Path:
    """Write the page of all that an output directory's records tell, and the thumbnails that are not there yet.

    It replaces the page of an earlier call in one step.

    Args:
        directory: the output directory of one or more runs.
        style: the colours and the scale of maps that come from arrays (``--raw``).
        workers: how many processes make thumbnails, 0 for none.
        overwrite: replace a page that this program did not write, too.

    Returns:
        The page, ``report/index.html`` below the directory.

    Raises:
        ConfigurationError: there are no records, the colormap does not exist, or a file that this program did not
            write is in the way.
        OutputError: the directory cannot be written to.
    """
    try:
        entries = read_entries(directory)
    except OSError as error:
        raise ConfigurationError(
            f"there is no '{directory / FILE}' to read ({error.strerror}): name the --output directory of a run"
        ) from error
    check_gallery(directory, overwrite)
    with closing(OutputFolder(directory, History(), overwrite=True)) as folder:
        there = make_missing(directory, entries, folder, style, workers)
        name = Path(os.path.abspath(directory)).name  # noqa: PTH100 - the name it was given, not what it links to
        folder.write({PAGE: _html(_data(name, entries, there)).encode()})
    return directory / PAGE


def check_gallery(directory: Path, overwrite: bool) -> None:
    """Make sure that the page would replace nothing but a page of this program.

    Raises:
        ConfigurationError: it would, and ``overwrite`` is False.
    """
    page = directory / PAGE
    if page.is_file() and _MARK not in page.read_bytes() and not overwrite:
        raise ConfigurationError(
            f"'{page}' would be replaced, but this program did not write it: move it away, or pass --overwrite"
        )


def _html(data: dict[str, Any]) -> str:
    """The page, which holds its style, its scripts and its data; only these scripts may run."""
    source = files("ebcli.gallery").joinpath("static")
    style = source.joinpath("page.css").read_text("utf-8")
    script = "\n".join(source.joinpath(name).read_text("utf-8") for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; img-src 'self'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # ASCII throughout; without a < there is no tag in it, whatever it says
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = source.joinpath("index.html").read_text("utf-8")
    for mark, content in (("POLICY", policy), ("STYLE", style), ("SCRIPT", script), ("DATA", encoded)):
        page = page.replace(f"@{mark}@", content, 1)
    return page


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _data(name: str, entries: Iterable[Entry], there: Collection[Path]) -> dict[str, Any]:
    """What the page reads; text that comes again and again stands in tables, and is named by its number there."""
    tables: dict[str, dict[Any, int]] = {"classes": {}, "models": {}, "layers": {}, "methods": {}}

    def number(table: str, value: Any) -> int:
        return tables[table].setdefault(value, len(tables[table]))

    def shown(one: MapEntry, outcome: Outcome) -> dict[str, Any]:
        names = outcome.names
        return {
            "class": number("classes", (one.index, one.name)),
            "score": one.score,
            "mass": one.mass,
            "blank": one.blank,
            "map": names and _url(names.map(outcome.layer, one.index), there),
            "overlay": names and _url(names.overlay(outcome.layer, one.index), there),
            "result": one.result and _url(one.result),
        }

    def told(outcome: Outcome) -> dict[str, Any]:
        return {
            "model": number("models", (outcome.model, outcome.weights)),
            "layer": number("layers", outcome.layer),
            "method": number("methods", outcome.method),
            "seconds": outcome.seconds,
            "error": outcome.error,
            "photo": outcome.names and _url(outcome.names.photo, there),
            "maps": [shown(one, outcome) for one in outcome.classes],
        }

    images = [{"name": entry.input, "outcomes": [told(outcome) for outcome in entry.outcomes]} for entry in entries]
    return {"name": name, "images": images, **{key: list(table) for key, table in tables.items()}}


def _url(path: Path, there: Collection[Path] | None = None) -> str | None:
    """A file below the output directory as the page links to it; None if it is not among those that are there."""
    if there is not None and path not in there:
        return None
    return quote(os.fsencode(Path(os.path.relpath(path, REPORT)).as_posix()))
