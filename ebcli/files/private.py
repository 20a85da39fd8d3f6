"""Directories that a process has for itself in others, while it has a lock on a file in them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import islink
from pathlib import Path
from typing import BinaryIO

from filelock import lock_descriptor

from ebcli.errors import as_output_error
from ebcli.files.naming import PRIVATE, PRIVATE_NAME, sha256
from ebcli.files.paths import file_digest, first_link, safe_open
from ebcli.files.records import read_records
from ebcli.files.results import Results

# In each private directory; locked by its run, and empty unless the directory is removed
_OF_RUN = "eb-saliency-run"


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
                # somebody's other file, which is not to be written to
                if os.fstat(lock.fileno()).st_nlink != 1:
                    continue
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
    results = Results(directory)
    results.update(read_records(directory))
    by_name = {stored_name(Path(path)): result for path, result in results.files.items()}
    for temporary in temporaries:
        result = by_name.get(temporary.name)
        if result is None or file_digest(temporary) != result.sha256:
            continue
        path = directory / result.path
        if first_link(directory, Path(result.path)) is None and not results.is_foreign(path):
            temporary.replace(path)


def stored_name(relative: Path) -> str:
    """The name of a file in a private directory, from its path below the output directory."""
    return sha256(os.fsencode(relative))
