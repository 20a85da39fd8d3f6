"""Records: the outcome of each image as one JSON object per line in ``records.jsonl``, for users and later runs."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ebcli.files.naming import RECORDS

try:
    import fcntl
except ImportError:  # Windows: lines of two runs at once may mix
    fcntl = None  # type: ignore[assignment]

SCHEMA = 1
STAGES = ("network", "waiting", "decode", "draw", "encode", "write")  # the first two where the network is


@dataclass(frozen=True)
class ClassRecord:
    """One map of an image.

    Attributes:
        index, name: the class; the name is None if it is unknown.
        score: its score: a softmax or sigmoid probability, or the raw logit.
        mass: the sum of the marginal map: the probability that reached the layer.
        blank: the map is empty, so the picture shows none.
        losses: the probability lost at each operation, if requested.
        layer: the layer of the map.
        peak: the map's maximum; 1 is an even spread of all probability over its cells.
        at_border: its maximum lies at an edge of the center crop, beyond which there is more of the image.
        box: a detection's left, top, width and height, in pixels of the upright image.
        region: the box, area and polygon of the map's largest region, if requested; see ``ebcli.drawing.regions``.
    """

    index: int
    name: str | None
    score: float
    mass: float
    blank: bool
    losses: dict[str, float] | None = None
    layer: str = ""
    peak: float | None = None
    region: dict[str, Any] | None = None
    at_border: bool = False
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Record:
    """The outcome of one file.

    Attributes:
        input: its path as given.
        status: ``"done"``; ``"failed"``, see ``error``; ``"planned"`` in a dry run; ``"not an image"`` for other files
            in a directory, which are not written to the records.
        output: the result files: a picture for each of ``classes`` or one panel of all, then the ``.npz`` file. Of a
            video, a video for each of ``classes`` comes first.
        output_bytes: their sizes.
        classes: the maps in order; with several layers, each class once per layer.
        seconds: time spent on this image, without waiting.
        error: the reason of a failure.
        place: the input's path below the output directory; the results' names start with it.
        input_bytes, input_mtime_ns: the input's size and modification time; None if it could not be read.
        configuration: a hash of all settings that the results depend on.
        model, weights, layer, method: how the maps were computed.
        against: the indices of the classes contrasted with; empty for the class's dual, or if the map is marginal.
        output_sha256: the checksums of the result files.
        label, predicted: the true class and the most likely one, if the true one is known.
        image_size: the width and height of the upright image, if regions were requested.
        clips: the explained clips of a video, see ``ebcli.files.clips.Clips``.
        spent: the seconds of each of ``STAGES``; not written.
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
    against: tuple[int, ...] = ()
    output_sha256: tuple[str, ...] = ()
    label: int | None = None
    predicted: int | None = None
    image_size: tuple[int, int] | None = None
    clips: dict[str, Any] | None = None
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)

    def line(self) -> str:
        """The JSON object in ASCII, without a newline; bytes that are not UTF-8 are escaped as by ``os.fsdecode``."""
        fields = asdict(self)
        del fields["spent"]
        return json.dumps(_finite({"schema": SCHEMA, **fields}), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RecordFile:
    """``records.jsonl``; any number of threads, processes and machines may append to it.

    Raises:
        OSError: it cannot be written, or is not a regular file.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            self._file = os.open(directory / RECORDS, flags, 0o666)
        except OSError as error:
            reason = f"{RECORDS} is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise OSError(error.errno, reason) from error
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise OSError(errno.EINVAL, f"{RECORDS} is not a regular file")
        self._lock = threading.Lock()

    def append(self, record: Record) -> None:
        """Append a line, whole or not at all.

        Raises:
            OSError: it does not fit.
        """
        line = record.line().encode() + b"\n"
        with self._lock, _locked(self._file):
            end = os.fstat(self._file).st_size
            # a killed run may have left half a line
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
        """Close the file."""
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
