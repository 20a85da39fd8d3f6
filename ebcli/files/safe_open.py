"""Opening local files safely, and the state of a file."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Stamp(NamedTuple):
    """The state of a file: its size in bytes and its modification time; 0 if a server does not report it."""

    bytes: int
    mtime_ns: int


def safe_open(path: Path, follow: bool = True, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a local file. A named pipe would block for ever, so nothing but regular files is opened.

    Args:
        path: the file.
        follow: whether it may be a symbolic link.
        flags: as for ``os.open``. Whatever they are, the file's own methods only read.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    raise OSError(errno.EINVAL, "it is not a regular file")


def first_link(directory: Path, relpath: Path) -> Path | None:
    """The first symbolic link on the way from a directory to a path below it, if any."""
    steps = (directory / step for step in (*reversed(relpath.parents), relpath) if step.parts)
    return next((step for step in steps if os.path.islink(step)), None)
