"""Local files, remote files, and members of tar files: which exist, their state, and their bytes.

A URL is kept as a path, for which pathlib writes ``s3://bucket/a.jpg`` as ``s3:/bucket/a.jpg``. So a remote file has a
suffix, parts that patterns match, and a path below the output directory, as any other file.
"""

import errno
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple
from urllib.request import url2pathname

from ebcli.datatypes.explanation import JsonObject
from ebcli.errors import ConfigurationError, import_optional, reason
from ebcli.files.paths import (
    DEFAULT,
    SLOWEST,
    FileState,
    RemoteOptions,
    path_of,
    safe_open,
    too_large,
    unreadable,
    url_of,
)

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
_WEB = ("http://", "https://")
_LARGEST_FILE = 1 << 60
_LARGEST_HEADER = 1 << 24  # bytes; for names and other metadata in tar files


def _web() -> ModuleType:
    """The module for the web, whose packages take as long to import as a local photo to draw."""
    from ebcli.files import web

    return web


def stamp_of(path: Path, options: RemoteOptions = DEFAULT) -> FileState:
    """The present state of a local or remote file. Raises OSError if it does not exist."""
    url = url_of(path)
    if url is None:
        status = path.stat()
        return FileState(status.st_size, status.st_mtime_ns)
    if url.startswith(_WEB):
        return _web().head(url, options)
    with _remote(url, options) as (system, name, limit):
        try:
            mtime_ns = int(system.modified(name).timestamp() * 1e9)
        except (NotImplementedError, AttributeError):  # the server does not say
            mtime_ns = 0
        return FileState(int(system.info(name, **limit)["size"] or 0), mtime_ns)


class Span(NamedTuple):
    """The position of a member's bytes in a tar file.

    Attributes:
        tar: the tar file, local or remote.
        start, size: the first byte and the number of bytes.
    """

    tar: Path
    start: int
    size: int

    def read(self, options: RemoteOptions = DEFAULT) -> bytes:
        """The bytes. Raises OSError if they cannot be read, or are more than the options allow."""
        if self.size > options.max_bytes:
            raise too_large(options.max_bytes)
        url = url_of(self.tar)
        end = self.start + self.size
        if url is None:
            with safe_open(self.tar) as file:
                file.seek(self.start)
                content = file.read(self.size)
        elif not self.size:
            content = b""
        elif url.startswith(_WEB):
            content = _web().fetch(url, options, (self.start, end)).content
        else:
            with _remote(url, options) as (system, name, limit):
                content = bytes(system.cat_file(name, start=self.start, end=end, **limit))
        if len(content) < self.size:
            raise unreadable("it is truncated")
        return content


def without_file_scheme(path: Path) -> Path:
    """``file:///data/a.jpg`` -> ``/data/a.jpg``; other paths and URLs as they are."""
    scheme, *parts = path.parts or ("",)
    if scheme != "file:":
        return path
    return Path(url2pathname(f"/{'/'.join(parts)}"))


def read(path: Path, options: RemoteOptions = DEFAULT) -> tuple[FileState, bytes]:
    """A remote file's state and bytes, in one request. Raises OSError if it cannot be read, or is too large."""
    url = url_of(path)
    assert url is not None
    if url.startswith(_WEB):
        response = _web().fetch(url, options)
        return response.state, response.content
    stamp = stamp_of(path, options)
    if stamp.bytes > options.max_bytes:
        raise too_large(options.max_bytes)
    with _remote(url, options) as (system, name, limit):
        return stamp, bytes(system.cat_file(name, **limit))


class Listing(NamedTuple):
    """The files below a directory, and the reason why there may be more, or None."""

    files: list[Path]
    problem: str | None = None


def list_remote(path: Path, options: RemoteOptions = DEFAULT) -> Listing:
    """The remote files below a directory; the path itself if it is a file, or if nothing is found.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
    """
    url = url_of(path)
    assert url is not None
    files: list[Path] = []
    problem = None
    if url.startswith(_WEB):
        if path.suffix or "?" in path.name:  # to look for links in it would be to fetch it
            return Listing([path])
        try:
            files.extend(map(path_of, _web().files_below(url, options)))
        except OSError as error:
            problem = error.strerror
    else:
        with suppress(OSError), _remote(url, options) as (system, name, limit):  # reading the file will tell
            all_pages = {key: SLOWEST * seconds for key, seconds in limit.items()}
            files = [path_of(system.unstrip_protocol(file)) for file in system.find(name, **all_pages)]
    files = [file for file in files if file.is_relative_to(path)]
    if not files and not problem:
        return Listing([path])
    return Listing(files, problem)


class _SafeTarInfo(tarfile.TarInfo):
    """A member whose header cannot make the reader go back, or read more than a header's worth of metadata."""

    def _block(self, count: int) -> int:
        limit = _LARGEST_FILE if self.isreg() else _LARGEST_HEADER  # others have names and the like
        if not 0 <= count < limit:
            raise tarfile.ReadError("a header is broken")
        return int(super()._block(count))  # type: ignore[misc]


def tar_members(path: Path, options: RemoteOptions = DEFAULT) -> tuple[dict[Path, Span], str | None]:
    """The files in a tar file, local or remote, with paths as if it were a directory.

    As in an extracted tar file, the last of several members of one name counts, hard links are files, and a leading
    ``/`` is dropped. Members with ``..`` in their names are skipped.

    Returns:
        The files, and the reason why there may be more, or None.
    """
    spans: dict[Path, Span] = {}
    num_outside = 0
    try:
        with (
            _open_remote(path, options) as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=_SafeTarInfo) as archive,
        ):
            size = file.seek(0, os.SEEK_END)
            for member in iter(archive.next, None):
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps all of them
                if not (member.isreg() or member.islnk()):
                    continue
                name = _inside(path, member.name)
                if name is None:
                    num_outside += 1
                    continue
                span = Span(path, member.offset_data, member.size)
                if member.islnk():
                    target = _inside(path, member.linkname)
                    if target not in spans:
                        continue
                    span = spans[target]
                spans[name] = span
                if span.start + span.size > size:
                    raise tarfile.ReadError("unexpected end of data")
    except OSError as error:
        return spans, reason(error)
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
        return spans, f"it cannot be read to its end as an uncompressed tar file ({reason(error)})"
    if num_outside:
        return spans, f"it has {num_outside} files with .. in their names, which were skipped"
    return spans, None


def _inside(tar: Path, name: str) -> Path | None:
    parts = [part for part in PurePosixPath(name).parts if part != "/"]
    if not parts or os.pardir in parts or "\0" in name:
        return None
    return tar.joinpath(*parts)


@contextmanager
def _open_remote(path: Path, options: RemoteOptions) -> Iterator[BinaryIO]:
    """A local or remote file, to read parts of it."""
    url = url_of(path)
    if url is None:
        with safe_open(path) as file:
            yield file
    elif url.startswith(_WEB):
        yield _web().WebFile(url, options)
    else:
        with _remote(url, options) as (system, name, _), system.open(name, "rb") as file:
            yield file


class _RemoteFile(NamedTuple):
    """A file system, the name of a file in it, and a limit on the time of its methods, where it knows one."""

    system: Any
    name: str
    limit: dict[str, float]


@contextmanager
def _remote(url: str, options: RemoteOptions) -> Iterator[_RemoteFile]:
    """The file system of a URL.

    Raises:
        ConfigurationError: the package for this kind of URL is missing.
        OSError: any error of the file system, with its reason.
    """
    protocol = url.partition("://")[0]
    readable = f"only URLs of {', '.join(('http', 'https', *_PACKAGES))} and file can be read"
    if protocol not in _PACKAGES or "::" in url:  # "::" chains file systems, some of which run programs
        raise unreadable(f"{readable}, without '::' in them")
    if os.pardir in url.split("/"):
        raise unreadable(f"{readable}, without '..' in them: rename the object")
    if options.login:
        raise unreadable(f"{protocol}:// takes no password: set the environment variables of its package")
    settings: JsonObject = {}
    if protocol == "s3":
        settings["config_kwargs"] = {
            "connect_timeout": options.timeout,
            "read_timeout": options.timeout,
            "retries": {"total_max_attempts": 1 + options.retries},
        }
    import_optional(_PACKAGES[protocol])
    import fsspec
    from fsspec.asyn import AsyncFileSystem
    from fsspec.exceptions import FSTimeoutError

    try:
        system, name = fsspec.url_to_fs(url, **settings)
    except ValueError as error:
        raise ConfigurationError(f"{protocol}:// cannot be read: {error}") from error
    if protocol == "s3":
        system.retries = min(1 + options.retries, 2)  # on top of those requests, for a body that breaks off
    longest = SLOWEST * options.timeout
    try:
        yield _RemoteFile(system, name, {"timeout": longest} if isinstance(system, AsyncFileSystem) else {})
    except FSTimeoutError as error:
        raise unreadable(
            f"the server did not send it within {longest:g} s: raise EB_SALIENCY_TIMEOUT"
        ) from error
    except FileNotFoundError as error:  # whose message is only the name
        cause = error.__cause__ or "the server has no such file"
        raise FileNotFoundError(errno.ENOENT, f"it cannot be found ({cause})") from error
    except (OSError, tarfile.TarError):
        raise
    except Exception as error:
        raise unreadable(f"it cannot be read: {reason(error)}") from error
