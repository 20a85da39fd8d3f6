"""Small data sets in the formats of VOC and COCO."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from color_net import Rectangle
from PIL import Image


@dataclass(frozen=True)
class Thing:
    """An object in an image; ``flagged`` means difficult in VOC, a crowd in COCO."""

    name: str
    rectangle: Rectangle
    flagged: bool = False


def write_annotation(path: Path, size: tuple[int, int], things: Sequence[Thing]) -> None:
    """Write VOC's XML, which counts pixels from 1."""
    root = ET.Element("annotation")
    ET.SubElement(root, "folder").text = "VOC2007"
    ET.SubElement(root, "filename").text = f"{path.stem}.jpg"
    extent = ET.SubElement(root, "size")
    for name, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
        ET.SubElement(extent, name).text = str(value)
    for thing in things:
        item = ET.SubElement(root, "object")
        ET.SubElement(item, "name").text = thing.name
        ET.SubElement(item, "pose").text = "Unspecified"
        ET.SubElement(item, "difficult").text = str(int(thing.flagged))
        box = ET.SubElement(item, "bndbox")
        left, top, right, bottom = thing.rectangle
        for name, value in {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}.items():
            ET.SubElement(box, name).text = str(value)
        # VOC also annotates parts of people
        ET.SubElement(ET.SubElement(item, "part"), "name").text = "head"
    ET.indent(root)
    ET.ElementTree(root).write(path)


def write_voc(
    root: Path, images: dict[str, tuple[Image.Image, Sequence[Thing]]], split: str = "test"
) -> Path:
    """Write VOCdevkit/VOC2007 in a directory."""
    home = root / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (home / folder).mkdir(parents=True)
    for name, (image, things) in images.items():
        image.save(home / "JPEGImages" / f"{name}.jpg", quality=95, subsampling=0)
        write_annotation(home / "Annotations" / f"{name}.xml", image.size, things)
    (home / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in images))
    return root


def write_coco(
    folder: Path, categories: dict[int, str], images: dict[str, tuple[Image.Image, Sequence[Thing]]]
) -> tuple[Path, Path]:
    """Write a directory of images and a file of annotations: polygons, or run lengths for crowds."""
    photos = folder / "val2014"
    photos.mkdir(parents=True)
    numbers = {name: number for number, name in categories.items()}
    content: dict[str, Any] = {"images": [], "annotations": []}
    content["categories"] = [{"id": number, "name": name} for number, name in categories.items()]
    for number, (name, (image, things)) in enumerate(images.items(), start=100):
        image.save(photos / name)
        width, height = image.size
        content["images"].append({"id": number, "file_name": name, "width": width, "height": height})
        for thing in things:
            left, top, right, bottom = thing.rectangle
            outline: Any = [[left, top, right, top, right, bottom, left, bottom]]
            if thing.flagged:
                outline = {"size": [height, width], "counts": run_lengths(image.size, thing.rectangle)}
            entry = {
                "id": len(content["annotations"]) + 1,
                "image_id": number,
                "category_id": numbers[thing.name],
                "iscrowd": int(thing.flagged),
                "segmentation": outline,
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
            }
            content["annotations"].append(entry)
    file = folder / "instances_val2014.json"
    file.write_text(json.dumps(content))
    return photos, file


def run_lengths(size: tuple[int, int], rectangle: Rectangle) -> list[int]:
    """COCO's uncompressed masks: lengths of alternating runs of 0 and 1, column by column."""
    (width, height), (left, top, right, bottom) = size, rectangle
    counts = [left * height + top]
    for _ in range(right - left - 1):
        counts += [bottom - top, height - (bottom - top)]
    return [*counts, bottom - top, width * height - ((right - 1) * height + bottom)]
