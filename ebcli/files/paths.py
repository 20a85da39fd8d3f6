"""What paths stand for: local files, which are opened safely, and URLs. Of a URL, what is secret.

Remote files are fetched with limits on time and size.
"""

import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass, field, replace
from io import BufferedReader
from os.path import islink
from pathlib import Path
from typing import NamedTuple

from ebcli.errors import check_value
from ebcli.files.naming import sha256

SLOWEST = 20  # timeouts that a whole file may take
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # at least two letters: C: is a drive
# What stands for parts of a URL that paths drop; no URL has parts like these
_STAND_INS = {"": "%", ".": "%."}
_STANDS_FOR = {stand_in: part for part, stand_in in _STAND_INS.items()}
# What S3, Google Cloud, CloudFront and others sign URLs with, anew each time; and Azure
_SIGNATURE = re.compile(
    r"x-(amz|cos|goog|ms|obs|oss)-.*|signature|expires|policy|key-pair-id|[a-z]+accesskeyid|googleaccessid",
    re.I,
)
_AZURE = re.compile(r"s([eprstv]|dd|es|ig|ip|pr|rt|k[estv]|koid|ktid)|s[ac]oid|suoid", re.I)
_SECRET = re.compile(r"auth|cred|jwt|key|pass|pwd|secret|session|sig|token", re.I)


class FileState(NamedTuple):
    """The state of a file: its size in bytes and its modification time; 0 if a server does not report it."""

    bytes: int
    mtime_ns: int


def safe_open(path: Path, follow: bool = True, flags: int = os.O_RDONLY) -> BufferedReader:
    """Open a local file. A named pipe would block for ever, so nothing but regular files is opened.

    Args:
        path: the file.
        follow: whether it may be a symbolic link.
        flags: as for ``os.open``. Whatever they are, the file's own methods only read.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        number = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise
    if stat.S_ISREG(os.fstat(number).st_mode):
        return os.fdopen(number, "rb")
    os.close(number)
    raise OSError(errno.EINVAL, "it is not a regular file")


def file_digest(path: Path, *, follow: bool = False) -> str:
    """The SHA-256 of a regular file. Raises OSError for other files, and for links unless they are followed."""
    with safe_open(path, follow=follow) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_link(directory: Path, relpath: Path) -> Path | None:
    """The first symbolic link on the way from a directory to a path below it, if any."""
    steps = (directory / step for step in (*reversed(relpath.parents), relpath) if step.parts)
    return next(filter(islink, steps), None)


def make_folder(directory: Path, relative: Path) -> None:
    """Make a folder below a directory of results, where anybody may have put links to elsewhere.

    Raises:
        OSError: it is, or is behind, a symbolic link; or it cannot be made.
    """
    link = first_link(directory, relative)
    if link:
        raise OSError(errno.ELOOP, f"'{link}' is a symbolic link")
    (directory / relative).mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class RemoteOptions:
    """Limits for remote files and for files in tar files.

    Attributes:
        timeout: seconds to wait for a server to answer or to send more.
        retries: how often a failed request is repeated: at once, then after 1, 2, ... seconds, or as the server asks.
        max_bytes: the size of the largest file that is read.
        login: user name and password for a web server, as in a URL.
        query: the query of URLs, if it has secrets; their paths have none of them.

    Raises:
        ConfigurationError: a value is out of range.
    """

    timeout: float = 30.0
    retries: int = 3
    max_bytes: int = 1 << 29
    login: str = field(default="", repr=False)
    query: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_value("the timeout", self.timeout, lambda it: 0 < it <= 86_400, "above 0 and at most 86400 s")
        check_value("retries", self.retries, lambda it: 0 <= it <= 100, "between 0 and 100")
        check_value("max-bytes", self.max_bytes, lambda it: it >= 1, "at least 1")


DEFAULT = RemoteOptions()


def unreadable(reason: str) -> OSError:
    """The error for what cannot be read."""
    return OSError(errno.EIO, reason)


def too_large(limit: int) -> OSError:
    """The error for a file that is larger than a limit in bytes."""
    return OSError(errno.EFBIG, f"it is larger than {limit} bytes")


def path_of(name: str) -> Path:
    """The path that stands for a local path or a URL, see ``url_of``."""
    scheme, separator, remainder = name.partition("://")
    if not separator or not _SCHEME.fullmatch(f"{scheme}:") or scheme == "file":
        return Path(name)
    address, mark, query = remainder.partition("?" if scheme in ("http", "https") else "\0")
    *folders, last = address.strip("/").split("/")
    name = last + mark + query.replace("/", "%2F")
    return Path(f"{scheme}:", *(_STAND_INS.get(part, part) for part in folders), name)


def url_of(path: Path) -> str | None:
    """The URL that a path stands for; None for a local path."""
    scheme, *parts = path.parts or ("",)
    if not _SCHEME.fullmatch(scheme):
        return None
    return f"{scheme}//{'/'.join(_STANDS_FOR.get(part, part) for part in parts)}"


def without_secrets(path: Path, options: RemoteOptions = DEFAULT) -> tuple[Path, RemoteOptions]:
    """A path to show and to store, and options with the user name, the password and the signature of its URL.

    Signatures are dropped, so that a URL that is signed again is the same file. Other parameters that are named like
    secrets may as well tell files apart, so hashes take their places.
    """
    scheme, *parts = path.parts or ("",)
    if url_of(path) is None or scheme == "file:":
        return path, options
    address, mark, query = "/".join(parts).partition("?" if scheme in ("http:", "https:") else "\0")
    host, *folders = address.split("/")
    login, _, host = host.rpartition("@")
    public_query = "&".join(_public_parameters(query))
    public = "/".join([host, *folders])
    if public_query:
        public += mark + public_query
    secret_query = "" if query == public_query else query
    return Path(scheme, public), replace(options, login=login, query=secret_query)


def _public_parameters(query: str) -> list[str]:
    """The parameters of a query, as they may be shown."""
    public = []
    parameters = [text.partition("=") for text in query.split("&")]
    is_azure = any(name == "sig" for name, _, _ in parameters)
    for name, equals, value in parameters:
        if _SIGNATURE.fullmatch(name) or (is_azure and _AZURE.fullmatch(name)):
            continue
        if value and _SECRET.search(name):
            public.append(f"{name}{equals}~{sha256(value.encode(errors='surrogatepass'), 16)}")
        else:
            public.append(name + equals + value)
    return public
