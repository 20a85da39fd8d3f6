"""The maps in the ``.npz`` files of runs, those of two runs in pairs, and which photos may be read for them."""

import math
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebcli.drawing.overlay import Pixels, covered, fitted_size, interpolated
from ebcli.files.encoding import read_arrays
from ebcli.files.naming import canonical, numbered, output_relpath
from ebcli.files.paths import first_link, url_of
from ebcli.files.records import ClassRecord, Record, records_of_run
from ebcli.nouns.explanation import Box, Map, Subject

SIDE = 256  # pixels, the longer side of compared pictures, and of the grid on which maps are compared


class MapPair(NamedTuple):
    """Two maps of one class of one image.

    Attributes:
        input: the image's path, as last given.
        size: its width and height.
        maps: the maps of the first and of the second run.
        runs: their models, weights, layers and methods, in words.
    """

    input: str
    size: tuple[int, int]
    maps: tuple[Map, Map]
    runs: tuple[str, str]


def read_maps(directory: Path, record: Record) -> tuple[tuple[int, int], list[Map]] | None:
    """An image's width and height, and its maps (h, w); None if there is no intact ``.npz`` file of that record."""
    relpath = next((Path(result.path) for result in record.results if result.path.endswith(".npz")), None)
    if relpath is None or first_link(directory, relpath):
        return None
    layers: dict[str, list[ClassRecord]] = {}
    for one in record.classes:
        layers.setdefault(one.layer, []).append(one)
    names = {layer: f"maps@{layer}" if len(layers) > 1 else "maps" for layer in layers}
    maps: list[Map] = []
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        arrays = read_arrays(directory / relpath, ("image_size", "crop", "classes", *names.values()))
        size = int(arrays["image_size"][0]), int(arrays["image_size"][1])
        place = Box(*map(float, arrays["crop"]))
        indices = arrays["classes"].tolist()
        for layer, classes in layers.items():
            for index, one, values in zip(indices, classes, arrays[names[layer]], strict=True):
                if index != one.index or values.ndim != 2 or not values.size or min(size) < 1:
                    return None
                score, outlines = math.nan if one.score is None else one.score, [one.box.outline] if one.box else ()
                maps.append(
                    Map(
                        subject=Subject(index, one.name, score, outlines=outlines),
                        layer=layer,
                        values=values,
                        mass=one.mass,
                        placement=place,
                        method=record.method,
                        against=one.against or "",
                        is_two_sided=one.against is not None,
                    )
                )
        return size, maps
    return None


def read_pairs(one: Path, other: Path) -> Iterator[MapPair]:
    """Every class and layer that both runs have of an image; of two runs with one layer each, these two.

    The latest record of each image counts.

    Raises:
        ConfigurationError: a directory has no records.
    """
    first, second = latest_records(one), latest_records(other)
    for place in sorted(first.keys() & second.keys()):
        records = first[place], second[place]
        found, others = read_maps(one, records[0]), read_maps(other, records[1])
        if found is None or others is None or found[0] != others[0]:  # not of the same size: another image
            continue
        single = all(len({map_.layer for map_ in maps}) == 1 for _, maps in (found, others))
        sides = []
        for _, maps in (found, others):  # detections of a class are told apart by their order
            keys = numbered((map_.subject.index, "" if single else map_.layer) for map_ in maps)
            sides.append(dict(zip(keys, maps, strict=True)))
        for key, map_ in sides[0].items():
            if key in sides[1]:
                both = map_, sides[1][key]
                about = [f"{r.model} ({r.weights}), {m.layer}, {m.method}" for r, m in zip(records, both, strict=True)]
                yield MapPair(records[1].input, found[0], both, (about[0], about[1]))


def aligned(pair: MapPair) -> tuple[NDArray[np.float32], NDArray[np.float32], Pixels]:
    """Two maps on the grid on which they are compared: the pixels of a small image that both cover, and their box."""
    size = fitted_size(pair.size, SIDE)
    regions = [one.placement.scaled(pair.size, size) for one in pair.maps]
    boxes = [covered(region, size) for region in regions]
    both = max(boxes[0][0], boxes[1][0]), max(boxes[0][1], boxes[1][1]), *map(min, boxes[0][2:], boxes[1][2:])
    box = (both[0], both[1], max(both[2], both[0] + 1), max(both[3], both[1] + 1))
    one, other = (interpolated(map_.values, region, box) for map_, region in zip(pair.maps, regions, strict=True))
    return one, other, box


def latest_records(directory: Path) -> dict[str, Record]:
    """The latest record of each image that was explained, by its input.

    Runs can have placed it differently: below a directory that was named, or where the image itself was.

    Raises:
        ConfigurationError: the directory has no records.
    """
    done = (record for record in records_of_run(directory) if record.status == "done")
    return {str(output_relpath(Path(record.input))): record for record in done}


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
