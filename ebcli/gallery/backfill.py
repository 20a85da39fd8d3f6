"""Thumbnails that no run has made, from the photo, the ``.npz`` file, or the results themselves."""

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ebcli.drawing.overlay import shrunk
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import THUMBNAILS, map_thumbnail
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.encoding import encode_picture
from ebcli.files.images import decode, decoding_memory
from ebcli.files.naming import canonical
from ebcli.files.remote import url_of
from ebcli.files.sources import Source
from ebcli.gallery.entries import Entry, Outcome
from ebcli.gallery.raw_maps import read_maps
from ebcli.workers import Workers

_AHEAD = 64  # images submitted at a time


def make_missing(
    directory: Path,
    entries: Iterable[Entry],
    folder: OutputFolder,
    style: DrawingStyle,
    workers: int,
    inputs: Sequence[Path] = (),
) -> set[Path]:
    """Make the missing thumbnails, as far as possible.

    Args:
        directory: the output directory.
        entries: its inputs.
        folder: the same directory, opened for writing.
        style: the colors and the scale of maps that are drawn from ``.npz`` files.
        workers: the number of processes that decode and draw; 0 for none.
        inputs: the records may have been written by anybody, so photos are only read below these paths.

    Returns:
        All thumbnails that exist then, relative to the output directory.

    Raises:
        OutputError: they cannot be written.
        ConfigurationError: matplotlib has no colormap of that name.
    """
    there = {
        Path(subdirectory, name).relative_to(directory)
        for subdirectory, _, names in os.walk(directory / THUMBNAILS)
        for name in names
    }
    roots = roots_of(inputs)
    with Workers(workers, memory=decoding_memory()) as pool:

        def make(source: Path | None, outcome: Outcome, missing: Collection[Path]) -> dict[Path, bytes]:
            try:
                return pool.call(_make, directory, source, outcome, missing, style)
            except ConfigurationError:
                raise
            except Exception:  # out of memory, or the process died: the page does without
                return {}

        for files in _in_turn(
            pool.submit(make, below(entry.input, roots), outcome, missing)
            for entry in entries
            for outcome in entry.outcomes
            if (missing := _missing(outcome, there))
        ):
            folder.add(files)
            there.update(files)
    return there


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(canonical(path)))  # noqa: PTH100 - links below the inputs are followed, as in a run


def roots_of(inputs: Sequence[Path]) -> set[Path]:
    """The local ones of some files and directories, for ``below``."""
    return {_absolute(path) for path in inputs if url_of(path) is None}


def below(name: str, roots: Set[Path]) -> Path | None:
    """The local file of a name if it is below one of the roots."""
    if url_of(Path(name)) is not None or "\0" in name:
        return None
    whole = _absolute(Path(name))
    return None if roots.isdisjoint((whole, *whole.parents)) else whole


def _in_turn(futures: Iterator[Future[dict[Path, bytes]]]) -> Iterator[dict[Path, bytes]]:
    """The results of all, a few of which are pending at any time."""
    waiting = deque(islice(futures, _AHEAD))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(futures, 1))


def _missing(outcome: Outcome, there: Collection[Path]) -> set[Path]:
    """The missing thumbnails: the photo, and each map that has no small overlay as its substitute."""
    names = outcome.names
    if names is None:
        return set()
    layer = outcome.layer
    drawn = [(layer, one.recorded.index, one.number) for one in outcome.maps if not one.recorded.blank]
    shown = [one for one in drawn if names.overlay(*one) not in there]
    return {names.photo, *(names.map(*one) for one in shown)}.difference(there)


def _make(
    directory: Path, source: Path | None, outcome: Outcome, missing: Collection[Path], style: DrawingStyle
) -> dict[Path, bytes]:
    names = outcome.names
    assert names is not None  # or nothing would be missing
    files: dict[Path, bytes] = {}
    with suppress(ImageError, OSError):
        if source is not None and names.photo in missing and Source(source).stamp() == names.stamp:
            files[names.photo] = encode_picture(shrunk(decode(Source(source).opened()[1])), "jpg")
    if outcome.raw is not None and (raw := read_maps(directory, outcome.record)) is not None:
        with suppress(OSError, ValueError, TypeError, IndexError):  # anybody may have written the arrays
            size, maps = raw
            for i, (path, map_) in enumerate(zip(names.maps(maps), maps, strict=True)):  # layer by layer
                number = i % len(outcome.maps)
                own = style.of(map_.is_two_sided)
                if path in missing and (content := map_thumbnail(map_, map_.values, size, own, number)) is not None:
                    files[path] = content
    for one in outcome.maps:
        at = outcome.layer, one.recorded.index, one.number
        if names.map(*at) in missing and names.map(*at) not in files and one.result is not None:
            with suppress(ImageError):
                files[names.overlay(*at)] = encode_picture(shrunk(decode(directory / one.result)), "jpg")
    return files
