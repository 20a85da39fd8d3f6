"""Files behind URLs, through fsspec, and files inside tar files: what is there, how it looks now, and its bytes.

A URL is kept as a path, of which pathlib spells ``s3://bucket/a.jpg`` as ``s3:/bucket/a.jpg``: so a remote file has a
suffix, parts that patterns fit, and a place below the output directory as any other file has.
"""

from __future__ import annotations

import contextlib
import errno
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ebcli.errors import ConfigurationError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # of more than one letter: C: is a drive


@dataclass(frozen=True)
class Stamp:
    """What tells one state of a file from another: its size in bytes, and when it was last changed.

    Of a remote file whose server does not tell when, that is 0.
    """

    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The state now, of a local file or a remote one. Raises OSError where there is no such file."""
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
    """Where in a tar file a member's bytes are.

    Attributes:
        tar: the tar file, local or remote.
        start, size: the first one, and how many.
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


def url_of(path: Path) -> str | None:
    """The URL that a path stands for; None for a local path."""
    scheme, *rest = path.parts or ("",)
    return f"{scheme}//{'/'.join(rest)}" if _SCHEME.fullmatch(scheme) else None


def read(path: Path) -> bytes:
    """A remote file's bytes. Raises OSError where there is no such file."""
    with _remote(path) as (system, name):
        return bytes(system.cat_file(name))


def walk(path: Path) -> list[Path]:
    """The remote files below a directory, or the file itself; the path itself as well where nothing is to be found.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
    """
    try:
        with _remote(path) as (system, name):
            return [Path(system.unstrip_protocol(file)) for file in system.find(name)] or [path]
    except OSError:  # for reading the file to tell
        return [path]


def members(path: Path) -> Iterator[tuple[Path, Span]]:
    """The files inside a tar file, local or remote, with paths as if the tar file were a directory.

    Names that climb out of it are taken as if they did not. What lies behind damage is not found.

    Raises:
        tarfile.TarError, OSError: it is no tar file, is compressed, or cannot be read to its end.
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
    """The file system of a URL, and the file's name there; each kind of server has errors of its own.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
        OSError: whatever goes wrong inside, with a sentence.
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
    except FileNotFoundError as error:  # which has the name and nothing else, whatever the reason
        why = error.__cause__ or "the server has no such file"
        raise FileNotFoundError(errno.ENOENT, f"it cannot be found ({why})") from error
    except (OSError, tarfile.TarError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"it cannot be read: {error or type(error).__name__}") from error
