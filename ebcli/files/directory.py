"""The output directory: what may be replaced there, and the only place that writes."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from ebcli.errors import ConfigurationError, OutputError
from ebcli.files.naming import PRIVATE, is_own, parse_result_name
from ebcli.files.records import History, Record, RecordFile

try:
    import fcntl
except ImportError:  # Windows: what a killed run has left stays
    fcntl = None  # type: ignore[assignment]


def refuse_foreign_files(
    directory: Path, places: Iterable[Path], is_result: Callable[[Path], bool], history: History
) -> None:
    """Make sure that nothing is in the way of the results but what this program wrote.

    Args:
        directory: the output directory.
        places: those of the inputs below it, as of ``output_relpath``.
        is_result: whether the name of a file beside one of these places may come to be a result's.
        history: what earlier runs wrote.

    Raises:
        ConfigurationError: something is; the message names the first few.
    """
    wanted: dict[Path, set[str]] = defaultdict(set)
    for place in places:
        wanted[place.parent].add(place.name)
    foreign = sorted(itertools.islice(_foreign(directory, wanted, is_result, history), 4))
    if foreign:
        shown = ", ".join(f"'{path}'" for path in foreign[:3]) + (" and others" if foreign[3:] else "")
        raise ConfigurationError(
            f"{shown} would be replaced, but this program did not write {'them' if foreign[1:] else 'it'}: "
            "choose another --output, or pass --overwrite"
        )


def _foreign(
    directory: Path, wanted: Mapping[Path, set[str]], is_result: Callable[[Path], bool], history: History
) -> Iterator[Path]:
    for folder, names in wanted.items():
        try:
            entries = list(os.scandir(directory / folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OutputError(f"cannot write to '{directory / folder}': {error.strerror}") from error
        for entry in entries:
            path = folder / entry.name
            place = parse_result_name(path)
            if place is None or place[0].name not in names or not is_result(path):
                continue
            if str(path) not in history.written and not is_own(directory / path):
                yield directory / path


@dataclass(frozen=True)
class ResultFiles:
    """Writes results, from any process and any machine that sees the output directory.

    Attributes:
        directory: the output directory.
        private: the run's own directory there.
        overwrite: replace files of others, too.
    """

    directory: Path
    private: Path
    overwrite: bool

    def write(self, files: Mapping[Path, bytes], known: Container[str]) -> None:
        """Write one image's results; all are safely stored before the first is put in its place.

        Args:
            files: paths below the directory, and contents.
            known: paths of which the records say that this program wrote them.

        Raises:
            OutputError: there is no room, or something is in the way.
        """
        stored: list[tuple[Path, Path]] = []
        path = self.directory
        try:
            for relative, content in files.items():
                path = self.directory / relative
                stored.append((self.private / uuid4().hex, path))
                with stored[-1][0].open("xb") as file:
                    file.write(content)
            for (temporary, path), relative in zip(stored, files, strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not self._may_replace(path, relative, known):
                    raise OutputError(
                        f"'{path}' has come to be since this run began, and this program did not write it: "
                        "move it away, or pass --overwrite"
                    )
                temporary.replace(path)
        except OSError as error:
            raise OutputError(f"cannot write '{path}': {error.strerror or error}") from error
        finally:
            for temporary, _ in stored:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def _may_replace(self, path: Path, relative: Path, known: Container[str]) -> bool:
        return self.overwrite or str(relative) in known or not os.path.lexists(path) or is_own(path)


class OutputFolder:
    """An output directory while one run works in it.

    Files are first written whole into a directory of the run's own, ``.eb-saliency-*``, and then renamed: at
    every moment a result is absent, what it was before, or whole. What killed runs have left there is removed by
    the next run; that a run is alive shows in its lock on that directory.

    Args:
        directory: made if it is not there.
        history: what earlier runs wrote.
        overwrite: replace files of others, too.

    Attributes:
        files: writes results; can be sent to other processes.

    Raises:
        OutputError: it cannot be written to.
    """

    def __init__(self, directory: Path, history: History, overwrite: bool) -> None:
        self._directory, self._history = directory, history
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _sweep(directory)
            private, self._lock = _private_directory(directory)
            self.files = ResultFiles(directory, private, overwrite)
            self._records = RecordFile(directory)
        except OSError as error:
            raise OutputError(f"cannot write to '{directory}': {error.strerror or error}") from error

    def write(self, files: Mapping[Path, bytes]) -> None:
        """Write one image's results, as ``ResultFiles.write`` does."""
        self.files.write(files, self._history.written)

    def record(self, record: Record) -> None:
        """Append to the records.

        Raises:
            OutputError: there is no room.
        """
        try:
            self._records.append(record)
        except OSError as error:
            raise OutputError(f"cannot write the records in '{self._directory}': {error.strerror}") from error

    def close(self) -> None:
        """Remove what the run kept for itself."""
        self._records.close()
        shutil.rmtree(self.files.private, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _private_directory(directory: Path) -> tuple[Path, int | None]:
    """A new directory in another one, and the lock on it."""
    while True:
        private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=directory))
        if fcntl is None:
            return private, None
        lock = os.open(private, os.O_RDONLY)
        with contextlib.suppress(OSError):  # where there are no locks, no run can sweep either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if private.exists():  # else another run was quicker, and took it for a killed run's
            return private, lock
        os.close(lock)


def _sweep(directory: Path) -> None:
    """Remove the private directories of runs that are no more."""
    for private in directory.glob(f"{PRIVATE}*") if fcntl is not None else ():
        with contextlib.suppress(OSError):  # alive, another user's, or gone already
            lock = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(private)
            finally:
                os.close(lock)
