"""Objects in images: does a map's maximum lie on one, and does the box around its bright region match the object's?"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ebcli.errors import ConfigurationError, ImageError
from ebcli.evaluate.data_sets import AnnotatedImages, LabeledImages, read_voc
from ebcli.evaluate.metrics import bounding_box, is_difficult, pointing_hit, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.models import resolve_class
from ebcli.nouns.box import Box

# Published results in percent, for all questions and for the difficult ones, by data set, network and method.
# *Paper* is Zhang et al., ECCV 2016; *TorchRay* is Fong et al., ICCV 2019, who measured both methods again.
POINTING: dict[tuple[str, str, str], str] = {
    ("VOC 2007 test", "vgg16", "marginal"): "paper 76.9 / 55.1, TorchRay 77.1 / 56.6",
    ("VOC 2007 test", "vgg16", "contrastive"): "paper 80.0 / 66.8, TorchRay 79.9 / 66.5",
    ("VOC 2007 test", "resnet50", "contrastive"): "TorchRay 90.7 / 82.1",
    ("COCO instances_val2014", "vgg16", "marginal"): "paper 39.5 / 32.5",
    ("COCO instances_val2014", "vgg16", "contrastive"): "paper 49.6 / 44.2",
}

SIDE = 224  # length of the shorter side in the paper


def pointing(model: ModelUnderTest, data: AnnotatedImages, tolerance: int = 15) -> Benchmark:
    """Zhang et al., ECCV 2016, section 4.1.

    Every class in an image is one question. The network gets the whole image, its shorter side resized to ``SIDE``;
    maps are resized bicubically to the image's own size. The table has the percentage of hits, averaged over classes,
    for all questions and for the *difficult* ones (``is_difficult``), next to published results.

    Args:
        model: the network, with one output per class of the data set.
        data: the images.
        tolerance: maximum distance of a hit from the object, in pixels of the image.

    Raises:
        ConfigurationError: the network has another number of classes, or does not accept such images.
    """
    if model.num_classes != len(data.classes):
        raise ConfigurationError(
            f"{model.loaded.name} has {model.num_classes} classes, but {data.name} has {len(data.classes)}: pass "
            "--weights of a network trained on it"
        )
    model.probe(SIDE, SIDE * 4 // 3)

    def measure(key: str) -> Iterator[Row]:
        image = data.read(key)
        masks = data.masks(key, image.size)
        for method, layer, maps in model.explain(model.whole(image, SIDE), [*masks], key) if masks else ():
            for (index, mask), saliency in zip(masks.items(), maps, strict=True):
                hit = pointing_hit(resized(saliency, image.size), mask, tolerance)
                about = {"method": method, "layer": layer, "class": data.classes[index]}
                yield about | {"hit": hit, "difficult": is_difficult(mask, len(masks) - 1)}

    def columns(rows: list[Row]) -> Row:
        return {
            "all": _mean_over_classes(rows),
            "difficult": _mean_over_classes([row for row in rows if row["difficult"]]),
            "questions": len(rows),
            "others (all / difficult)": POINTING.get((data.name, model.loaded.name, rows[0]["method"])),
        }

    settings, keys = model.settings | data.settings | {"tolerance": tolerance, "side": SIDE}, ("method", "layer")
    return Benchmark("pointing", settings, data.keys, unit="image", measure=measure, keys=keys, columns=columns)


def _mean_over_classes(rows: list[Row]) -> float | None:
    """Percentage of hits, averaged over classes."""
    classes = grouped(rows, "class").values()
    return 100 * sum(mean(found, "hit") or 0.0 for found in classes) / len(classes) if classes else None


def localize(
    model: ModelUnderTest,
    images: LabeledImages,
    annotations: Path,
    class_names: Sequence[str] | None,
    alphas: Sequence[float],
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

    Raises:
        ConfigurationError: there are no annotations.
    """
    files = {path.stem: path for path in annotations.rglob("*.xml")}
    if not files:
        raise ConfigurationError(f"there are no annotations (*.xml) in '{annotations}'")
    model.probe(SIDE, SIDE * 4 // 3)

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
        for method, layer, maps in model.explain(model.whole(image, SIDE), indices, key) if boxes else ():
            for name, saliency in zip(boxes, maps, strict=True):
                fine = resized(saliency, image.size)
                for alpha in alphas:
                    box = bounding_box(fine, alpha)
                    wrong = float(box is None or max(map(box.overlap, boxes[name])) < 0.5)
                    yield {"method": method, "layer": layer, "alpha": alpha, "class": name, "wrong": wrong}

    def columns(rows: list[Row]) -> Row:
        return {"error": 100 * (mean(rows, "wrong") or 0.0), "questions": len(rows)}

    settings = model.settings | images.settings | {"alphas": list(alphas), "side": SIDE}
    settings |= {"annotations": str(annotations.absolute()), "classes": class_names and list(class_names)}
    keys = "method", "layer", "alpha"
    return Benchmark("localize", settings, images.keys, unit="image", measure=measure, keys=keys, columns=columns)
