"""What became of each image: one JSON object a line in ``records.jsonl``, written, and read again by later runs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ebcli.files.naming import output_relpath
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp

try:
    import fcntl
except ImportError:  # Windows: lines of two runs at once may then meet
    fcntl = None  # type: ignore[assignment]

SCHEMA = 1
FILE = "records.jsonl"


@dataclass(frozen=True)
class ClassRecord:
    """One class of an image.

    Attributes:
        index, name: the class, by number and (where the weights tell) by name.
        score: its softmax probability.
        mass: what the marginal map sums to: the share of the probability that reached the layer.
        blank: the map had nothing to show, and the picture shows none.
        losses: how much of the probability got lost at which operations, where that was asked for.
        layer: where the map is.
        peak: the map's greatest value, 1 being an even spread of all probability over its cells.
    """

    index: int
    name: str | None
    score: float
    mass: float
    blank: bool
    losses: dict[str, float] | None = None
    layer: str = ""
    peak: float | None = None


@dataclass(frozen=True)
class Record:
    """What became of one file.

    Attributes:
        input: its path as it was given.
        status: ``"done"``; ``"failed"``, see ``error``; ``"planned"``, in a dry run; ``"not an image"``, for a file
            found in a directory: such files have no line among the records.
        output: the result files: a picture for each of ``classes``, or one panel of all, then the arrays if they were
            asked for.
        output_bytes: their sizes.
        classes: the maps by their classes, in order; with several layers, each class once for each of them.
        seconds: how long this image took, waiting not counted.
        error: the reason of a failure.
        place: the input's path below the output directory, which the results' names start with.
        input_bytes, input_mtime_ns: the input's size and time of change; None where it could not be read.
        configuration: a hash of everything that the results depend on besides the image.
        model, weights, layer, method: what was computed with.
    """

    input: str
    status: Literal["done", "failed", "planned", "not an image"]
    output: tuple[str, ...] = ()
    output_bytes: tuple[int, ...] = ()
    classes: tuple[ClassRecord, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    place: str = ""
    input_bytes: int | None = None
    input_mtime_ns: int | None = None
    configuration: str = ""
    model: str = ""
    weights: str = ""
    layer: str = ""
    method: str = ""

    def line(self) -> str:
        """The JSON object, without a line's end; in ASCII, bytes that are no text as in ``os.fsdecode``."""
        return json.dumps(_finite({"schema": SCHEMA, **asdict(self)}), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class History:
    """What the records of earlier runs say about an output directory.

    Attributes:
        written: each result file, relative to the directory: the configuration it was last written with, and its
            size.
        finished: of each input's place and configuration that were last done, the input's state and the results.
    """

    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    finished: dict[tuple[str, str], tuple[Stamp, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> History:
        """The history of a directory; lines that are cut short, or from later versions, do not count."""
        history = cls()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), (directory / FILE).open("rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    history._add(json.loads(line))
        return history

    def is_finished(self, directory: Path, source: Source, configuration: str) -> bool:
        """Whether a file's results are all there, made from the file as it is now with an equal configuration."""
        stamp, results = self.finished.get((str(output_relpath(source.path)), configuration), (None, ()))
        try:
            return stamp == source.stamp() and all(
                self.written[result] == (configuration, (directory / result).stat().st_size) for result in results
            )
        except OSError:
            return False

    def _add(self, entry: Mapping[str, Any]) -> None:
        if entry["schema"] != SCHEMA:
            return
        place, configuration = Path(entry["place"]), entry["configuration"]
        key = (str(place), configuration)
        if entry["status"] != "done":
            self.finished.pop(key, None)
            return
        # Results lie beside their input's place; their paths here started from where that run was started
        results = tuple(str(place.with_name(Path(path).name)) for path in entry["output"])
        for result, size in zip(results, entry["output_bytes"], strict=True):
            self.written[result] = (configuration, size)
        self.finished[key] = Stamp(entry["input_bytes"], entry["input_mtime_ns"]), results


class RecordFile:
    """``records.jsonl``, to be appended to by any number of threads, processes and machines."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._lock = threading.Lock()

    def append(self, record: Record) -> None:
        """Add a whole line, or none.

        Raises:
            OSError: there is no room for it.
        """
        line = record.line().encode() + b"\n"
        with self._lock, _locked(self._file):
            end = os.fstat(self._file).st_size
            # a run that was killed while it wrote, or a machine that crashed, may have left half a line
            if end and os.pread(self._file, 1, end - 1) != b"\n":
                line = b"\n" + line
            try:
                written = os.write(self._file, line)
                if written < len(line):  # the file system is full: the rest would say why
                    os.write(self._file, line[written:])
            except OSError:
                os.ftruncate(self._file, end)
                raise

    def close(self) -> None:
        """End it."""
        os.close(self._file)


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    with contextlib.suppress(OSError):  # some network file systems know no locks
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
