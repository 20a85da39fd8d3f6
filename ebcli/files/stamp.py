"""The state of a file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stamp:
    """The state of a file: its size in bytes and its modification time; 0 if a server does not report it."""

    bytes: int
    mtime_ns: int
