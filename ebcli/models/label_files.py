"""Files of true classes. Imports no torch."""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ebcli.errors import ConfigurationError
from ebcli.models.classes import resolve_class

_HEADINGS = {"file", "filename", "image", "path"}
_LONGEST_LINE = 1 << 20  # characters; the reader refuses fields of this length


class LabelLine(NamedTuple):
    """A line of a file of labels: its number, counted from 1, and its class."""

    line: int
    label: int


Labels = Mapping[tuple[str, ...], LabelLine]


def read_labels(path: Path, categories: Sequence[str] | None, num_classes: int) -> Labels:
    """The rows of a CSV file of two columns, a file and its class by index or name; by the parts of the file's path.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or a file has two classes.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(iter(partial(file.readline, _LONGEST_LINE), ""))
            rows = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise ConfigurationError(f"cannot read labels from '{path}': {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"cannot read labels from '{path}': {error}") from error
    if rows and rows[0][1][0].strip().lower() in _HEADINGS:
        del rows[0]
    table: dict[tuple[str, ...], LabelLine] = {}
    for line, row in rows:
        if len(row) != 2:
            raise ConfigurationError(f"{path}, line {line}: {','.join(row)!r} must be a file, a comma, a class")
        try:
            label = resolve_class(categories, row[1].strip(), num_classes)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {line}: {error}") from error
        first = table.setdefault(Path(row[0]).parts, LabelLine(line, label))
        if first.label != label:
            raise ConfigurationError(
                f"{path}, line {line}: {row[0]!r} has class {label} here, but class {first.label} in line "
                f"{first.line}: keep one of them"
            )
    return table
