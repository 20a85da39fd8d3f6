"""Localization: does the box around a map's brightest region match the object's box?"""

from collections.abc import Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError, ImageError
from ebcli.evaluate.annotations import read_voc
from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.metrics import bounding_box, intersection_over_union, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.pointing import SIDE
from ebcli.evaluate.runner import Benchmark, Row, mean
from ebcli.files.images import decode
from ebcli.models import resolve_class


def localize(
    model: ModelUnderTest,
    images: LabeledImages,
    keys: Sequence[str],
    annotations: Path,
    class_names: Sequence[str] | None,
    alphas: Sequence[float],
    side: int = SIDE,
) -> Benchmark:
    """The ImageNet localization test of Zhang et al., ECCV 2016, section 4.2.

    For each class in an image, the predicted box is the smallest one around all values above alpha times the map's
    mean. It is correct if its intersection over union with the box of one object of that class is at least 0.5. The
    table has the percentage of wrong boxes.

    Args:
        model: the network.
        images: the images.
        keys: the images to test.
        annotations: directory, searched recursively, with ``NAME.xml`` in VOC's format for an image ``NAME.JPEG``.
        class_names: the annotations' class names in the order of the network's outputs; None for the network's own.
        alphas: thresholds; each is a row of the table.
        side: length of the shorter side of the whole image after resizing, in pixels.

    Raises:
        ConfigurationError: there are no annotations, or the number of class names is wrong.
    """
    files = {path.stem: path for path in annotations.rglob("*.xml")}
    if not files:
        raise ConfigurationError(f"there are no annotations (*.xml) in '{annotations}'")
    if class_names is not None and len(class_names) != model.num_classes:
        raise ConfigurationError(
            f"there are {len(class_names)} class names, but {model.loaded.name} has {model.num_classes} classes"
        )
    model.probe(side, side * 4 // 3)

    def index_of(name: str) -> int:
        try:
            return resolve_class(class_names or model.loaded.categories, name, model.num_classes)
        except ConfigurationError as error:
            raise ImageError(f"annotation: {error}; --class-names sets the names that annotations use") from error

    def measure(key: str) -> list[Row]:
        annotation = files.get(Path(key).stem)
        if annotation is None:
            raise ImageError(f"its annotation {Path(key).stem}.xml does not exist")
        image = decode(images.path(key))
        _, objects = read_voc(annotation)
        names = list(dict.fromkeys(item.name for item in objects))
        if not names:
            return []
        rows = []
        indices = [index_of(name) for name in names]
        for method, layer, maps in model.explain(model.whole(image, side), indices, key):
            for name, saliency in zip(names, maps, strict=True):
                fine = resized(saliency, image.size)
                for alpha in alphas:
                    box = bounding_box(fine, alpha)
                    overlaps = [intersection_over_union(box, o.box) for o in objects if o.name == name] if box else [0]
                    wrong = float(max(overlaps) < 0.5)
                    rows.append({"method": method, "layer": layer, "alpha": alpha, "class": name, "wrong": wrong})
        return rows

    def columns(rows: list[Row]) -> Row:
        return {"error": 100 * (mean(rows, "wrong") or 0.0), "questions": len(rows)}

    settings = {**model.settings, "alphas": list(alphas), "side": side, **images.settings}
    settings |= {"annotations": str(annotations.absolute()), "classes": class_names and list(class_names)}
    return Benchmark(
        "localize", settings, keys, unit="image", measure=measure, keys=("method", "layer", "alpha"), columns=columns
    )
