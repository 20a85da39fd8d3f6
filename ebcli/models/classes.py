"""Classes by index or by name, and files of them. Imports no torch."""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ebcli.errors import ConfigurationError, UnknownClassError, closest, did_you_mean, reason
from ebcli.files.naming import from_cell

Names = Sequence[str] | None  # of classes, in the order of the network's outputs
NamesOfHeads = Names | Mapping[str, Sequence[str]] | Mapping[int, Sequence[str]]  # or those of each head
NamesByHead = tuple[str, ...] | Mapping[str, tuple[str, ...]]  # the same, to be printed
Texts = Sequence[str]  # that are classes

_MOST_BYTES = 1 << 24  # of a file of class names
# Control characters and halves of characters; line and paragraph separators; overrides of the direction of text
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")
_MAX_NAMES = 5  # names in a message
_HEADINGS = {"file", "filename", "image", "path", "photo"}
_LONGEST_LINE = 1 << 20  # characters; the reader refuses fields of this length
_LIKE = 0.6  # of 1: names to choose among, where a wrong one does no harm


def resolve_class(categories: Names, target: str | int, num_classes: int | None = None) -> int:
    """Index of a class given by index or by name.

        resolve_class(categories, 281)            # 281
        resolve_class(categories, "281")          # 281
        resolve_class(categories, "Tabby")        # 281: case does not matter
        resolve_class(categories, "tiger cat")    # 282
        resolve_class(categories, "cardoon")      # 946: a whole word of only one name

    Args:
        categories: class names in the order of the output units; None if unknown.
        target: an index, as a number or as text, or a name.
        num_classes: number of output units; None for as many as there are categories.

    Raises:
        ConfigurationError: no class matches, or several do; the message lists the closest or the matching names.
    """
    indices = matching_classes(categories, target, num_classes)
    if len(indices) > 1 and categories is not None:
        names = [f"{index} {categories[index]!r}" for index in indices[:_MAX_NAMES]]
        matches = ", ".join(names)
        num_more = len(indices) - len(names)
        if num_more:
            matches += f" and {num_more} more"
        raise ConfigurationError(f"class {str(target)!r} matches {matches}: give the full name or the index")
    return indices[0]


def matching_classes(categories: Names, target: str | int, num_classes: int | None = None) -> tuple[int, ...]:
    """Indices of the classes that an index or a name can mean.

    An exact match wins over one that ignores case, as ImageNet has both a dog "Cardigan" and a garment "cardigan". Then
    come names that list it among synonyms, as in "tabby, tabby cat", and last those that have it as whole words. Names
    that only have it inside a word, as "crate" has "rat", are suggested.

    Args:
        categories: class names in the order of the output units; None if unknown.
        target: an index, as a number or as text, or a name.
        num_classes: number of output units; None for as many as there are categories.

    Raises:
        ConfigurationError: no class matches; the message lists the closest names.
    """
    if num_classes is None and categories is not None:
        num_classes = len(categories)
    text = str(target).strip()
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):  # int() also takes 1_0
        return _with_name(categories, text, num_classes)
    index = int(text)
    if index < 0 or (num_classes is not None and index >= num_classes):
        valid = "0 or more" if num_classes is None else f"0 to {num_classes - 1}"
        raise ConfigurationError(f"class {index} does not exist: valid indices are {valid}")
    return (index,)


def printable(name: str) -> str:
    """A class name in which control characters, line breaks and text direction overrides are replaced by U+FFFD.

    Class names reach terminals, pages and file names, and may come from a downloaded model.
    """
    return _UNSAFE.sub("\ufffd", name)


def _with_name(categories: Names, name: str, count: int | None) -> tuple[int, ...]:
    if categories is None:
        problem = f"the class names of this network are unknown: give {name!r} as an index"
        if count is not None:
            problem += f", 0 to {count - 1}"
        raise ConfigurationError(problem)
    lowercase = name.casefold()
    literal = re.escape(lowercase)
    names = [category.casefold() for category in categories]
    parts: list[str] = []
    if lowercase:
        matches = [index for index, category in enumerate(categories) if category == name]
        for pattern in (rf"\A{literal}\Z", rf"(\A|, ?){literal}(,|\Z)", rf"(?<!\w){literal}(?!\w)"):
            matches = matches or [index for index, text in enumerate(names) if re.search(pattern, text)]
        if matches:
            return tuple(matches)
        parts = [category for category, text in zip(categories, names, strict=True) if lowercase in text]
    advice = closest(name, categories) or did_you_mean(parts[:_MAX_NAMES])
    advice = (
        advice
        or f"give one of the {len(categories)} class names or an index, or use the model clip/NAME for any text"
    )
    like = dict(zip(names, categories, strict=True))
    close = [like[key] for key in difflib.get_close_matches(lowercase, like, cutoff=_LIKE)]
    raise UnknownClassError(name, advice, dict.fromkeys([*close, *parts[:_MAX_NAMES]]))


def printable_names(names: NamesOfHeads) -> NamesByHead:
    """Class names, or those of each head, as they can be printed; empty if there are none."""
    if isinstance(names, Mapping):
        return {str(head): tuple(map(printable, head_names)) for head, head_names in names.items()}
    return tuple(map(printable, names or ()))


def check_texts(name: str, texts: Names) -> None:
    """Raise ConfigurationError if there are no texts to compare images with, or one is empty."""
    if not texts:
        advice = "give one, as in --target 'a red car', or a file with --class-names"
        raise ConfigurationError(f"{name} compares images with texts: {advice}")
    if not all(text.strip() for text in texts):
        raise ConfigurationError("a text to compare images with is empty: describe what to look for")


def read_class_names(path: Path, noun: str = "class names") -> list[str]:
    """Read class names, in the order of the logits, from a file.

    The file has one name per line, or is JSON: a list of names, or an object that maps indices to names, such as
    ``{"0": "tench", "1": "goldfish"}`` or ImageNet's ``{"0": ["n01440764", "tench"], ...}``.

    Args:
        path: the file.
        noun: what it has, for messages.

    Raises:
        ConfigurationError: the file cannot be read, has another format, or lacks a name.
    """
    title = f"{noun} in '{path}'"
    content = _read_names(path, noun)
    if isinstance(content, dict):
        keys = list(map(str, range(len(content))))
        if content.keys() != set(keys):
            raise ConfigurationError(f'{title} must have the keys "0" to "{len(content) - 1}"')
        content = [content[key] for key in keys]
    names = []
    if isinstance(content, list):
        names = [entry[-1] if isinstance(entry, list) and entry else entry for entry in content]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        formats = "one per line, or in JSON a list, or an object with indices and names"
        raise ConfigurationError(f"{title} must be {formats}")
    return [name.strip() for name in names]


def _read_names(path: Path, noun: str) -> Any:
    """The lines of a text file, or what a JSON file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigurationError(f"it has more than {_MOST_BYTES} bytes")
        text = content.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            return json.loads(text)
        return [line for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:  # invalid UTF-8 or JSON; JSON nested too deeply
        raise ConfigurationError(f"cannot read {noun} from '{path}': {error}") from error


def read_rows(path: Path, noun: str) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file, each with the number of its last line, counted from 1.

    Args:
        path: the file.
        noun: what it has, for messages.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(iter(partial(file.readline, _LONGEST_LINE), ""))
            return [(reader.line_num, [*map(from_cell, row)]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"cannot read {noun} from '{path}': {reason(error)}") from error


def is_heading(row: Sequence[str]) -> bool:
    """Whether a row that begins with a file names the columns."""
    return row[0].strip().lower() in _HEADINGS


class LabelLine(NamedTuple):
    """A line of a file of labels: its number, counted from 1, and its class."""

    line: int
    label: int


Labels = Mapping[tuple[str, ...], LabelLine]


def read_labels(path: Path, categories: Names, num_classes: int) -> Labels:
    """The rows of a CSV file of two columns, a file and its class by index or name; by the parts of the file's path.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or a file has two classes.
    """
    rows = read_rows(path, "labels")
    if rows and is_heading(rows[0][1]):
        del rows[0]
    table: dict[tuple[str, ...], LabelLine] = {}
    for line, row in rows:
        title = f"{path}, line {line}"
        if len(row) != 2:
            raise ConfigurationError(f"{title}: {','.join(row)!r} must be a file, a comma, a class")
        photo, target = row
        try:
            label = resolve_class(categories, target.strip(), num_classes)
        except ConfigurationError as error:
            raise ConfigurationError(f"{title}: {error}") from error
        first = table.setdefault(Path(photo).parts, LabelLine(line, label))
        if first.label != label:
            problem = f"{photo!r} has class {label}, but {first.label} in line {first.line}"
            raise ConfigurationError(f"{title}: {problem}: keep one")
    return table
