"""The true classes of images: from a CSV file, or from the names of their directories. Imports no torch."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.sources import Source
from ebcli.models.classes import resolve_class

FOLDERS = Path("folders")  # in place of a file: an image's class is its directory's name

_HEADINGS = {"file", "filename", "image", "path"}

Labels = Mapping[tuple[str, ...], int]


def with_labels(sources: Sequence[Source], labels: Path, categories: Sequence[str] | None, count: int) -> list[Source]:
    """The same files, each with its true class as ``label``; with a warning if some have none.

    Args:
        sources: the files.
        labels: a CSV file of two columns, a file and its class by index or name; or ``FOLDERS``. A file is named by
            any number of the last parts of its path.
        categories, count: the network's classes.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or no image has a label.
    """
    if labels == FOLDERS:
        of_folder = _folders(sources, categories, count)
        found = [replace(source, label=of_folder[source.path.parent.name]) for source in sources]
    else:
        table = _read(labels, categories, count)
        found = [replace(source, label=_label(source.path, table)) for source in sources]
    missing = [source for source in found if source.label is None]
    if found and len(missing) == len(found):
        raise ConfigurationError(
            f"'{labels}' names none of the images, such as '{missing[0].name}': name files by the end of their paths"
        )
    if missing:
        warnings.warn(f"{len(missing)} files have no label in '{labels}', such as '{missing[0].name}'", stacklevel=2)
    return found


def _label(path: Path, table: Labels) -> int | None:
    """The class of the longest end of a path that the table has."""
    parts = path.parts
    return next((table[parts[start:]] for start in range(len(parts)) if parts[start:] in table), None)


def _read(path: Path, categories: Sequence[str] | None, count: int) -> Labels:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"cannot read labels from '{path}': {error}") from error
    if rows and rows[0][0].strip().lower() in _HEADINGS:
        del rows[0]
    table = {}
    for row in rows:
        if len(row) != 2:
            line = ",".join(row)
            raise ConfigurationError(f"'{path}' has the line {line!r}: each line must be a file, a comma, a class")
        table[Path(row[0]).parts] = resolve_class(categories, row[1].strip(), count)
    return table


def _folders(sources: Sequence[Source], categories: Sequence[str] | None, count: int) -> dict[str, int]:
    """The class of each directory by its name; without class names, in sorted order, as torchvision's ImageFolder."""
    names = sorted({source.path.parent.name for source in sources})
    if categories is None and len(names) == count and not all(name.isdecimal() for name in names):
        return {name: index for index, name in enumerate(names)}
    found = {}
    for name in names:
        try:
            found[name] = resolve_class(categories, name.replace("_", " "), count)
        except ConfigurationError as error:
            raise ConfigurationError(f"the directory '{name}' is not named after a class: {error}") from error
    return found
