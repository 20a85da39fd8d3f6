"""Images with the truth about them: classes from a file, objects in the formats of PASCAL VOC and COCO."""

import contextlib
import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.explanation import Box, Size
from ebcli.errors import ConfigurationError, ImageError, closest, import_optional, reason, sides
from ebcli.files.images import decode, has_image_suffix
from ebcli.files.naming import from_cell
from ebcli.files.sources import find_sources
from ebcli.models.classes import Names, read_class_names, read_labels
from ebcli.models.loaded import configuration_hash

Mask = NDArray[np.bool_]  # (height, width)
MaskedObject = tuple[int, Mask]  # class index, mask
Annotation = tuple[Size, Iterable[MaskedObject]]  # of an image

VOC_CLASSES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant "
    "sheep sofa train tvmonitor".split()
)


class AnnotatedObject(NamedTuple):
    """An object in an image: its class name, and its box in pixels."""

    name: str
    box: Box


class Images:
    """Images of a data set.

    Attributes:
        files: the file of each image, by the image's name.
        keys: names of the images to use.
        settings: everything that questions about them depend on.
    """

    files: Mapping[str, Path]
    keys: Sequence[str]
    settings: dict[str, object]

    def read(self, key: str) -> Image.Image:
        """An image, RGB. Raises ImageError if it cannot be read."""
        return decode(self.files[key])


class LabeledImages(Images):
    """The images in a directory, searched recursively.

    Args:
        folder: the directory.
        labels: CSV file with two columns, an image's path relative to the directory and its class by index or name;
            images it does not list are skipped. None to use the predicted class of every image.
        categories, num_classes: the network's classes.

    Raises:
        ConfigurationError: there are no images, or the labels do not match them.

    Attributes:
        labels: class of each image; None if unknown.
    """

    def __init__(self, folder: Path, labels: Path | None, categories: Names, num_classes: int) -> None:
        paths = [source.path for source in find_sources([folder]) if source.span is None]
        self.files = {path.relative_to(folder).as_posix(): path for path in paths if has_image_suffix(path)}
        self.labels: dict[str, int] | None = None
        if labels is not None:
            rows = read_labels(labels, categories, num_classes)
            self.labels = {Path(*parts).as_posix(): row.label for parts, row in rows.items()}
            unknown = self.labels.keys() - self.files
            if unknown:
                raise ConfigurationError(
                    f"'{labels}' lists '{min(unknown)}', which is not an image in '{folder}'"
                )
        self.keys = [key for key in self.files if self.labels is None or key in self.labels]
        if not self.keys:
            raise ConfigurationError(f"there are no images in '{folder}'")
        labels_hash = configuration_hash({"labels": self.labels})
        self.settings = {"data": str(folder.absolute()), "labels": labels_hash}


class AnnotatedImages(Images, ABC):
    """A data set for the pointing game.

    Args:
        name: its name in results.
        source: where it is.
        classes: class names in the order of the network's outputs.
        files: the file of each image, by the image's name.
    """

    def __init__(self, name: str, source: Path, classes: Sequence[str], files: Mapping[str, Path]) -> None:
        self.name = name
        self.classes = classes
        self.files = files
        self.keys = [*files]
        self.settings = {"data": name, "source": str(source.absolute()), "classes": list(classes)}

    @abstractmethod
    def objects(self, key: str) -> Annotation:
        """The size (width, height) of an image; and the objects in it, each with its class's index and its mask.

        Raises:
            ImageError: the annotation is broken.
        """

    def masks(self, key: str, size: Size) -> dict[int, Mask]:
        """Masks (height, width) of the classes in an image of ``size`` (width, height), by class index.

        Raises:
            ImageError: the annotation is broken, or belongs to an image of another size.
        """
        annotated_size, objects = self.objects(key)
        if size != annotated_size:
            raise ImageError(
                f"the image has {sides(size)} pixels, but its annotation says {sides(annotated_size)}"
            )
        masks: dict[int, Mask] = {}
        for index, mask in objects:
            masks[index] = masks.get(index, False) | mask
        return {index: mask for index, mask in masks.items() if mask.any()}


class Voc(AnnotatedImages):
    """The test images of PASCAL VOC 2007, read by torchvision's ``VOCDetection``.

    Args:
        root: directory that contains ``VOCdevkit``.
        class_names: class names in the order of the network's outputs; None for VOC's twenty, alphabetically.

    Raises:
        ConfigurationError: the data set does not exist, or has no images.
    """

    def __init__(self, root: Path, class_names: Names = None) -> None:
        from torchvision.datasets import VOCDetection

        try:
            data_set = VOCDetection(str(root), "2007", "test")
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"VOC 2007 test is not in '{root}', which must contain VOCdevkit/VOC2007 with JPEGImages, "
                "Annotations and ImageSets/Main/test.txt"
            ) from error
        files = {Path(path).stem: Path(path) for path in data_set.images}
        self._annotations = dict(zip(files, map(Path, data_set.targets), strict=True))
        super().__init__("VOC 2007 test", root, class_names or VOC_CLASSES, files)
        if not self.keys:
            raise ConfigurationError(
                f"VOC 2007 test in '{root}' is empty: ImageSets/Main/test.txt lists no images"
            )

    def objects(self, key: str) -> Annotation:
        size, objects = read_voc(self._annotations[key])
        return size, (self._mask(item, size) for item in objects)

    def _mask(self, item: AnnotatedObject, size: Size) -> MaskedObject:
        if item.name not in self.classes:
            hint = closest(item.name, self.classes) or "set them with --class-names"
            raise ImageError(f"annotated with {item.name!r}, which is not among the class names: {hint}")
        return self.classes.index(item.name), box_mask([item.box], size)


class Coco(AnnotatedImages):
    """COCO: a directory of images and a file of annotations.

    The classes are the file's categories, ordered by id. Objects are given by their masks, not their boxes; crowds
    count as objects.

    Args:
        images: the directory.
        annotations: the file, such as ``instances_val2014.json``.

    Raises:
        ConfigurationError: the file cannot be read, or pycocotools is missing.
    """

    def __init__(self, images: Path, annotations: Path) -> None:
        reader = import_optional("pycocotools.coco").COCO
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
                self._coco = reader(str(annotations))
            self._ids = sorted(self._coco.getCatIds())
            classes = tuple(category["name"] for category in self._coco.loadCats(self._ids))
            self._images = {item["file_name"]: item for _, item in sorted(self._coco.imgs.items())}
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise ConfigurationError(f"'{annotations}' is not a file of COCO annotations: {error}") from error
        files = {name: images / name for name in self._images}
        super().__init__(f"COCO {annotations.stem}", annotations, classes, files)
        if not files:
            raise ConfigurationError(f"'{annotations}' lists no images")
        if not classes:
            raise ConfigurationError(f"'{annotations}' lists no categories")

    def objects(self, key: str) -> Annotation:
        image = self._images[key]
        return (image["width"], image["height"]), map(self._mask, self._coco.imgToAnns[image["id"]])

    def _mask(self, item: dict[str, Any]) -> MaskedObject:
        try:
            mask = np.asarray(self._coco.annToMask(item), dtype=bool)
        except Exception as error:  # pycocotools raises many types
            raise ImageError(f"cannot read the segmentation of annotation {item.get('id')}") from error
        return self._ids.index(item["category_id"]), mask


def box_mask(boxes: Iterable[Box], size: Size) -> Mask:
    """The mask (height, width) of boxes in an image of ``size`` (width, height)."""
    width, height = size
    mask = np.zeros((height, width), dtype=bool)
    for box in boxes:
        left, top, right, bottom = (max(0, round(edge)) for edge in box)
        mask[top:bottom, left:right] = True
    return mask


class Boxes(ABC):
    """Boxes of the objects in images.

    Attributes:
        files: the images that have boxes, relative to their directory; None if only a look at each can tell.
    """

    files: Collection[str] | None = None

    @abstractmethod
    def of_image(self, key: str) -> Sequence[AnnotatedObject]:
        """The objects in an image, by its path relative to the directory of images.

        Raises:
            ImageError: there is no annotation, or it is broken.
        """


class VocBoxes(Boxes):
    """A directory, searched recursively, with ``NAME.xml`` in VOC's format for an image ``NAME.JPEG``.

    Raises:
        ConfigurationError: there are no annotations.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path.stem: path for path in folder.rglob("*.xml")}
        if not self._files:
            formats = (
                "a directory of VOC's XML files, a file in COCO's format (.json), or a CSV file of boxes"
            )
            raise ConfigurationError(f"there are no annotations (*.xml) in '{folder}': name {formats}")

    def of_image(self, key: str) -> Sequence[AnnotatedObject]:
        stem = Path(key).stem
        if stem not in self._files:
            raise ImageError(f"its annotation {stem}.xml does not exist")
        _, objects = read_voc(self._files[stem])
        return objects


class ListedBoxes(Boxes):
    """Boxes that one file lists.

    Args:
        objects: the objects by the image's path, relative to the directory of images.
    """

    def __init__(self, objects: Mapping[str, Sequence[AnnotatedObject]]) -> None:
        self.files = objects.keys()
        self._objects = objects

    def of_image(self, key: str) -> Sequence[AnnotatedObject]:
        return self._objects[key]


def read_boxes(path: Path) -> Boxes:
    """Read annotations: a directory of VOC's XML files, a file in COCO's format (.json), or a CSV file.

    Lines of a CSV file are an image's path, a class by index or name, and the edges of a box in pixels: left, top,
    right, bottom. Of COCO's file, the boxes are read and not the masks.

    Raises:
        ConfigurationError: there are no annotations, or they are broken.
    """
    if path.is_dir():
        return VocBoxes(path)
    read = _read_coco if path.suffix.lower() == ".json" else _read_csv
    objects: dict[str, list[AnnotatedObject]] = {}
    try:
        for image, item in read(path):
            objects.setdefault(Path(image).as_posix(), []).append(item)
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise ConfigurationError(f"cannot read boxes from '{path}': {reason(error)}") from error
    if not objects:
        raise ConfigurationError(f"'{path}' lists no boxes")
    return ListedBoxes(objects)


def _read_coco(path: Path) -> Iterator[tuple[str, AnnotatedObject]]:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    images = {image["id"]: image["file_name"] for image in content["images"]}
    names = {category["id"]: category["name"] for category in content["categories"]}
    for item in content["annotations"]:
        left, top, width, height = map(float, item["bbox"])
        box = Box.from_xywh(left, top, width, height)
        yield images[item["image_id"]], AnnotatedObject(names[item["category_id"]], box)


def _read_csv(path: Path) -> Iterator[tuple[str, AnnotatedObject]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        for row in reader:
            if not row or row[2:] == ["left", "top", "right", "bottom"]:
                continue
            if len(row) != 6:
                raise ValueError(
                    f"line {reader.line_num}, {','.join(row)!r}, must be a file, a class, and the left, top, right and "
                    "bottom edge"
                )
            image, name, *edges = map(from_cell, row)
            left, top, right, bottom = map(float, edges)
            yield image, AnnotatedObject(name.strip(), Box(left, top, right, bottom))


def read_voc(path: Path) -> tuple[Size, list[AnnotatedObject]]:
    """Read an annotation of VOC or ImageNet: the image's (width, height), and its objects.

    Pixels are counted from 1 in the file; the boxes returned are edges, with (0, 0) at the top left corner.

    Raises:
        ImageError: the file cannot be read, or is broken.
    """
    try:
        root = ET.parse(path).getroot()
        objects = []
        for item in root.iter("object"):
            edges = ("xmin", "ymin", "xmax", "ymax")
            left, top, right, bottom = (float(_text(item, f"bndbox/{edge}")) for edge in edges)
            objects.append(AnnotatedObject(_text(item, "name"), Box(left - 1, top - 1, right, bottom)))
        return (int(_text(root, "size/width")), int(_text(root, "size/height"))), objects
    except OSError as error:
        raise ImageError(f"cannot read annotation '{path}': {error.strerror}") from error
    except (ET.ParseError, ValueError) as error:
        raise ImageError(f"annotation '{path}' is broken: {error}") from error


def read_annotated_names(path: Path) -> list[str]:
    """Read class names as annotations spell them: ``n01440764`` for the line ``n01440764 tench, Tinca tinca``.

    Raises:
        ConfigurationError: see ``read_class_names``.
    """
    return [re.sub(r"^(n\d{8})\b.*", r"\1", name) for name in read_class_names(path)]


def _text(element: ET.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"{path} is missing")
    return text.strip()
