"""What the user named -> the files to work on: directories walked, patterns applied, each file once."""

from __future__ import annotations

import os
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from ebcli.errors import ImageError
from ebcli.files.naming import PRIVATE, canonical
from ebcli.files.storage import Span, Stamp, members, read, url_of, walk

_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_UNPACK = "it is a compressed tar file, in which nothing can be read by itself: make it a plain .tar, or unpack it"


@dataclass(frozen=True)
class Source:
    """One file to work on.

    Attributes:
        path: its path; of a remote file and of one inside a tar file as ``ebcli.files.storage`` has it.
        named: the user named it; False if it was found in a directory or a tar file.
        span: where its bytes are, if it is inside a tar file.
        problem: why it cannot be read, if that is known.
    """

    path: Path
    named: bool = True
    span: Span | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        """What the user knows it by: its path, or its URL."""
        return url_of(self.path) or str(self.path)

    def stamp(self) -> Stamp:
        """Its state now; of a file inside a tar file, that of the tar file. Raises OSError where it is not there."""
        return Stamp.of(self.path if self.span is None else self.span.tar)

    def opened(self) -> tuple[Stamp, Path | BytesIO]:
        """Its state now, and its path if it is a local file, or else its bytes.

        Raises:
            ImageError: it is not there, or cannot be read.
        """
        if self.problem is not None:
            raise ImageError(self.problem)
        try:
            stamp = self.stamp()
            if self.span is not None:
                return stamp, BytesIO(self.span.read())
            return stamp, self.path if url_of(self.path) is None else BytesIO(read(self.path))
        except OSError as error:
            raise ImageError(error.strerror or str(error)) from error


def find(
    paths: Iterable[Path], without: Path | None = None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[Source]:
    """Every file of ``paths`` once: files and directories as they come, a directory's files sorted by path.

    URLs are files or directories as well, and tar files are directories.

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
    folders = _Walk(without, exclude)
    found: dict[str, Source] = {}
    for path in paths:
        files = [(Source(path), path)]
        if url_of(path) is not None:
            files = [(Source(file, file == path), file.relative_to(path)) for file in sorted(walk(path))]
        elif os.path.isdir(path):  # noqa: PTH112 - raises nothing
            files = list(folders.files(path))
        for source, relative in _unpacked(files):
            if (include and not _fits(relative, include)) or _fits(relative, exclude):
                continue
            found.setdefault(os.path.abspath(canonical(source.path)), source)  # noqa: PTH100 - links stay links
    return list(found.values())


def _unpacked(files: Iterable[tuple[Source, Path]]) -> Iterator[tuple[Source, Path]]:
    """The same files, those inside of tar files in place of these."""
    for source, relative in files:
        if source.path.suffix.lower() != ".tar":
            is_packed = source.named and source.path.name.lower().endswith(_COMPRESSED)
            yield replace(source, problem=_UNPACK) if is_packed else source, relative
            continue
        try:
            for path, span in members(source.path):
                yield Source(path, False, span), relative / path.relative_to(source.path)
        except (tarfile.TarError, OSError) as error:  # what is behind the damage is lost
            problem = f"it cannot be read to its end as an uncompressed tar file ({error})"
            yield Source(source.path, problem=problem), relative


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
