"""The files to work on: directories are searched, patterns applied, and each file is taken once."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from io import BytesIO
from operator import attrgetter
from os.path import isdir
from pathlib import Path
from typing import NamedTuple

from ebcli.datatypes.query import Query
from ebcli.errors import ImageError, plural, reason
from ebcli.files.media.medium import INPUT_FORMATS, InputFormat
from ebcli.files.naming import (
    PRIVATE_NAME,
    STDIN,
    UNFINISHED,
    canonical,
    is_outside,
    output_relpath,
    portable,
    safe_relpath,
    sha256,
)
from ebcli.files.paths import DEFAULT, FileState, RemoteOptions, url_of, without_secrets
from ebcli.files.results import OwnResults
from ebcli.files.storage import Listing, Span, list_remote, read, stamp_of, tar_members, without_file_scheme

Shard = tuple[int, int]

_COMPRESSED_TARS = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_COMPRESSED = "it is a compressed tar file, whose files cannot be read one by one"
_UNPACK = f"{_COMPRESSED}: unpack it, or make it a plain .tar"


class Root(NamedTuple):
    """A directory or a tar file that the user named.

    Attributes:
        path: its path.
        name: where its files go below the output directory: to its own name if there are several, else to the top.
    """

    path: Path
    name: Path


@dataclass(frozen=True)
class Source:
    """One file to work on, or one directory of frames or slices.

    Attributes:
        path: its path; for remote files and members of tar files, see ``ebcli.files.storage``.
        is_explicit: whether the user named it; False if it was found in a directory or a tar file.
        span: the position of its bytes, if it is in a tar file.
        content: its bytes, if it is no file: an image on stdin, or an upload.
        problem: why it cannot be read, if that is known already.
        remote: limits for reading it, and secrets that its URL has.
        label: its true class, if known.
        root: the directory that the user named, in which it was found; None if the user named the file.
        query: what a vision-language model is asked about it; None for other networks.
    """

    path: Path
    _: KW_ONLY
    is_explicit: bool = True
    span: Span | None = None
    content: bytes | None = field(default=None, repr=False)
    problem: str | None = None
    remote: RemoteOptions = DEFAULT
    label: int | None = None
    root: Root | None = None
    query: Query | None = None

    @property
    def relpath(self) -> Path:
        """Its path below the output directory, after which its results are named."""
        if self.root is None or self.path == self.root.path:
            return output_relpath(self.path)
        relpath = self.root.name / self.path.relative_to(self.root.path)
        if url_of(self.path) is not None:
            relpath = portable(relpath)
        return safe_relpath(relpath)

    @property
    def name(self) -> str:
        """Its path or URL."""
        return url_of(self.path) or str(self.path)

    @property
    def is_local(self) -> bool:
        """Whether it is a file or directory of this machine."""
        return self.span is None and self.content is None and url_of(self.path) is None

    def stamp(self) -> FileState:
        """Its present state, or that of its tar file. Raises OSError if it does not exist."""
        if self.content is not None:
            return FileState(len(self.content), 0)
        if self.span is not None:
            return stamp_of(self.span.tar, self.remote)
        files = _parts(self.path, INPUT_FORMATS) if self.is_local else []
        if files:
            sizes, times = zip(*map(stamp_of, files), strict=True)
            return FileState(sum(sizes), max(times))
        return stamp_of(self.path, self.remote)

    def version(self) -> FileState | str | None:
        """Its present state if it can be had without a server, or a hash of its bytes, for caches."""
        if self.content is not None:
            return sha256(self.content)
        if self.is_local:
            with suppress(OSError):
                return self.stamp()
        return None

    def open_content(self) -> tuple[FileState, Path | BytesIO]:
        """Its present state, and its path if it is a local file, else its bytes.

        Raises:
            ImageError: it does not exist, or cannot be read.
        """
        if self.problem is not None:
            raise ImageError(self.problem)
        try:
            if self.content is not None:
                return self.stamp(), BytesIO(self.content)
            if self.span is not None:
                return self.stamp(), BytesIO(self.span.read(self.remote))
            if self.is_local:
                return self.stamp(), self.path
            stamp, content = read(self.path, self.remote)
            return stamp, BytesIO(content)
        except OSError as error:
            raise ImageError(reason(error)) from error


class _Entry(NamedTuple):
    """A file, and what patterns match: its path below the directory that the user named."""

    source: Source
    relpath: Path


def find_sources(
    paths: Iterable[Path],
    hidden_directory: Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    remote: RemoteOptions = DEFAULT,
    shard: Shard | None = None,
    stdin: bytes | None = None,
    as_one: Sequence[InputFormat] = (),
) -> list[Source]:
    """Find every file of ``paths`` once, in the order of ``paths``; the files of a directory are sorted by path.

    A directory in ``paths`` is the root of the places of its files; of several, each has a place below its own name.
    The place of a file outside the working directory that is named by an absolute path has the name of its directory.

    Of local directories, no more than the files of the shard and the entries of one directory are held in memory.

    URLs can be files or directories, too, and tar files are directories. Results that are recorded in a directory
    above them are skipped; if the user named them, there is a warning.

    Links to directories are followed after everything else. Each directory is read once, under its own name rather
    than a link's if both are found, so cycles end. Special files and directories that cannot be listed are returned,
    too: ``decode`` reports them.

    Args:
        paths: files and directories.
        hidden_directory: a directory that is skipped inside ``paths``, the output directory.
        include: take only files that match one of these patterns, if there are any. A pattern matches the end of
            the path of a file, or of a directory that contains it, below the directory in ``paths``: ``*.jpg``,
            ``holiday``, ``2024/*.png``.
        exclude: skip files that match one of these patterns.
        remote: limits for remote files and for files in tar files. Secrets in URLs are moved there.
        shard: (i, n) for the i-th, from 1, of n shards; a file's shard is a hash of its place. None for all files.
        stdin: the bytes that the path ``-`` stands for; None if it is a path like others.
        as_one: kinds of data of which a local directory can be one input, such as numbered frames.
    """
    hidden = hidden_directory and _identity(hidden_directory)
    sources: dict[str, Source] = {}
    skipped_names = []
    own_results = OwnResults()
    inputs = [without_secrets(without_file_scheme(path), remote) for path in paths]
    listings = {path: list_remote(path, options) for path, options in inputs if url_of(path) is not None}
    containers = [path for path, _ in inputs if path.suffix.lower() == ".tar" or isdir(path)]
    containers += [path for path, listing in listings.items() if listing.files != [path]]
    has_several = len(set(map(canonical, containers))) > 1
    short_roots = _short_roots([path for path, _ in inputs])
    roots = short_roots | {
        path: Root(path, Path(_with_name(path).name if has_several else "")) for path in containers
    }
    search = _Search(
        hidden=hidden, include=include, exclude=exclude, shard=shard, as_one=as_one, short_roots=short_roots
    )
    for path, options in inputs:
        root = roots.get(path)
        if stdin is not None and path == STDIN:
            entries = [_Entry(Source(Path("stdin"), content=stdin), Path("stdin"))]
        elif path in listings:
            entries = [*_remote_entries(path, root, listings[path])]
        elif root is not None and isdir(path):
            entries = [*search.files(root)]
        else:
            entries = [_Entry(Source(path, root=root), path)]
        for source, relpath in _unpack_tars(entries, options):
            if not search.selects(source, relpath):
                continue
            if not source.is_local or source.path not in own_results:
                key = os.path.abspath(canonical(source.path))  # noqa: PTH100 - links stay links
                sources.setdefault(key, source)
            elif source.is_explicit:
                skipped_names.append(source.name)
    if skipped_names:
        count = plural(len(skipped_names), "file")
        warnings.warn(f"skipped {count} that this program wrote, such as '{skipped_names[0]}'", stacklevel=2)
    return list(sources.values())


def _short_roots(paths: Iterable[Path]) -> dict[Path, Root]:
    """The roots of inputs that are named by absolute paths from outside the working directory.

    ``/data/photos/a.jpg`` goes to ``photos/a.jpg``. Inputs that would have the same place get no root.
    """
    places = {path: output_relpath(path) for path in paths}
    for path, place in places.items():
        short = Path(path.parent.name, path.name)
        if path.is_absolute() and is_outside(place) and not is_outside(short):
            places[path] = short
    owners = dict[Path, set[Path]]()
    for path, place in places.items():
        owners.setdefault(place, set()).add(canonical(path))
    return {
        path: Root(path.parent, Path(path.parent.name))
        for path, place in places.items()
        if place != output_relpath(path) and len(owners[place]) == 1
    }


def _remote_entries(path: Path, root: Root | None, listing: Listing) -> Iterator[_Entry]:
    """What a server lists below a path; only the path if that is a file."""
    for file in sorted(listing.files):
        if file == path:
            yield _Entry(Source(file, root=root), file)
        else:
            yield _Entry(Source(file, is_explicit=False, root=root), file.relative_to(path))
    if listing.problem is not None:
        yield _Entry(Source(path, problem=listing.problem), path)


def _parts(folder: Path, media: Iterable[InputFormat]) -> list[Path]:
    """The files of a directory that is one input; none of other paths."""
    if not isdir(folder):
        return []
    return next(filter(None, (medium.files(folder) for medium in media)), [])


def _with_name(folder: Path) -> Path:
    if folder.name in ("", os.pardir):
        return folder.resolve()
    return folder


def _unpack_tars(entries: Iterable[_Entry], remote: RemoteOptions) -> Iterator[_Entry]:
    """The same files, with tar files replaced by their members."""
    for source, relpath in entries:
        if source.path.suffix.lower() != ".tar":
            problem = source.problem
            if source.is_explicit and source.path.name.lower().endswith(_COMPRESSED_TARS):
                problem = _UNPACK
            yield _Entry(replace(source, problem=problem, remote=remote), relpath)
            continue
        spans, problem = tar_members(source.path, remote)
        for path, span in spans.items():
            member = Source(path, is_explicit=False, span=span, remote=remote, root=source.root)
            yield _Entry(member, relpath / path.relative_to(source.path))
        if problem is not None:
            yield _Entry(Source(source.path, problem=problem), relpath)


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(part.match(pattern) for pattern in patterns for part in (path, *path.parents))


@dataclass(kw_only=True)
class _Search:
    """Which files are taken, and the directories that were read; for the attributes, see ``find_sources``."""

    hidden: object
    include: Sequence[str]
    exclude: Sequence[str]
    shard: Shard | None
    as_one: Sequence[InputFormat]
    short_roots: Mapping[Path, Root]
    identities: set[object] = field(default_factory=set)

    def selects(self, source: Source, relpath: Path) -> bool:
        """Whether the patterns and the shard take a file."""
        if self.include and not _matches(relpath, self.include):
            return False
        return not _matches(relpath, self.exclude) and self._is_in_shard(source)

    def _is_in_shard(self, source: Source) -> bool:
        if self.shard is None:
            return True
        number, count = self.shard
        digest = hashlib.blake2b(os.fsencode(source.relpath), digest_size=8).digest()
        return int.from_bytes(digest, "big") % count == number - 1

    def files(self, root: Root) -> Iterator[_Entry]:
        """The files below a directory."""
        folders = deque([root.path])
        while folders:
            sources, links = self._read_tree(folders.popleft(), root)
            folders += sorted(links)
            for source in sorted(sources, key=attrgetter("path")):
                path = source.path
                is_below = root.path in path.parents
                yield _Entry(source, path.relative_to(root.path if is_below else path.parent))

    def _read_tree(self, top: Path, root: Root) -> tuple[list[Source], list[Path]]:
        """The files below a directory, and the links to directories there, which are not followed."""
        sources: list[Source] = []
        links: list[Path] = []
        folders = [top]
        while folders:  # trees can be deeper than Python's stack
            folder = folders.pop()
            if _parts(folder, self.as_one):
                is_root = folder == root.path
                place = self.short_roots.get(folder) if is_root else root
                sources.append(Source(_with_name(folder), is_explicit=is_root, root=place))
                continue
            if not self._enters(folder, root.path):
                continue
            try:
                entries = list(os.scandir(folder))
            except OSError:
                sources.append(Source(folder, root=root))
                continue
            for entry in entries:
                path = Path(folder, entry.name)
                source = Source(path, is_explicit=False, root=root)
                # of a link into a directory that may not be searched, entry.is_dir() raises
                if entry.is_symlink() and isdir(path):
                    links.append(path)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif path.suffix.lower() == ".tar" or self._is_in_shard(source):
                    sources.append(source)
        return sources, links

    def _enters(self, folder: Path, root: Path) -> bool:
        identity = _identity(folder)
        if folder != root:
            is_private = folder.name == UNFINISHED or PRIVATE_NAME.fullmatch(folder.name)
            is_hidden = identity == self.hidden or is_private
            if is_hidden or _matches(folder.relative_to(root), self.exclude):
                return False
        if identity in self.identities:
            return False
        self.identities.add(identity)
        return True


def _identity(folder: Path) -> object:
    """What all names of a directory have in common; equal to nothing if it is not accessible, or not created yet."""
    try:
        status = folder.stat()
    except OSError:
        return object()
    return status.st_dev, status.st_ino
