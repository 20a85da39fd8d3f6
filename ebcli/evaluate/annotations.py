"""Where objects are: data sets in the formats of PASCAL VOC and COCO."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from ebcli.errors import ConfigurationError, ImageError, closest
from ebcli.evaluate.metrics import Box
from ebcli.imports import import_optional
from ebcli.models import read_class_names

VOC_CLASSES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor".split()
)


@dataclass(frozen=True)
class Annotated:
    """An object in an image: its class's name, its box in pixels, and whether VOC calls it *difficult*."""

    name: str
    box: Box
    flagged: bool


class AnnotatedImages(Protocol):
    """A data set for the pointing game.

    Attributes:
        name: what results call it.
        classes: the classes' names, in the order of a network's outputs.
        keys: the images' names.
        settings: what the questions depend on.
    """

    name: str
    classes: Sequence[str]
    keys: Sequence[str]
    settings: dict[str, object]

    def path(self, key: str) -> Path:
        """An image's file."""

    def masks(self, key: str, size: tuple[int, int]) -> dict[int, NDArray[np.bool_]]:
        """Where each class is that an image shows, (height, width), for an image of ``size`` (width, height).

        Raises:
            ImageError: the annotation is broken, or of an image of another size.
        """


class Voc:
    """A directory that holds ``VOCdevkit/VOC2007``, or another year, as torchvision's ``VOCDetection`` reads it.

    Args:
        root: the directory.
        year, split: such as ``"2007"`` and ``"test"``.
        classes: the names of the classes, in the order of the network's outputs; None for VOC's twenty, by name.
        skip_flagged: take no notice of the objects that VOC calls difficult.

    Raises:
        ConfigurationError: it is not there, or holds no images.
    """

    def __init__(
        self,
        root: Path,
        year: str = "2007",
        split: str = "test",
        classes: Sequence[str] | None = None,
        skip_flagged: bool = False,
    ) -> None:
        from torchvision.datasets import VOCDetection

        try:
            found = VOCDetection(str(root), year, split)
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"there is no VOC {year} {split} in '{root}': it must hold VOCdevkit/VOC{year} with JPEGImages, "
                f"Annotations and ImageSets/Main/{split}.txt"
            ) from error
        self.name = f"VOC {year} {split}"
        self.classes: Sequence[str] = classes or VOC_CLASSES
        self._files = {
            Path(image).stem: (Path(image), Path(annotation))
            for image, annotation in zip(found.images, found.targets, strict=True)
        }
        self.keys: Sequence[str] = list(self._files)
        self._skip_flagged = skip_flagged
        self.settings = _settings(self, root, skip_flagged)
        if not self.keys:
            raise ConfigurationError(f"{self.name} in '{root}' is empty: ImageSets/Main/{split}.txt names no image")

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
                hint = closest(item.name, self.classes) or "name the classes with --classes"
                raise ImageError(f"it is annotated with {item.name!r}, which is none of the classes: {hint}")
            mask = masks.setdefault(self.classes.index(item.name), np.zeros(size[::-1], dtype=bool))
            left, top, right, bottom = (max(0, round(edge)) for edge in item.box)
            mask[top:bottom, left:right] = True
        return {index: mask for index, mask in masks.items() if mask.any()}


class Coco:
    """A directory of images and COCO's file of annotations for them, as torchvision's ``CocoDetection`` takes them.

    The classes are the file's categories, in the order of their numbers. The objects' masks count, not their boxes;
    crowds are objects like others.

    Args:
        images: the directory.
        annotations: the file, such as ``instances_val2014.json``.
        skip_flagged: take no notice of crowds.

    Raises:
        ConfigurationError: they are not there, or no such file, or pycocotools is missing.
    """

    def __init__(self, images: Path, annotations: Path, skip_flagged: bool = False) -> None:
        reader = import_optional("pycocotools.coco").COCO
        if not images.is_dir():
            raise ConfigurationError(f"there is no directory '{images}' of COCO's images")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it tells how it is getting on
                self._coco = reader(str(annotations))
            self._numbers = sorted(self._coco.getCatIds())
            self.classes: Sequence[str] = tuple(category["name"] for category in self._coco.loadCats(self._numbers))
            self._files = {item["file_name"]: item for _, item in sorted(self._coco.imgs.items())}
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise ConfigurationError(f"'{annotations}' is no file of COCO annotations: {error}") from error
        self.name = f"COCO {annotations.stem}"
        self.keys: Sequence[str] = list(self._files)
        self._folder, self._skip_flagged = images, skip_flagged
        self.settings = _settings(self, annotations, skip_flagged)
        if not (self.keys and self.classes):
            raise ConfigurationError(f"'{annotations}' names no {'categories' if self.keys else 'images'}")

    def path(self, key: str) -> Path:
        return self._folder / key

    def masks(self, key: str, size: tuple[int, int]) -> dict[int, NDArray[np.bool_]]:
        image = self._files[key]
        _check_size(size, (image["width"], image["height"]))
        masks: dict[int, NDArray[np.bool_]] = {}
        for item in self._coco.imgToAnns[image["id"]]:
            if item.get("iscrowd") and self._skip_flagged:
                continue
            index = self._numbers.index(item["category_id"])
            masks[index] = masks.get(index, False) | self._mask(item)
        return {index: mask for index, mask in masks.items() if mask.any()}

    def _mask(self, item: dict[str, Any]) -> NDArray[np.bool_]:
        try:
            return np.asarray(self._coco.annToMask(item), dtype=bool)
        except Exception as error:  # whatever pycocotools stumbles over
            raise ImageError(f"its annotation {item.get('id')} has no segmentation that can be read") from error


def _settings(data: AnnotatedImages, source: Path, skip_flagged: bool) -> dict[str, object]:
    where = str(source.absolute())
    return {"data": data.name, "source": where, "classes": list(data.classes), "skip flagged": skip_flagged}


def read_voc(path: Path) -> tuple[tuple[int, int], list[Annotated]]:
    """An annotation of VOC or ImageNet: the image's (width, height), and the objects in it.

    Their boxes count pixels from 1, the last one included; here, they are left, top, right and bottom edges from 0.

    Raises:
        ImageError: it is not there, or broken.
    """
    try:
        root = ET.parse(path).getroot()
        objects = []
        for item in root.iter("object"):
            left, top, right, bottom = (
                float(_text(item, f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            flagged = item.findtext("difficult", "0").strip() == "1"
            objects.append(Annotated(_text(item, "name"), (left - 1, top - 1, right, bottom), flagged))
        return (int(_text(root, "size/width")), int(_text(root, "size/height"))), objects
    except OSError as error:
        raise ImageError(f"its annotation '{path}' cannot be read: {error.strerror}") from error
    except (ET.ParseError, ValueError) as error:
        raise ImageError(f"its annotation '{path}' is broken: {error}") from error


def read_classes(path: Path) -> list[str]:
    """The class names in a file, as annotations have them: of ``n01440764 tench, Tinca tinca``, the first word.

    Raises:
        ConfigurationError: see ``read_class_names``.
    """
    return [re.sub(r"^(n\d{8})\b.*", r"\1", name) for name in read_class_names(path)]


def _text(element: ET.Element, place: str) -> str:
    found = element.findtext(place)
    if found is None:
        raise ValueError(f"{place} is missing")
    return found.strip()


def _check_size(size: tuple[int, int], annotated: tuple[int, int]) -> None:
    if size != annotated:
        raise ImageError(
            f"it has {size[0]} x {size[1]} pixels, but the annotation is for {annotated[0]} x {annotated[1]}"
        )
