"""Localization: does the box around a map's brightest part agree with the object's?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError, ImageError
from ebcli.evaluate.annotations import read_voc
from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.metrics import bounding_box, intersection_over_union, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.pointing import SIDE
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.files.images import decode
from ebcli.models import resolve_class


def localize(
    subject: ModelUnderTest,
    pictures: LabeledImages,
    keys: Sequence[str],
    annotations: Path,
    classes: Sequence[str] | None,
    alphas: Sequence[float],
    side: int = SIDE,
) -> Benchmark:
    """The ImageNet localization test of Zhang et al., ECCV 2016, section 4.2.

    For each class in an image, the smallest box around what exceeds alpha times the map's mean is right if its
    intersection over union with the box of one object of that class is at least 0.5. The class is given. The table
    has the share of wrong boxes, in per cent.

    Args:
        subject: the network.
        pictures: the images.
        keys: those to take.
        annotations: a directory with, anywhere below it, ``NAME.xml`` in VOC's format for an image ``NAME.JPEG``.
        classes: the names that the annotations use, in the order of the network's outputs; None for the names of
            the network's categories.
        alphas: a row of the table for each.
        side: of the whole image's shorter side, in pixels.

    Raises:
        ConfigurationError: there are no annotations, or the classes do not fit.
    """
    files = {path.stem: path for path in annotations.rglob("*.xml")}
    if not files:
        raise ConfigurationError(f"there are no annotations (*.xml) below '{annotations}'")
    if classes is not None and len(classes) != subject.num_classes:
        raise ConfigurationError(
            f"there are {len(classes)} names of classes, but {subject.loaded.name} tells {subject.num_classes} apart"
        )
    subject.probe(side, side * 4 // 3)

    def index_of(name: str) -> int:
        try:
            return resolve_class(classes or subject.loaded.categories, name, subject.num_classes)
        except ConfigurationError as error:
            raise ImageError(f"it is annotated with {name!r}, but {error}; --classes names them") from error

    def measure(key: str) -> list[Row]:
        annotation = files.get(Path(key).stem)
        if annotation is None:
            raise ImageError(f"there is no annotation {Path(key).stem}.xml")
        image = decode(pictures.path(key))
        _, objects = read_voc(annotation)
        names = list(dict.fromkeys(item.name for item in objects))
        if not names:
            return []
        rows = []
        indices = [index_of(name) for name in names]
        for method, layer, maps in subject.explain(subject.whole(image, side), indices, key):
            for name, saliency in zip(names, maps, strict=True):
                fine = resized(saliency, image.size)
                for alpha in alphas:
                    box = bounding_box(fine, alpha)
                    overlaps = [intersection_over_union(box, o.box) for o in objects if o.name == name] if box else [0]
                    wrong = float(max(overlaps) < 0.5)
                    rows.append({"method": method, "layer": layer, "alpha": alpha, "class": name, "wrong": wrong})
        return rows

    def summarise(rows: list[Row]) -> list[Row]:
        return [
            {
                "method": method,
                "layer": layer,
                "alpha": alpha,
                "error": 100 * (mean(found, "wrong") or 0.0),
                "questions": len(found),
            }
            for (method, layer, alpha), found in grouped(rows, "method", "layer", "alpha").items()
        ]

    settings = {**subject.settings, "alphas": list(alphas), "side": side, **pictures.settings}
    settings |= {"annotations": str(annotations.absolute()), "classes": classes and list(classes)}
    return Benchmark("localize", settings, keys, "image", measure, summarise)
