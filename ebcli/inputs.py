"""What the user named -> the files to work on: directories walked, patterns applied, each file once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebcli.output import PRIVATE, canonical


@dataclass(frozen=True)
class Source:
    """One file to work on; ``named`` if the user named it, False if it was found in a directory."""

    path: Path
    named: bool = True


@dataclass(frozen=True)
class Stamp:
    """What tells one state of a file from another: its size in bytes, and when it was last changed."""

    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The state now. Raises OSError where there is no such file."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


def find(
    paths: Iterable[Path], without: Path | None = None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[Source]:
    """Every file of ``paths`` once: files and directories as they come, a directory's files sorted by path.

    Links to directories are followed, and each directory is read once, under its own name rather than a link's
    where the walk meets both; so circles end. What is neither file nor directory, or cannot be listed, comes
    back as well, for ``decode`` to say so.

    Args:
        paths: files and directories.
        without: a directory that is not entered where it lies inside one of ``paths``: that of the results.
        include: if there are any, only files that one of these patterns fits. A pattern fits a file if it fits
            the last parts of its path, or of a directory's that it lies in, below the directory in ``paths``:
            ``*.jpg``, ``holiday``, ``2024/*.png``.
        exclude: files that one of these patterns fits are left out.
    """
    walk = _Walk(without, exclude)
    found: dict[str, Source] = {}
    for path in paths:
        for source, relative in walk.files(path) if os.path.isdir(path) else [(Source(path), path)]:  # noqa: PTH112 - raises nothing
            if (include and not _fits(relative, include)) or _fits(relative, exclude):
                continue
            found.setdefault(os.path.abspath(canonical(source.path)), source)  # noqa: PTH100 - links stay links
    return list(found.values())


def _fits(path: Path, patterns: Sequence[str]) -> bool:
    return any(part.match(pattern) for pattern in patterns for part in (path, *path.parents))


class _Walk:
    def __init__(self, without: Path | None, exclude: Sequence[str]) -> None:
        self._without = None if without is None else _identity(without)
        self._exclude = exclude
        self._entered: set[tuple[int, int] | None] = set()

    def files(self, root: Path) -> Iterator[tuple[Source, Path]]:
        """The files below a directory, each with its path relative to that."""
        found: list[Source] = []
        links = deque([root])

        def unlisted(error: OSError) -> None:
            found.append(Source(Path(error.filename)))

        while links:
            start = links.popleft()
            if not self._enters(start, root):
                continue
            for folder, folders, files in os.walk(start, onerror=unlisted):
                inside = sorted(Path(folder, name) for name in folders)
                links += [path for path in inside if path.is_symlink()]
                folders[:] = [path.name for path in inside if not path.is_symlink() and self._enters(path, root)]
                found += [Source(Path(folder, name), named=False) for name in files]
        for source in sorted(found, key=lambda source: source.path.parts):
            yield source, source.path.relative_to(root)

    def _enters(self, folder: Path, root: Path) -> bool:
        identity = _identity(folder)
        if folder != root:
            hidden = folder.name.startswith(PRIVATE) or identity == self._without
            if hidden or _fits(folder.relative_to(root), self._exclude):
                return False
        if identity in self._entered:
            return False
        if identity is not None:
            self._entered.add(identity)
        return True


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:  # out of reach, or not there yet
        return None
    return status.st_dev, status.st_ino
