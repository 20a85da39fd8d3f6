"""Files that sum up a run: a table, annotations in the format of COCO, and a dataset of FiftyOne with the maps."""

import csv
import io
import json
import os
import zlib
from base64 import b64encode
from collections.abc import Collection, Iterator, Set
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ebcli.datatypes.explanation import JsonObject, Map, Size
from ebcli.drawing.overlay import fitted_size, heatmap
from ebcli.errors import ConfigurationError, import_optional
from ebcli.files.naming import COCO, FIFTYONE_FILES, as_cell, sha256
from ebcli.files.paths import url_of
from ebcli.files.records import ClassRecord, Record, latest_done, read_records
from ebcli.files.sink import atomic_write, check_file
from ebcli.gallery.comparison import SIDE, Files, read_maps

_BOX = ("left", "top", "width", "height")
_VOXEL = ("voxel_x", "voxel_y", "voxel_z")
_WORLD = ("world_x", "world_y", "world_z")
_OF_RECORD = {
    **dict.fromkeys(("input", "status", "error", "model", "weights", "method"), "string"),
    **{"label": "int64", "predicted": "int64", "seconds": "float64"},
}
_OF_MAP = {
    **{"index": "int64", "name": "string", "layer": "string", "evidence": "string"},
    **dict.fromkeys(("score", "value", "mass", "strength", "times_noise", "peak"), "float64"),
    **{"blank": "bool", "at_border": "bool"},
}
_PLACES = dict.fromkeys(_BOX, "float64") | dict.fromkeys(_VOXEL, "int64") | dict.fromkeys(_WORLD, "float64")
# and their types, as Arrow names them
COLUMNS = _OF_RECORD | {"output": "string"} | _OF_MAP | _PLACES
# the same of a run with questions
WORD_COLUMNS = {
    **dict.fromkeys(("input", "status", "error", "model", "method", "question", "answer"), "string"),
    **{"seconds": "float64", "output": "string", "position": "int64", "name": "string", "evidence": "string"},
    **dict.fromkeys(("score", "share", "unplaced"), "float64"),
}
_AT_A_TIME = 10_000  # rows

_LEVELS = 255  # of a heatmap, which makes it small when compressed
_ATTRIBUTES = {"id": "ObjectId", "map": "Array", "range": "HeatmapRange", "label": "String", "confidence": "Float",
               "layer": "String"}  # fmt: skip


def check_table(path: Path, overwrite: bool) -> None:
    """Check that a table can be written, before a run begins.

    Raises:
        ConfigurationError: its name has another suffix, or the file is something else.
        OutputError: its directory cannot be written to.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        problem = f"--records takes a table, but '{path}' is none"
        raise ConfigurationError(f"{problem}: name a .csv or .parquet file")
    tables = [*COLUMNS], [*WORD_COLUMNS]
    check_file(path, overwrite, lambda: _columns(path) in tables, "--records")


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file), [])
    return list(import_optional("pyarrow.parquet", "pyarrow").read_schema(path).names)


def write_table(path: Path, directory: Path, configurations: Set[str], of_words: bool = False) -> None:
    """Write the last record of each input, and of each question about it, that has one of these configurations.

    Memory grows with the number of inputs by little more than their names.

    Args:
        path: the file.
        directory: the output directory of the run.
        configurations: those of its records.
        of_words: whether the maps are those of words.

    Raises:
        OSError: there are no records.
        OutputError: the file cannot be written.
    """
    records = enumerate(read_records(directory))
    latest = {}
    for number, record in records:
        if record.configuration in configurations:
            latest[record.input, record.query] = number
    numbers = set(latest.values())
    latest_records = (record for number, record in enumerate(read_records(directory)) if number in numbers)
    columns = WORD_COLUMNS if of_words else COLUMNS
    rows = chain.from_iterable(_rows(record, columns) for record in latest_records)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, columns)
                table.writeheader()
                table.writerows(map(_as_cells, rows))
            return
        arrow = import_optional("pyarrow")
        parquet = import_optional("pyarrow.parquet", "pyarrow")
        schema = arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in columns.items()])
        with parquet.ParquetWriter(temporary, schema) as table:
            while part := [*islice(rows, _AT_A_TIME)]:
                table.write_table(arrow.Table.from_pylist(part, schema))


def _rows(record: Record, columns: Collection[str]) -> Iterator[JsonObject]:
    """A row for each map of an input; one for an input without any."""
    common = _fields(record, columns)
    del common["output"]
    if columns is COLUMNS:
        del common["method"]  # in words; each map has the name of its own
    if not record.classes:
        yield common
    outputs = record.output
    if len(outputs) < len(record.classes):  # a figure of all maps
        outputs = outputs[:1] * len(record.classes)
    for class_, output in zip(record.classes, outputs, strict=False):
        row = _fields(class_, columns) | common | {"output": _printable(output)}
        box = class_.box or (class_.region or {}).get("box")
        if box:
            row |= zip(_BOX, box.xywh, strict=True)
        if class_.voxel:
            row |= zip(_VOXEL, class_.voxel, strict=True)
        if class_.world:
            row |= zip(_WORLD, class_.world, strict=True)
        yield row


def _as_cells(row: JsonObject) -> JsonObject:
    return {name: as_cell(value) if isinstance(value, str) else value for name, value in row.items()}


def _fields(item: Record | ClassRecord, columns: Collection[str]) -> JsonObject:
    """The fields of a record that are columns."""
    return {name: _printable(getattr(item, name)) for name in columns if hasattr(item, name)}


def _printable(value: Any) -> Any:
    """A value; in a text, bytes of file names that are not UTF-8 are spelled out."""
    return os.fsencode(value).decode(errors="backslashreplace") if isinstance(value, str) else value


def coco_files(directory: Path, configuration: str) -> Files:
    """The annotations of all images that were done with a configuration, in the order of their paths.

    Image files are named as they were given; categories have the class indices as ids; annotations have a score. COCO's
    boxes are left, top, width and height.

    Raises:
        OSError: there are no records.
    """
    images: list[JsonObject] = []
    annotations: list[JsonObject] = []
    names: dict[int, str] = {}
    for record in latest_done(directory, configuration):
        if record.image_size is None:
            continue
        width, height = record.image_size
        images.append({"id": len(images) + 1, "file_name": record.input, "width": width, "height": height})
        for class_ in record.classes:
            if class_.region is None:
                continue
            names[class_.index] = class_.label
            annotation = {
                "id": len(annotations) + 1,
                "image_id": len(images),
                "category_id": class_.index,
                "bbox": class_.region["box"].xywh,
                "area": class_.region["area"],
                "iscrowd": 0,
                "score": class_.score if class_.value is None else class_.value,
            }
            polygon = class_.region["polygon"]
            if polygon:  # none rather than an empty list, which Label Studio's converter takes for a polygon
                annotation["segmentation"] = [polygon]
            annotations.append(annotation)
    categories = [{"id": index, "name": name} for index, name in sorted(names.items())]
    content = {"info": {"description": "eb-saliency"}, "images": images, "categories": categories}
    return {COCO: json.dumps({**content, "annotations": annotations}).encode()}


def fiftyone_files(directory: Path, configuration: str) -> Files:
    """The files of the dataset: a sample per image that was done with a configuration and has an ``.npz`` file.

    The heatmaps of a sample are ``saliency``, ``saliency_2``, ...; each covers its image, and has its class as
    ``label``, its score as ``confidence``, and its ``layer``.

    Raises:
        OSError: there are no records.
    """
    samples: list[JsonObject] = []
    names: dict[str, None] = {}
    for record in latest_done(directory, configuration):
        image = read_maps(directory, record)
        if image is None:
            continue
        place = url_of(Path(record.input)) or str(Path(record.input).absolute())
        id_ = _id(place)
        sample: JsonObject = {
            "_id": id_,
            "_rand": int(id_["$oid"][:8], 16) / 2**32,
            "_media_type": "image",
            "filepath": place,
            "tags": [],
        }
        for number, map_ in enumerate(image.maps, start=1):
            name = f"saliency_{number}" if number > 1 else "saliency"
            sample[name] = {"_id": _id(place, name), **_heatmap(map_, image.size)}
            names[name] = None
        samples.append(sample)
    attributes = [_field(name, kind) for name, kind in _ATTRIBUTES.items()]
    document = {"embedded_doc_type": "fiftyone.core.labels.Heatmap", "fields": attributes}
    fields = [_field("id", "ObjectId"), _field("filepath", "String")]
    fields += [_field(name, "EmbeddedDocument") | document for name in names]
    # later versions migrate it
    metadata = {"version": "1.0.0", "media_type": "image", "sample_fields": fields}
    contents = [json.dumps(content).encode() for content in (metadata, {"samples": samples})]
    return dict(zip(FIFTYONE_FILES, contents, strict=True))


def _heatmap(map_: Map, size: Size) -> JsonObject:
    small = fitted_size(size, SIDE)
    values = heatmap(map_.values, map_.placement.rescale(size, small), small, map_.is_two_sided)
    peak = float(np.abs(values).max()) or 1.0
    file = io.BytesIO()
    np.save(file, np.rint(values / peak * _LEVELS) * np.float32(peak / _LEVELS))
    content = {"base64": b64encode(zlib.compress(file.getvalue())).decode(), "subType": "00"}
    return {
        "_cls": "Heatmap",
        "map": {"$binary": content},
        "range": [-peak if map_.is_two_sided else 0.0, peak],
        "label": map_.subject.label,
        "confidence": map_.subject.score,
        "layer": map_.layer,
    }


def _field(name: str, kind: str) -> JsonObject:
    kind = f"fiftyone.core.fields.{kind}Field"
    return {"name": name, "ftype": kind, "db_field": "_id" if name == "id" else name}


def _id(*parts: str) -> dict[str, str]:
    return {"$oid": sha256("\0".join(parts).encode(), 24)}
