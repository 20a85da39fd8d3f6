"""Directories that a process has for itself until it ends, and the removal of those that killed processes left."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from ebcli.errors import OutputError
from ebcli.files.naming import PRIVATE, PRIVATE_NAME
from ebcli.files.ownership import OwnFiles, file_digest
from ebcli.files.records import Result, read_records
from ebcli.files.safe_open import first_link, safe_open

_OF_RUN = "eb-saliency-run"  # in each private directory; locked by its run, and empty unless the directory is removed


@contextlib.contextmanager
def trying_to(what: str) -> Iterator[None]:
    """Raise OutputError, which says what cannot be done, for any OSError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {what}: {error.strerror or error}") from error


@contextlib.contextmanager
def scratch(shared: Path | None = None, restore: bool = False) -> Iterator[Path]:
    """A directory in another one, for as long as it is needed; those that killed processes left there are removed.

    A file in it is locked meanwhile.

    Args:
        shared: the other one; None for that of the system's temporary files.
        restore: see ``finish_killed_runs``.

    Raises:
        OutputError: it cannot be written to.
    """
    shared = shared or Path(tempfile.gettempdir())
    finish_killed_runs(shared, restore)
    with trying_to(f"write to '{shared}'"):
        private, lock = _locked_directory(shared)
    try:
        yield private
    finally:
        lock.close()
        shutil.rmtree(private, ignore_errors=True)


def _locked_directory(directory: Path) -> tuple[Path, IO[bytes]]:
    while True:
        private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=directory))
        try:
            lock = (private / _OF_RUN).open("xb")
        except FileNotFoundError:  # another run took it for that of a killed one
            continue
        with contextlib.suppress(OSError):  # a file system without locks; there, no run removes anything
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
        if PRIVATE_NAME.fullmatch(private.name) is None or os.path.islink(private):
            continue
        with contextlib.suppress(OSError):  # of a run that was killed before it had a marker, it is empty
            private.rmdir()
        with contextlib.suppress(OSError):  # another user's, already removed, or without such a file
            with safe_open(private / _OF_RUN, follow=False, flags=os.O_RDWR) as lock:
                if not lock_descriptor(lock.fileno(), blocking=False):  # in use
                    continue
                with contextlib.suppress(OSError):
                    if restore:
                        _restore(directory, private)
                os.write(lock.fileno(), b"removed")
            shutil.rmtree(private)  # Windows removes no open file


def _restore(directory: Path, private: Path) -> None:
    """Move what a killed run stored and recorded to its place."""
    stored = [path for path in private.iterdir() if path.name != _OF_RUN]
    own, latest = OwnFiles(directory), dict[Path, Result]()
    for record in read_records(directory) if stored else ():
        latest.update((private / stored_name(Path(result.path)), result) for result in record.results)
    for temporary in stored:
        result = latest.get(temporary)
        if result is None or file_digest(temporary) != result.sha256 or first_link(directory, Path(result.path)):
            continue
        path = directory / result.path
        if not os.path.lexists(path) or path in own:
            temporary.replace(path)


def stored_name(relative: Path) -> str:
    """The name of a file in a private directory, from its path below the output directory."""
    return hashlib.sha256(os.fsencode(relative)).hexdigest()
