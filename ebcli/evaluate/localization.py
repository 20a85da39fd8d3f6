"""Localization: does the box around a map's brightest region match the object's box?"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError, ImageError
from ebcli.evaluate.data_sets import LabeledImages, read_voc
from ebcli.evaluate.metrics import bounding_box, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.pointing import SIDE
from ebcli.evaluate.runner import Benchmark, Row, mean
from ebcli.models import resolve_class
from ebcli.nouns.box import Box


def localize(
    model: ModelUnderTest,
    images: LabeledImages,
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
        annotations: directory, searched recursively, with ``NAME.xml`` in VOC's format for an image ``NAME.JPEG``.
        class_names: the annotations' class names in the order of the network's outputs; None for the network's own.
        alphas: thresholds; each is a row of the table.
        side: length of the shorter side of the whole image after resizing, in pixels.

    Raises:
        ConfigurationError: there are no annotations.
    """
    files = {path.stem: path for path in annotations.rglob("*.xml")}
    if not files:
        raise ConfigurationError(f"there are no annotations (*.xml) in '{annotations}'")
    model.probe(side, side * 4 // 3)

    def index_of(name: str) -> int:
        try:
            return resolve_class(class_names or model.loaded.categories, name, model.num_classes)
        except ConfigurationError as error:
            raise ImageError(f"annotation: {error}; --class-names sets the names that annotations use") from error

    def measure(key: str) -> Iterator[Row]:
        annotation = files.get(Path(key).stem)
        if annotation is None:
            raise ImageError(f"its annotation {Path(key).stem}.xml does not exist")
        image = images.read(key)
        _, objects = read_voc(annotation)
        boxes: dict[str, list[Box]] = {}
        for item in objects:
            boxes.setdefault(item.name, []).append(item.box)
        indices = [index_of(name) for name in boxes]
        for method, layer, maps in model.explain(model.whole(image, side), indices, key) if boxes else ():
            for name, saliency in zip(boxes, maps, strict=True):
                fine = resized(saliency, image.size)
                for alpha in alphas:
                    box = bounding_box(fine, alpha)
                    wrong = float(box is None or max(map(box.overlap, boxes[name])) < 0.5)
                    yield {"method": method, "layer": layer, "alpha": alpha, "class": name, "wrong": wrong}

    def columns(rows: list[Row]) -> Row:
        return {"error": 100 * (mean(rows, "wrong") or 0.0), "questions": len(rows)}

    settings = model.settings | images.settings | {"alphas": list(alphas), "side": side}
    settings |= {"annotations": str(annotations.absolute()), "classes": class_names and list(class_names)}
    keys = "method", "layer", "alpha"
    return Benchmark("localize", settings, images.keys, unit="image", measure=measure, keys=keys, columns=columns)
