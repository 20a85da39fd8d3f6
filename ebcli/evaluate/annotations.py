"""Object annotations in the formats of PASCAL VOC and COCO."""

import contextlib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from ebcli.errors import ConfigurationError, ImageError, closest
from ebcli.imports import import_optional
from ebcli.models import read_class_names
from ebcli.nouns.box import Box

VOC_CLASSES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor".split()
)


@dataclass(frozen=True)
class Annotated:
    """An object in an image: its class name, its box in pixels, and whether VOC flags it as *difficult*."""

    name: str
    box: Box
    flagged: bool


class AnnotatedImages(Protocol):
    """A data set for the pointing game.

    Attributes:
        name: its name in results.
        classes: class names in the order of the network's outputs.
        keys: names of the images.
        settings: everything that the questions depend on.
    """

    name: str
    classes: Sequence[str]
    keys: Sequence[str]
    settings: dict[str, object]

    def path(self, key: str) -> Path:
        """File of an image."""

    def masks(self, key: str, size: tuple[int, int]) -> dict[int, NDArray[np.bool_]]:
        """Masks (height, width) of the classes in an image of ``size`` (width, height), by class index.

        Raises:
            ImageError: the annotation is broken, or belongs to an image of another size.
        """


class Voc:
    """PASCAL VOC, read by torchvision's ``VOCDetection``.

    Args:
        root: directory that contains ``VOCdevkit``.
        year, split: such as ``"2007"`` and ``"test"``.
        class_names: class names in the order of the network's outputs; None for VOC's twenty, alphabetically.
        skip_flagged: ignore objects that VOC flags as difficult.

    Raises:
        ConfigurationError: the data set does not exist, or has no images.
    """

    def __init__(
        self,
        root: Path,
        year: str = "2007",
        split: str = "test",
        class_names: Sequence[str] | None = None,
        skip_flagged: bool = False,
    ) -> None:
        from torchvision.datasets import VOCDetection

        try:
            found = VOCDetection(str(root), year, split)
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"VOC {year} {split} is not in '{root}', which must contain VOCdevkit/VOC{year} with JPEGImages, "
                f"Annotations and ImageSets/Main/{split}.txt"
            ) from error
        self.name = f"VOC {year} {split}"
        self.classes: Sequence[str] = class_names or VOC_CLASSES
        self._files = {
            Path(image).stem: (Path(image), Path(annotation))
            for image, annotation in zip(found.images, found.targets, strict=True)
        }
        self.keys: Sequence[str] = list(self._files)
        self._skip_flagged = skip_flagged
        self.settings = _settings(self, root, skip_flagged)
        if not self.keys:
            raise ConfigurationError(f"{self.name} in '{root}' is empty: ImageSets/Main/{split}.txt lists no images")

    def path(self, key: str) -> Path:
        return self._files[key][0]

    def masks(self, key: str, size: tuple[int, int]) -> dict[int, NDArray[np.bool_]]:
        annotated_size, objects = read_voc(self._files[key][1])
        _check_size(size, annotated_size)
        masks: dict[int, NDArray[np.bool_]] = {}
        for item in objects:
            if item.flagged and self._skip_flagged:
                continue
            if item.name not in self.classes:
                hint = closest(item.name, self.classes) or "set them with --class-names"
                raise ImageError(f"annotated with {item.name!r}, which is not among the class names: {hint}")
            mask = masks.setdefault(self.classes.index(item.name), np.zeros(size[::-1], dtype=bool))
            left, top, right, bottom = (max(0, round(edge)) for edge in item.box)
            mask[top:bottom, left:right] = True
        return {index: mask for index, mask in masks.items() if mask.any()}


class Coco:
    """COCO: a directory of images and a file of annotations.

    The classes are the file's categories, ordered by id. Objects are given by their masks, not their boxes; crowds
    count as objects.

    Args:
        images: the directory.
        annotations: the file, such as ``instances_val2014.json``.
        skip_flagged: ignore crowds.

    Raises:
        ConfigurationError: the directory or the file does not exist or cannot be read, or pycocotools is missing.
    """

    def __init__(self, images: Path, annotations: Path, skip_flagged: bool = False) -> None:
        reader = import_optional("pycocotools.coco").COCO
        if not os.path.isdir(images):
            raise ConfigurationError(f"the directory of COCO's images '{images}' does not exist")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
                self._coco = reader(str(annotations))
            self._ids = sorted(self._coco.getCatIds())
            self.classes: Sequence[str] = tuple(category["name"] for category in self._coco.loadCats(self._ids))
            self._files = {item["file_name"]: item for _, item in sorted(self._coco.imgs.items())}
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise ConfigurationError(f"'{annotations}' is not a file of COCO annotations: {error}") from error
        self.name = f"COCO {annotations.stem}"
        self.keys: Sequence[str] = list(self._files)
        self._folder, self._skip_flagged = images, skip_flagged
        self.settings = _settings(self, annotations, skip_flagged)
        if not (self.keys and self.classes):
            raise ConfigurationError(f"'{annotations}' lists no {'categories' if self.keys else 'images'}")

    def path(self, key: str) -> Path:
        return self._folder / key

    def masks(self, key: str, size: tuple[int, int]) -> dict[int, NDArray[np.bool_]]:
        image = self._files[key]
        _check_size(size, (image["width"], image["height"]))
        masks: dict[int, NDArray[np.bool_]] = {}
        for item in self._coco.imgToAnns[image["id"]]:
            if item.get("iscrowd") and self._skip_flagged:
                continue
            index = self._ids.index(item["category_id"])
            masks[index] = masks.get(index, False) | self._mask(item)
        return {index: mask for index, mask in masks.items() if mask.any()}

    def _mask(self, item: dict[str, Any]) -> NDArray[np.bool_]:
        try:
            return np.asarray(self._coco.annToMask(item), dtype=bool)
        except Exception as error:  # pycocotools raises many types
            raise ImageError(f"cannot read the segmentation of annotation {item.get('id')}") from error


def _settings(data: AnnotatedImages, source: Path, skip_flagged: bool) -> dict[str, object]:
    return {
        "data": data.name,
        "source": str(source.absolute()),
        "classes": list(data.classes),
        "skip flagged": skip_flagged,
    }


def read_voc(path: Path) -> tuple[tuple[int, int], list[Annotated]]:
    """Read an annotation of VOC or ImageNet: the image's (width, height), and its objects.

    Pixels are counted from 1 in the file; the boxes returned are edges, with (0, 0) at the top left corner.

    Raises:
        ImageError: the file cannot be read, or is broken.
    """
    try:
        root = ET.parse(path).getroot()
        objects = []
        for item in root.iter("object"):
            left, top, right, bottom = (
                float(_text(item, f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            flagged = item.findtext("difficult", "0").strip() == "1"
            objects.append(Annotated(_text(item, "name"), Box(left - 1, top - 1, right, bottom), flagged))
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
    found = element.findtext(path)
    if found is None:
        raise ValueError(f"{path} is missing")
    return found.strip()


def _check_size(size: tuple[int, int], annotated: tuple[int, int]) -> None:
    if size != annotated:
        raise ImageError(
            f"the image has {size[0]} x {size[1]} pixels, but its annotation says {annotated[0]} x {annotated[1]}"
        )
