"""Files with a row for each photo: which row belongs to which photo. Imports no torch."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ebcli.errors import ConfigurationError, plural
from ebcli.files.sources import Source


class TableRow(Protocol):
    """What a file says of a photo."""

    @property
    def line(self) -> int:
        """The number of its line, counted from 1."""


T = TypeVar("T", bound=TableRow)


def match_rows(
    sources: Sequence[Source],
    table: Mapping[tuple[str, ...], T],
    file: Path,
    noun: str,
    accepts: Callable[[Source], bool],
    is_all: bool = True,
) -> list[T | None]:
    """The row of each photo, with warnings if photos have none, or rows no photo.

    Args:
        sources: the photos, and perhaps other files.
        table: the rows by any number of the last parts of their photos' paths.
        file: the file that has the table.
        noun: what a row is called.
        accepts: whether a file is worked on; others need no row.
        is_all: whether these are all photos, so that each row should have one.

    Raises:
        ConfigurationError: no photo has a row.
    """
    rows: list[T | None] = []
    unused_rows = {**table}
    missing = []
    for source in sources:
        key = _key(source.path, table)
        rows.append(None if key is None else table[key])
        if key is not None:
            unused_rows.pop(key, None)
        elif accepts(source):
            missing.append(source.name)
    if missing and len(unused_rows) == len(table):
        raise ConfigurationError(
            f"'{file}' names none of the images, such as '{missing[0]}': name files by the end of their paths"
        )
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        images = plural(len(missing), "image")
        warnings.warn(f"{images} {verb} no {noun} in '{file}', such as '{missing[0]}'", stacklevel=3)
    if unused_rows and sources and is_all:
        _warn_of_rows(unused_rows, file)
    return rows


def _warn_of_rows(unused_rows: Mapping[tuple[str, ...], T], file: Path) -> None:
    """Warn that rows belong to no photo."""
    verb = "matches" if len(unused_rows) == 1 else "match"
    count = plural(len(unused_rows), "row")
    key, row = next(iter(unused_rows.items()))
    example = f"'{Path(*key)}' in line {row.line}"
    warnings.warn(f"{count} of '{file}' {verb} no image, such as {example}", stacklevel=4)


def _key(path: Path, table: Mapping[tuple[str, ...], T]) -> tuple[str, ...] | None:
    """The longest end of a path that the table has."""
    parts = path.parts
    ends = (parts[start:] for start in range(len(parts)))
    return next((end for end in ends if end in table), None)
