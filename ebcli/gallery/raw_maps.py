"""The maps in the ``.npz`` files of runs, and those of two runs in pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebcli.drawing.explanation import Map, Subject, rectangle
from ebcli.files.directory import first_link
from ebcli.files.encoding import read_arrays
from ebcli.files.input_spec import Placement
from ebcli.files.records import ClassRecord, Record, records_of_run


@dataclass(frozen=True)
class MapPair:
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
        arrays = read_arrays(directory / relpath, ("image_size", "crop", "classes", "boxes", *names.values()))
        size = int(arrays["image_size"][0]), int(arrays["image_size"][1])
        place = Placement(*map(float, arrays["crop"]))
        indices = arrays["classes"].tolist()
        outlines = [[rectangle(box)] for box in arrays.get("boxes", ())] or [[]] * len(indices)
        for layer, classes in layers.items():
            for index, one, values, outline in zip(indices, classes, arrays[names[layer]], outlines, strict=True):
                if index != one.index or values.ndim != 2 or not values.size or min(size) < 1:
                    return None
                subject = Subject(index, one.name, _number(one.score), outlines=outline)
                maps.append(Map(subject, layer, values, _number(one.mass), place, method=record.method))
        return size, maps
    return None


def read_pairs(one: Path, other: Path) -> Iterator[MapPair]:
    """Every class and layer that both runs have of an image; of two runs with one layer each, these two.

    The latest record of each image counts.

    Raises:
        ConfigurationError: a directory has no records.
    """
    first, second = _latest(one), _latest(other)
    for place in sorted(first.keys() & second.keys()):
        records = first[place], second[place]
        found, others = read_maps(one, records[0]), read_maps(other, records[1])
        if found is None or others is None or found[0] != others[0]:  # not of the same size: another image
            continue
        single = all(len({map_.layer for map_ in maps}) == 1 for _, maps in (found, others))
        sides = [{(m.subject.index, "" if single else m.layer): m for m in maps} for _, maps in (found, others)]
        for key, map_ in sides[0].items():
            if key in sides[1]:
                maps = map_, sides[1][key]
                about = [f"{r.model} ({r.weights}), {m.layer}, {m.method}" for r, m in zip(records, maps, strict=True)]
                yield MapPair(records[1].input, found[0], maps, (about[0], about[1]))


def _latest(directory: Path) -> dict[str, Record]:
    return {record.place: record for record in records_of_run(directory) if record.status == "done"}


def _number(recorded: float | None) -> float:
    return math.nan if recorded is None else recorded
