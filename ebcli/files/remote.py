"""Which paths are URLs, and how remote files are fetched: limits on time and size."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # at least two letters: C: is a drive


@dataclass(frozen=True)
class RemoteOptions:
    """Limits for remote files and for files in tar files.

    Attributes:
        timeout: seconds to wait for a server to answer or to send more.
        retries: how often a failed request is repeated: at once, then after 1, 2, ... seconds, or as the server asks.
        max_bytes: the size of the largest file that is read.

    Raises:
        ConfigurationError: a value is out of range.
    """

    timeout: float = 30.0
    retries: int = 3
    max_bytes: int = 1 << 29

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= 86_400:
            raise ConfigurationError(f"the timeout is {self.timeout:g}, but it must be above 0 and at most 86400 s")
        if not 0 <= self.retries <= 100:
            raise ConfigurationError(f"retries is {self.retries}, but it must be between 0 and 100")
        if self.max_bytes < 1:
            raise ConfigurationError(f"max-bytes is {self.max_bytes}, but it must be at least 1")


DEFAULT = RemoteOptions()


def too_large(limit: int) -> OSError:
    """The error for a file that is larger than a limit in bytes."""
    return OSError(errno.EFBIG, f"it is larger than {limit} bytes")


def url_of(path: Path) -> str | None:
    """The URL that a path stands for; None for a local path."""
    scheme, *rest = path.parts or ("",)
    return f"{scheme}//{'/'.join(rest)}" if _SCHEME.fullmatch(scheme) else None
