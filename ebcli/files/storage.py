"""Local files, remote files through fsspec, and members of tar files: which exist, their state, and their bytes.

A URL is kept as a path, for which pathlib writes ``s3://bucket/a.jpg`` as ``s3:/bucket/a.jpg``. So a remote file has a
suffix, parts that patterns match, and a path below the output directory, as any other file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from ebcli.errors import ConfigurationError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # at least two letters: C: is a drive


@dataclass(frozen=True)
class Stamp:
    """The state of a file: its size in bytes and its modification time, 0 if a server does not report it."""

    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The present state of a local or remote file. Raises OSError if it does not exist."""
        if url_of(path) is None:
            status = path.stat()
            return cls(status.st_size, status.st_mtime_ns)
        with _remote(path) as (system, name):
            try:
                changed = int(system.modified(name).timestamp() * 1e9)
            except NotImplementedError:  # as over HTTP
                changed = 0
            return cls(int(system.info(name)["size"] or 0), changed)


@dataclass(frozen=True)
class Span:
    """The position of a member's bytes in a tar file.

    Attributes:
        tar: the tar file, local or remote.
        start, size: the first byte and the number of bytes.
    """

    tar: Path
    start: int
    size: int

    def read(self) -> bytes:
        if url_of(self.tar) is None:
            with self.tar.open("rb") as file:
                file.seek(self.start)
                return file.read(self.size)
        with _remote(self.tar) as (system, name):
            return bytes(system.cat_file(name, start=self.start, end=self.start + self.size))


def open_regular(path: Path, follow: bool = True) -> BinaryIO:
    """Open a local file to read. A named pipe would block for ever, so nothing but regular files is opened.

    Args:
        path: the file.
        follow: whether it may be a symbolic link.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    raise OSError(errno.EINVAL, "it is not a regular file")


def url_of(path: Path) -> str | None:
    """The URL that a path stands for; None for a local path."""
    scheme, *rest = path.parts or ("",)
    return f"{scheme}//{'/'.join(rest)}" if _SCHEME.fullmatch(scheme) else None


def read(path: Path) -> bytes:
    """A remote file's bytes. Raises OSError if it does not exist."""
    with _remote(path) as (system, name):
        return bytes(system.cat_file(name))


def walk(path: Path) -> list[Path]:
    """The remote files below a directory, or the file itself; also the path itself if nothing is found.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
    """
    try:
        with _remote(path) as (system, name):
            return [Path(system.unstrip_protocol(file)) for file in system.find(name)] or [path]
    except OSError:  # reading the file will tell
        return [path]


def members(path: Path) -> Iterator[tuple[Path, Span]]:
    """The files in a tar file, local or remote, with paths as if it were a directory.

    ``..`` in names is dropped. Files after a damaged part are not found.

    Raises:
        tarfile.TarError, OSError: it is not a tar file, is compressed, or cannot be read to its end.
    """
    with contextlib.ExitStack() as stack:
        file: IO[bytes]
        if url_of(path) is None:
            file = stack.enter_context(path.open("rb"))
        else:
            system, name = stack.enter_context(_remote(path))
            file = stack.enter_context(system.open(name, "rb"))
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isreg():
                    inside = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
                    yield path.joinpath(*inside), Span(path, member.offset_data, member.size)


@contextlib.contextmanager
def _remote(path: Path) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the file's name in it.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
        OSError: any error of the file system, with its reason.
    """
    url = url_of(path)
    assert url is not None
    try:
        import fsspec

        system, name = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{url.partition('://')[0]}:// cannot be read: {error}") from error
    try:
        yield system, name
    except FileNotFoundError as error:  # whose message is only the name
        why = error.__cause__ or "the server has no such file"
        raise FileNotFoundError(errno.ENOENT, f"it cannot be found ({why})") from error
    except (OSError, tarfile.TarError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"it cannot be read: {error or type(error).__name__}") from error
