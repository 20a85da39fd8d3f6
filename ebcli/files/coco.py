"""The boxes and masks of a run in COCO's format, as ``annotations.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ebcli.files.history import ParsedRecord, read_records
from ebcli.files.naming import COCO_MARK


def coco_file(directory: Path, configuration: str) -> bytes:
    """The annotations of all images that were done with a configuration, in the order of their paths.

    Image files are named as they were given; categories have the class indices as ids; annotations have a score. COCO's
    boxes are left, top, width and height.

    Raises:
        OSError: there are no records.
    """
    latest: dict[str, ParsedRecord] = {}
    for record in read_records(directory):
        if record.configuration == configuration and record.status == "done":
            latest[record.place] = record
    return COCO_MARK + json.dumps(_content(latest[place] for place in sorted(latest))).encode().removeprefix(b"{")


def _content(records: Iterable[ParsedRecord]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names: dict[int, str] = {}
    for record in records:
        if not _is_list_of_numbers(record.image_size, 2):
            continue
        width, height = record.image_size
        images.append({"id": len(images) + 1, "file_name": record.input, "width": width, "height": height})
        for one in record.classes:
            region = one.get("region")
            if not isinstance(region, dict) or not _is_list_of_numbers(region.get("box"), 4):
                continue
            names[one["index"]] = one["name"] or f"class {one['index']}"
            polygon = region.get("polygon")
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": len(images),
                    "category_id": one["index"],
                    "bbox": region["box"],
                    "area": region.get("area"),
                    # none rather than an empty list, which Label Studio's converter takes for a polygon
                    **({"segmentation": [polygon]} if _is_list_of_numbers(polygon) else {}),
                    "iscrowd": 0,
                    "score": one["score"],
                }
            )
    categories = [{"id": index, "name": names[index]} for index in sorted(names)]
    return {"images": images, "categories": categories, "annotations": annotations}


def _is_list_of_numbers(value: Any, count: int | None = None) -> bool:
    return (
        isinstance(value, list)
        and (count is None or len(value) == count)
        and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value)
    )
