"""Thumbnails that a run has not made, from what there is: the photo, the arrays, or the results themselves."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import THUMBNAILS, map_thumbnails, shrunk
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.directory import OutputFolder
from ebcli.files.images import Placement, decode
from ebcli.files.naming import encode_picture
from ebcli.files.sources import Source
from ebcli.gallery.entries import Entry, Outcome
from ebcli.run.workers import Workers

_AHEAD = 64  # images under way at a time


def make_missing(
    directory: Path, entries: Iterable[Entry], folder: OutputFolder, style: DrawingStyle, workers: int
) -> set[Path]:
    """Make what can be made, and tell which thumbnails there are then, relative to the output directory.

    Args:
        directory: the output directory.
        entries: its inputs.
        folder: the same, to be written to.
        style: the colours and the scale of maps that come from arrays.
        workers: how many processes decode and draw, 0 for none.

    Raises:
        OutputError: they cannot be written.
        ConfigurationError: matplotlib has no colormap of that name.
    """
    there = {
        Path(folder_path, name).relative_to(directory)
        for folder_path, _, names in os.walk(directory / THUMBNAILS)
        for name in names
    }
    with Workers(workers) as crew:

        def made(source: Path, outcome: Outcome, wanted: Collection[Path]) -> dict[Path, bytes]:
            try:
                return crew.call(_made, directory, source, outcome, wanted, style)
            except ConfigurationError:
                raise
            except Exception:  # no memory, or the process died: the page goes without
                return {}

        for files in _in_turn(
            crew.submit(made, Path(entry.input), outcome, wanted)
            for entry in entries
            for outcome in entry.outcomes
            if (wanted := _wanted(outcome, there))
        ):
            folder.write(files)
            there.update(files)
    return there


def _in_turn(futures: Iterator[Future[dict[Path, bytes]]]) -> Iterator[dict[Path, bytes]]:
    """The results of all, few of which are waiting at any time."""
    waiting = deque(islice(futures, _AHEAD))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(futures, 1))


def _wanted(outcome: Outcome, there: Collection[Path]) -> set[Path]:
    """The photo, and the maps of classes that have neither a map nor a stand-in for it, where these are not there."""
    names = outcome.names
    if names is None:
        return set()
    shown = [one for one in outcome.classes if not one.blank and names.overlay(outcome.layer, one.index) not in there]
    return {names.photo, *(names.map(outcome.layer, one.index) for one in shown)}.difference(there)


def _made(
    directory: Path, source: Path, outcome: Outcome, wanted: Collection[Path], style: DrawingStyle
) -> dict[Path, bytes]:
    names = outcome.names
    assert names is not None  # else nothing is wanted
    files: dict[Path, bytes] = {}
    paths = {one.index: names.map(outcome.layer, one.index) for one in outcome.classes}
    paths = {index: path for index, path in paths.items() if path in wanted}
    with suppress(ImageError, OSError, ValueError):  # it is gone, or its name cannot be one here
        if names.photo in wanted and Source(source).stamp() == names.stamp:
            files[names.photo] = encode_picture(shrunk(decode(Source(source).opened()[1])), "jpg")
    if outcome.raw is not None:
        with suppress(OSError, ValueError, KeyError), np.load(directory / outcome.raw) as arrays:
            size = int(arrays["image_size"][0]), int(arrays["image_size"][1])
            place = Placement(*map(float, arrays["crop"]))
            several = f"maps@{outcome.layer}"
            maps = dict(zip(arrays["classes"].tolist(), arrays[several if several in arrays else "maps"], strict=True))
            known = {path: maps[index] for index, path in paths.items() if index in maps}
            files |= map_thumbnails(known, size, place, style)
    for one in outcome.classes:
        if one.index in paths and paths[one.index] not in files and one.result is not None:
            with suppress(ImageError):
                small = shrunk(decode(directory / one.result))
                files[names.overlay(outcome.layer, one.index)] = encode_picture(small, "jpg")
    return files
