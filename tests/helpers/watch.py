"""Watches what a test opens and starts, by an audit hook of Python: nothing but the test's files, and no programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
}
_PROGRAMS |= {"subprocess.Popen", "webbrowser.open"}
_SERVERS = {"socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_ADDRESSES = {"socket.bind", "socket.connect"}
_WATCHED = {"open", *_PROGRAMS, *_SERVERS, *_ADDRESSES}
_INSTALLED = [sys.prefix, sys.base_prefix, Path(__file__).parents[2], *(entry for entry in sys.path if entry)]
_OF_SYSTEM = ["/dev/null", "/dev/urandom", "/proc", "/sys", "/etc/mime.types", "/etc/apache2", "/etc/httpd"]
_ALLOWED = [os.path.realpath(path) for path in (*_INSTALLED, *_OF_SYSTEM)]
ELSEWHERE = "elsewhere"  # directories of this name have files that nobody named


class Watch:
    """What happened that may not happen.

    Attributes:
        folder: where tests keep their files; None while nothing is watched.
        seen: each forbidden event.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        self._installed: set[object] = set()  # names of files that may be opened
        sys.addaudithook(self._hook)  # which cannot be removed

    @contextmanager
    def over(self, folder: Path | None) -> Iterator[Watch]:
        """Watch, or for None, pause."""
        before, self.folder = self.folder, None if folder is None else os.path.realpath(folder)
        try:
            yield self
        finally:
            self.folder = before

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None or event not in _WATCHED:
            return
        if event == "open":
            self._look_at(arguments[0])
        elif event not in _ADDRESSES or not isinstance(
            arguments[-1], str
        ):  # paths are those of own processes
            self.seen.append(f"{event} {arguments}")

    def _look_at(self, file: object) -> None:
        if not isinstance(file, (str, bytes, os.PathLike)) or file in self._installed:
            return
        path = os.path.realpath(os.fsdecode(file))
        if any(Path(path).is_relative_to(one) for one in _ALLOWED):
            self._installed.add(file)
        elif not Path(path).is_relative_to(str(self.folder)) or ELSEWHERE in Path(path).parts:
            self.seen.append(f"open {path}")


WATCH = Watch()
