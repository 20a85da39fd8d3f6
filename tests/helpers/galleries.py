"""Output directories as runs leave them, without a network."""

import os
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.style import DrawingStyle
from ebcli.drawing.thumbnails import ThumbnailNames, thumbnails
from ebcli.files.encoding import encode_arrays, encode_picture
from ebcli.files.media.medium import DisplayFrame
from ebcli.files.naming import RECORDS, output_relpath, picture_relpath, raw_relpath
from ebcli.files.paths import FileState
from ebcli.files.records import ClassRecord, Record, append_lines
from ebcli.files.storage import stamp_of

CATS = (
    ClassRecord(282, "tiger cat", 0.5, mass=0.25, blank=False),
    ClassRecord(285, "Egyptian cat", 0.125, mass=0.75, blank=False),
)
COMMON = Record("", "done", model="vgg16", weights="none", layer="features.23", method="contrastive EB")


def photo(path: Path, size: tuple[int, int] = (96, 64), color: str = "steelblue") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def append(directory: Path, *records: Record) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    append_lines(directory / RECORDS, *(record.line() for record in records))


def add(
    directory: Path,
    source: Path,
    classes: Sequence[ClassRecord] = CATS,
    keep: Sequence[str] = ("thumbnails",),
    common: Record = COMMON,
    hot: tuple[int, int] = (1, 0),
    values: np.ndarray | None = None,
    style: DrawingStyle | None = None,
) -> Record:
    """The results of a photo, each map with one hot cell of 4 x 4, or with these values (h, w), and its record.

    Args:
        keep: what the run leaves: ``thumbnails``, ``raw`` arrays.
        hot: column and row.
        style: that of the thumbnails.
    """
    with Image.open(source) as opened:
        image = opened.convert("RGB")
    stamp, relpath = stamp_of(source), output_relpath(source)
    whole = Box(0, 0, *image.size)
    maps = np.zeros((len(classes), 4, 4), np.float32)
    maps[:, hot[1], hot[0]] = 1
    if values is not None:
        maps = np.stack([values.astype(np.float32)] * len(classes))
    for number, one in enumerate(classes):
        maps[number] *= not one.blank
    files = {
        picture_relpath(relpath, one.index, one.name): encode_picture(
            Image.new("RGB", image.size, "red"), "png"
        )
        for one in classes
    }
    if "raw" in keep:
        arrays = {
            "classes": np.array([one.index for one in classes]),
            "maps": maps,
            "image_size": np.array(image.size),
        }
        files[raw_relpath(relpath)] = encode_arrays({**arrays, "crop": np.array([0, 0, *image.size])})
    record = replace(
        common,
        input=str(source),
        place=str(relpath),
        output=tuple(str(directory / path) for path in files),
        output_bytes=tuple(map(len, files.values())),
        output_sha256=tuple(sha256(content).hexdigest() for content in files.values()),
        classes=tuple(replace(one, layer=one.layer or common.layer) for one in classes),
        seconds=0.5,
        input_bytes=stamp.bytes,
        input_mtime_ns=stamp.mtime_ns,
    )
    if "thumbnails" in keep:
        explained = mapped({common.layer: maps}, [one.index for one in classes], whole)
        files |= thumbnails(names_of(record), DisplayFrame(image), framed(explained, image.size, style))
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    append(directory, record)
    return record


def wrote(record: Record, *output: str, content: bytes = b"1234") -> Record:
    """The record with other results, which all have this content."""
    count, digest = len(output), sha256(content).hexdigest()
    return replace(
        record, output=output, output_bytes=(len(content),) * count, output_sha256=(digest,) * count
    )


def names_of(record: Record) -> ThumbnailNames:
    assert record.input_bytes is not None
    assert record.input_mtime_ns is not None
    stamp = FileState(record.input_bytes, record.input_mtime_ns)
    return ThumbnailNames(record.place, stamp, record.configuration, record.method)


def framed(maps: Sequence[Map], size: tuple[int, int], style: DrawingStyle | None = None) -> list[FrameMaps]:
    return [FrameMaps.from_map(map_, size, None, style or DrawingStyle()) for map_ in maps]


def mapped(maps: dict[str, np.ndarray], classes: Sequence[int], place: Box) -> list[Map]:
    """By layers, maps (K, h, w) of K classes."""
    subjects = [Subject(index, None, 0.5) for index in classes]
    return [
        Map(subject=one, layer=layer, values=maps[layer][k], mass=0.5, placement=place)
        for k, one in enumerate(subjects)
        for layer in maps
    ]


def crowd(directory: Path, count: int) -> None:
    """So many images with one class each, of ten, whose thumbnails are all the same file."""
    source = photo(directory.with_name("one.png"))
    first = add(directory, source, CATS[:1])
    names = names_of(first)
    records = []
    for number in range(1, count):
        index = number % 10
        one = ClassRecord(index, f"kind-{index}", number / count, mass=0.5, blank=False, layer=COMMON.layer)
        name = f"photos/{number:05}.jpg"
        record = replace(first, input=name, place=name, output=(f"{name}.{index}.png",))
        record = replace(record, classes=(one,), seconds=number / 1000)
        own = names_of(record)
        maps = own.map(COMMON.layer, index), names.map(COMMON.layer, 282)
        for new, old in ((own.photo, names.photo), maps):
            (directory / new).parent.mkdir(exist_ok=True)
            os.link(directory / old, directory / new)
        records.append(record)
    append(directory, *records)
