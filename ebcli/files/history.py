"""Reading ``records.jsonl``: checked records, and what earlier runs did."""

from __future__ import annotations

import contextlib
import gc
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ebcli.errors import OutputError
from ebcli.files.naming import RECORDS, output_relpath
from ebcli.files.records import SCHEMA
from ebcli.files.regular import open_regular
from ebcli.files.sources import Source

_LONGEST_LINE = 1 << 25  # bytes; the longest lines list what each operation lost, for hundreds of classes
_HUGE = 2**63
_decoder = json.JSONDecoder()
_texts: Callable[[Any], tuple[str, str, str, str, str, str, str]] = operator.itemgetter(
    "input", "place", "configuration", "model", "weights", "layer", "method"
)


class ParsedRecord(NamedTuple):
    """A checked line of the records; see ``Record`` for the fields.

    Attributes:
        stamp: the input's size and modification time; None for a failure.
        results: each file's path below the output directory, size, and SHA-256 if there is one.
        classes: dictionaries with the fields of ``ClassRecord``.
        label, predicted, image_size: see ``Record``; the last one is not checked.
    """

    status: str
    input: str
    place: str
    configuration: str
    model: str
    weights: str
    layer: str
    method: str
    seconds: float
    error: str
    stamp: tuple[int, int] | None
    results: tuple[tuple[str, int, str | None], ...]
    classes: list[dict[str, Any]]
    label: int | None
    predicted: int | None
    image_size: Any


def parse_record(line: bytes) -> ParsedRecord | None:
    """Check one line of the records; None if it cannot be true.

    Anybody can write to a directory of results, so nothing is assumed about the line. Results are beside the input's
    path below the output directory, whatever directory the line names: the output directory may have moved.
    """
    try:
        text = line.decode()
        fields, end = _decoder.raw_decode(text)
        status, classes = fields["status"], fields["classes"]
        if text[end:].strip() or fields["schema"] != SCHEMA or status not in ("done", "failed"):
            return None
        texts = _texts(fields)
        words, stamp, results = list(texts), None, []
        if status == "done":
            stamp = _integer(fields["input_bytes"]), _integer(fields["input_mtime_ns"])
            results = _results(fields)
            paths = [path for path, _, _ in results]
            words += paths
            words += [_checked_class(one) for one in classes]
            pictures = len([path for path in paths if not path.endswith(".npz")])
            if pictures not in ((1, len(classes), 2 * len(classes)) if classes else (0,)):
                return None
        joined = "".join(words)  # raises for other types
        if not joined.isascii():
            os.fsencode(joined)  # raises for characters that paths cannot hold
        parts = f"/{fields['place'].replace(os.sep, '/')}/"
        if "\0" in joined or "//" in parts or "/./" in parts or "/../" in parts or (os.name == "nt" and ":" in parts):
            return None
        seconds = _number(fields["seconds"]) or 0.0
        label, predicted = (
            None if fields.get(name) is None else _integer(fields[name]) for name in ("label", "predicted")
        )
        return ParsedRecord(
            *(status, *texts, seconds, str(fields["error"]), stamp, tuple(results), classes, label, predicted),
            image_size=fields.get("image_size"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _results(fields: Mapping[str, Any]) -> list[tuple[str, int, str | None]]:
    names, sizes = fields["output"], fields["output_bytes"]
    digests = fields.get("output_sha256") or (None,) * len(names)
    folder, separator, stem = fields["place"].rpartition(os.sep)
    beside, prefix, results = folder + separator, stem + ".", []
    for path, size, digest in zip(names, sizes, digests, strict=True):
        name = path.rpartition(os.sep)[2]
        if not name.startswith(prefix):
            raise ValueError(name)
        results.append((beside + name, _integer(size), digest))
    return results


def _checked_class(one: dict[str, Any]) -> str:
    """Check a class, and return the name of its layer."""
    one["score"], one["mass"] = _number(one["score"]), _number(one["mass"])
    name, layer = one["name"], one.get("layer", "")
    if _integer(one["index"]) < 0 or type(one["blank"]) is not bool or type(layer) is not str:
        raise TypeError(one)
    if name is not None and type(name) is not str:
        raise TypeError(one)
    return layer


def _integer(value: Any) -> int:
    if type(value) is int and -_HUGE < value < _HUGE:
        return value
    raise TypeError(value)


def _number(value: Any) -> float | None:
    """A number for JSON, which has no NaN."""
    if value is None or type(value) is float or type(value) is int:
        return value if value is not None and -_HUGE < value < _HUGE else None
    raise TypeError(value)


def read_records(directory: Path) -> Iterator[ParsedRecord]:
    """The records of an output directory, oldest first, without the lines that cannot be true.

    Raises:
        OSError: there are none, or they are not a regular file.
    """
    with open_regular(directory / RECORDS, follow=False) as file:
        whole = True
        while line := file.readline(_LONGEST_LINE):
            starts, whole = whole, line.endswith(b"\n") or len(line) < _LONGEST_LINE
            if starts and whole and (record := parse_record(line)) is not None:
                yield record


@dataclass(frozen=True)
class History:
    """What earlier runs did in an output directory, according to its records.

    Attributes:
        written: each result file, relative to the directory, and the configuration that last wrote it.
        finished: for each input's path below the directory and configuration: the input's state and the results.
    """

    written: dict[str, str] = field(default_factory=dict)
    finished: dict[tuple[str, str], tuple[tuple[int, int] | None, tuple[Any, ...]]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> History:
        """The history of a directory, which need not exist.

        Raises:
            OutputError: its records cannot be read.
        """
        history = cls()
        try:
            with _no_garbage_collection():  # it would look through all that is read, again and again
                for record in read_records(directory):
                    history._add(record)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise OutputError(f"cannot read '{directory / RECORDS}': {error.strerror or error}") from error
        return history

    def is_finished(self, directory: Path, source: Source, configuration: str) -> bool:
        """Whether all results of a file exist, and were made from its present state with an equal configuration."""
        stamp, results = self.finished.get((str(output_relpath(source.path)), configuration), (None, ()))
        try:
            now = source.stamp()
            return stamp == (now.bytes, now.mtime_ns) and all(
                self.written[relpath] == configuration and (directory / relpath).stat().st_size == size
                for relpath, size in results
            )
        except OSError:
            return False

    def _add(self, record: ParsedRecord) -> None:
        configuration = sys.intern(record.configuration)
        key = (record.place, configuration)
        if record.stamp is None:
            self.finished.pop(key, None)
            return
        for relpath, _, _ in record.results:
            self.written[relpath] = configuration
        self.finished[key] = record.stamp, tuple([(relpath, size) for relpath, size, _ in record.results])


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
