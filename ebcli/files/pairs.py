"""The raw maps of two runs, paired by input, class and layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ebcli.files.directory import first_link
from ebcli.files.encoding import read_arrays
from ebcli.files.input_spec import Placement
from ebcli.files.records import Record, records_of_run


@dataclass(frozen=True)
class RawMap:
    """A map of one run.

    Attributes:
        values: (h, w), signed.
        placement: the rectangle of the image that it covers.
        about: model, weights, layer and method.
        score: of the class.
    """

    values: NDArray[np.float32]
    placement: Placement
    about: str
    score: float | None


@dataclass(frozen=True)
class MapPair:
    """Two maps of one class of one image.

    Attributes:
        input: the image's path, as last given.
        size: its width and height.
        index, name: the class; the name is None if it is unknown.
        one, other: the maps of the first and of the second run.
    """

    input: str
    size: tuple[int, int]
    index: int
    name: str | None
    one: RawMap
    other: RawMap


def read_pairs(one: Path, other: Path) -> Iterator[MapPair]:
    """Every class and layer that both runs have of an image; of two runs with one layer each, these two.

    The latest record of each image counts.

    Raises:
        ConfigurationError: a directory has no records.
    """
    first, second = _latest(one), _latest(other)
    for place in sorted(first.keys() & second.keys()):
        maps, others = _maps(one, first[place]), _maps(other, second[place])
        if maps is None or others is None or maps[0] != others[0]:  # not of the same size: another image
            continue
        layers = [{layer for _, layer in side[1]} for side in (maps, others)]
        single = all(len(names) == 1 for names in layers)
        for (index, layer), raw in maps[1].items():
            key = (index, next(iter(layers[1])) if single else layer)
            if key in others[1]:
                names = {one.index: one.name for one in second[place].classes}
                yield MapPair(second[place].input, maps[0], index, names.get(index), raw, others[1][key])


def _latest(directory: Path) -> dict[str, Record]:
    return {record.place: record for record in records_of_run(directory) if record.status == "done"}


def _maps(directory: Path, record: Record) -> tuple[tuple[int, int], dict[tuple[int, str], RawMap]] | None:
    """The image's size, and its maps by class and layer; None if there is no intact ``.npz`` file."""
    relpath = next((Path(result.path) for result in record.results if result.path.endswith(".npz")), None)
    if relpath is None or first_link(directory, relpath):
        return None
    layers = list(dict.fromkeys(one.layer for one in record.classes))
    names = {layer: f"maps@{layer}" if len(layers) > 1 else "maps" for layer in layers}
    scores = {one.index: one.score for one in record.classes}
    found: dict[tuple[int, str], RawMap] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        arrays = read_arrays(directory / relpath, ("image_size", "crop", "classes", *names.values()))
        size = int(arrays["image_size"][0]), int(arrays["image_size"][1])
        placement = Placement(*map(float, arrays["crop"]))
        for layer, name in names.items():
            about = f"{record.model} ({record.weights}), {layer}, {record.method}"
            for index, values in zip(arrays["classes"].tolist(), arrays[name], strict=True):
                if values.ndim == 2 and values.size and min(size) > 0:
                    found[index, layer] = RawMap(values, placement, about, scores.get(index))
        return size, found
    return None
