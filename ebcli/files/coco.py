"""The boxes and masks of a run in COCO's format, as ``annotations.json``."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ebcli.files.naming import COCO
from ebcli.files.records import Record, latest_done


def coco_files(directory: Path, configuration: str) -> dict[Path, bytes]:
    """The annotations of all images that were done with a configuration, in the order of their paths.

    Image files are named as they were given; categories have the class indices as ids; annotations have a score. COCO's
    boxes are left, top, width and height.

    Raises:
        OSError: there are no records.
    """
    return {COCO: json.dumps(_content(latest_done(directory, configuration))).encode()}


def _content(records: Iterable[Record]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names: dict[int, str] = {}
    for record in records:
        if record.image_size is None:
            continue
        width, height = record.image_size
        images.append({"id": len(images) + 1, "file_name": record.input, "width": width, "height": height})
        for one in record.classes:
            if one.region is None:
                continue
            names[one.index] = one.name or f"class {one.index}"
            box, area, polygon = (one.region[name] for name in ("box", "area", "polygon"))
            about = {"id": len(annotations) + 1, "image_id": len(images), "category_id": one.index}
            # none rather than an empty list, which Label Studio's converter takes for a polygon
            outline = {"segmentation": [polygon]} if polygon else {}
            annotations.append({**about, "bbox": box.sized, "area": area, **outline, "iscrowd": 0, "score": one.score})
    categories = [{"id": index, "name": names[index]} for index in sorted(names)]
    info = {"description": "eb-saliency"}
    return {"info": info, "images": images, "categories": categories, "annotations": annotations}
