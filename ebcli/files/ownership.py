"""Which files in an output directory this program wrote, and directories that a process has for itself there.

A file is its own if its SHA-256 is recorded; a directory while its process has a lock on a file in it.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from os.path import isfile, islink, lexists
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from ebcli.errors import OutputError, reason
from ebcli.files.naming import MARKER, PRIVATE, PRIVATE_NAME, RECORDS, parse_result_name, sha256
from ebcli.files.paths import first_link, safe_open
from ebcli.files.records import Result, read_records, records_of_run

_DIGEST = re.compile(rb'"([0-9a-f]{64})"')
_AT_A_TIME = 1 << 25  # bytes; no line is longer
# In each private directory; locked by its run, and empty unless the directory is removed
_OF_RUN = "eb-saliency-run"


class OwnFiles:
    """The files of an output directory that this program wrote.

        path in OwnFiles(directory)

    Results are in the records with their SHA-256; all other files, such as pages and settings, are in the marker file.
    Both are read when first needed, and what other runs have added since when a file is not found.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digests: set[bytes] = set()
        self._read = {RECORDS: 0, MARKER: 0}

    def __contains__(self, path: Path) -> bool:
        """Whether a file's content is that of one that this program wrote into the directory."""
        try:
            digest = file_digest(path).encode()
        except OSError:  # a link, or a directory
            return False
        if digest not in self._digests:
            for name in self._read:
                with suppress(OSError):
                    self._update(name)
        return digest in self._digests

    def _update(self, name: str) -> None:
        position = self._read[name]
        with safe_open(self._directory / name, follow=False) as file:
            file.seek(position)
            while (line := file.readline(_AT_A_TIME)).endswith(b"\n") or len(line) == _AT_A_TIME:
                position += len(line)
                self._digests.update(_DIGEST.findall(line))
        self._read[name] = position


class OwnResults:
    """The results of earlier runs, in whatever directories: ``path in OwnResults()``."""

    def __init__(self) -> None:
        self._own_files = cache(_own_files)

    def __contains__(self, path: Path) -> bool:
        if parse_result_name(path) is None:
            return False
        folders = Path(os.path.abspath(path)).parents  # noqa: PTH100 - links stay links
        return any(path in (self._own_files(folder) or ()) for folder in folders)


def _own_files(folder: Path) -> OwnFiles | None:
    """The files of an output directory; None if a directory is no such one."""
    if isfile(folder / RECORDS) or isfile(folder / MARKER):
        return OwnFiles(folder)
    return None


def file_digest(path: Path, *, follow: bool = False) -> str:
    """The SHA-256 of a regular file. Raises OSError for other files, and for links unless they are followed."""
    with safe_open(path, follow=follow) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(directory: Path) -> dict[Path, str | None]:
    """Every recorded result, relative to the directory, and what is wrong with it: it is missing or altered.

    None if it exists, and is as the last run that wrote it left it.

    Raises:
        ConfigurationError: the directory has no records.
    """
    results = {Path(result.path): result for record in records_of_run(directory) for result in record.results}
    return {path: _problem(directory, result) for path, result in results.items()}


def _problem(directory: Path, result: Result) -> str | None:
    if first_link(directory, Path(result.path)):
        return "behind a symbolic link"
    path = directory / result.path
    try:
        is_intact = path.stat().st_size == result.bytes and file_digest(path) == result.sha256
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return reason(error)
    if not is_intact:
        return "altered"
    return None


@contextmanager
def as_output_error(action: str) -> Iterator[None]:
    """Raise OutputError, which says what cannot be done, for any OSError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {action}: {reason(error)}") from error


@contextmanager
def private_directory(parent: Path | None = None, restore: bool = False) -> Iterator[Path]:
    """A directory in another one, for as long as it is needed; those that killed processes left there are removed.

    A file in it is locked meanwhile.

    Args:
        parent: the other one; None for that of the system's temporary files.
        restore: see ``finish_killed_runs``.

    Raises:
        OutputError: it cannot be written to.
    """
    parent = parent or Path(tempfile.gettempdir())
    finish_killed_runs(parent, restore)
    with as_output_error(f"write to '{parent}'"):
        private, lock = _locked_directory(parent)
    try:
        yield private
    finally:
        lock.close()
        shutil.rmtree(private, ignore_errors=True)


def _locked_directory(directory: Path) -> tuple[Path, BinaryIO]:
    while True:
        private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=directory))
        try:
            lock = (private / _OF_RUN).open("xb")
        except FileNotFoundError:  # another run took it for that of a killed one
            continue
        with suppress(OSError):  # a file system without locks; there, no run removes anything
            lock_descriptor(lock.fileno())
        if not os.fstat(lock.fileno()).st_size:  # else another run removed it before it was locked
            return private, lock
        lock.close()


def finish_killed_runs(directory: Path, restore: bool = True) -> None:
    """Remove the private directories of killed runs: those with such a name, a marker, and no lock.

    Args:
        directory: what they are in.
        restore: first move results in them that are recorded already to their places; not where others may write.
    """
    for private in directory.glob(f"{PRIVATE}*"):
        if PRIVATE_NAME.fullmatch(private.name) is None or islink(private):
            continue
        with suppress(OSError):  # of a run that was killed before it had a marker, it is empty
            private.rmdir()
        with suppress(OSError):  # another user's, already removed, or without such a file
            with safe_open(private / _OF_RUN, follow=False, flags=os.O_RDWR) as lock:
                if not lock_descriptor(lock.fileno(), blocking=False):  # in use
                    continue
                with suppress(OSError):
                    if restore:
                        _restore(directory, private)
                os.write(lock.fileno(), b"removed")
            shutil.rmtree(private)  # Windows removes no open file


def _restore(directory: Path, private: Path) -> None:
    """Move what a killed run stored and recorded to its place."""
    temporaries = set(private.iterdir()) - {private / _OF_RUN}
    if not temporaries:
        return
    own_files = OwnFiles(directory)
    latest: dict[str, Result] = {}
    for record in read_records(directory):
        latest.update((stored_name(Path(result.path)), result) for result in record.results)
    for temporary in temporaries:
        result = latest.get(temporary.name)
        if result is None or file_digest(temporary) != result.sha256:
            continue
        path = directory / result.path
        if first_link(directory, Path(result.path)) is None and (not lexists(path) or path in own_files):
            temporary.replace(path)


def stored_name(relative: Path) -> str:
    """The name of a file in a private directory, from its path below the output directory."""
    return sha256(os.fsencode(relative))
