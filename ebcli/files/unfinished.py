"""What is finished of a result that takes long, kept beside the results so that a killed run can be resumed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import islink
from pathlib import Path

from filelock import lock_descriptor

from ebcli.errors import ImageError, OutputError, as_output_error
from ebcli.files.naming import UNFINISHED, sha256

_KEY = "key"


@contextmanager
def unfinished_work(parent: Path, place: str, key: str) -> Iterator[Path]:
    """A directory for parts of a result. It is removed at the end, but not if the work is given up or killed.

    Args:
        parent: the directory that it is in.
        place: what the result is of; there is one such directory for each.
        key: a hash of all that the parts depend on; those of another key are removed.

    Raises:
        OutputError: it cannot be written to.
        ImageError: another run is working there.
    """
    top = parent / UNFINISHED
    folder = top / sha256(os.fsencode(place), 16)
    if islink(top) or islink(folder):
        raise OutputError(f"cannot write to '{parent}': '{top}' has a symbolic link: remove it")
    with as_output_error(f"write to '{parent}'"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _KEY).open("a+")
    with lock:
        is_locked = True
        with suppress(OSError):  # a file system without locks
            is_locked = lock_descriptor(lock.fileno(), blocking=False)
        if not is_locked:
            raise ImageError("another run is explaining it: wait for it to end, or choose another --output")
        lock.seek(0)
        if lock.read() != key:
            with as_output_error(f"write to '{parent}'"):
                _clear(folder)
                lock.truncate(0)
                lock.write(key)
                lock.flush()
        yield folder
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are at work
        top.rmdir()


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _KEY:
            path.unlink()
