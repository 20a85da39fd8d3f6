"""Tests of localization: is the maximum of a map on the object, its bright region, or the right part of a mosaic?"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ebcli.datatypes.atlas import CLEAR, evidence, leads
from ebcli.datatypes.explanation import Box
from ebcli.errors import ConfigurationError, ImageError, sides
from ebcli.evaluate.benchmark import (
    Benchmark,
    ModelUnderTest,
    Row,
    group_rows,
    mean,
    mean_with_interval,
    num_photos,
)
from ebcli.evaluate.best_layer import PHOTO, LayerChoice, half_of
from ebcli.evaluate.data_sets import AnnotatedImages, Boxes, LabeledImages, box_mask
from ebcli.evaluate.metrics import (
    best_threshold_iou,
    bounding_box,
    cell_fractions,
    equal_area,
    grid_hit,
    grid_score,
    is_difficult,
    pointing_hit,
    resized,
)
from ebcli.models import resolve_class
from ebcli.models.classes import Names
from ebcli.models.loaded import configuration_hash

# Published results in percent, for all questions and for the difficult ones, by data set, network and method.
# *Paper* is Zhang et al., ECCV 2016; *TorchRay* is Fong et al., ICCV 2019, who measured both methods again.
POINTING = {
    ("VOC 2007 test", "vgg16", "marginal"): "paper 76.9 / 55.1, TorchRay 77.1 / 56.6",
    ("VOC 2007 test", "vgg16", "contrastive"): "paper 80.0 / 66.8, TorchRay 79.9 / 66.5",
    ("VOC 2007 test", "resnet50", "contrastive"): "TorchRay 90.7 / 82.1",
    ("COCO instances_val2014", "vgg16", "marginal"): "paper 39.5 / 32.5",
    ("COCO instances_val2014", "vgg16", "contrastive"): "paper 49.6 / 44.2",
}

EQUAL_AREA, BEST_IOU = "equal area", "best IoU"  # columns
TOLERANCE = 15  # pixels of the image, of a hit from the object, in the paper


def pointing(model: ModelUnderTest, data: AnnotatedImages) -> Benchmark:
    """Zhang et al., ECCV 2016, section 4.1.

    Every class in an image is one question. The network gets the whole image, its shorter side resized to that of
    the network's own input (224 pixels in the paper); maps are resized bicubically to the image's own size. The table
    has the percentage of hits, averaged over classes, for all questions and for the *difficult* ones
    (``is_difficult``), next to published results.

    Args:
        model: the network, with one output per class of the data set.
        data: the images.

    Raises:
        ConfigurationError: the network has another number of classes, or does not accept such images.
    """
    if model.num_classes != len(data.classes):
        raise ConfigurationError(
            f"{model.loaded.name} has {model.num_classes} classes, but {data.name} has {len(data.classes)}: "
            "pass --weights of a network trained on it"
        )
    model.probe(model.side, model.side * 4 // 3)

    def measure(key: str) -> Iterator[Row]:
        image = data.read(key)
        masks = data.masks(key, image.size)
        if not masks:
            return
        for method_maps in model.explain(model.whole_image(image), [*masks], key):
            for index, saliency in zip(masks, method_maps.maps, strict=True):
                mask = masks[index]
                yield {
                    **method_maps.labels,
                    PHOTO: key,
                    "class": data.classes[index],
                    "hit": pointing_hit(resized(saliency, image.size), mask, TOLERANCE),
                    "difficult": is_difficult(mask, len(masks) - 1),
                }

    def columns(rows: list[Row]) -> Row:
        return {
            "all": _mean_over_classes(rows),
            "difficult": _mean_over_classes([row for row in rows if row["difficult"]]),
            "questions": len(rows),
            "others (all / difficult)": POINTING.get((data.name, model.loaded.name, rows[0]["method"])),
        }

    settings = model.settings | data.settings | {"tolerance": TOLERANCE, "side": model.side}
    return Benchmark(
        "pointing",
        settings,
        data.keys,
        measure=measure,
        columns=columns,
        choice=model.choice("hit", data.keys),
    )


def _mean_over_classes(rows: list[Row]) -> float | None:
    """Percentage of hits, averaged over classes."""
    groups = group_rows(rows, "class").values()
    if not groups:
        return None
    return 100 * sum(mean(group, "hit") for group in groups) / len(groups)


def localize(
    model: ModelUnderTest,
    images: LabeledImages,
    annotations: Path,
    boxes: Boxes,
    class_names: Names,
    alphas: Sequence[float],
) -> Benchmark:
    """How well maps match the boxes of objects. Each class in an image is one question.

    The localization error is that of Zhang et al., ECCV 2016, section 4.2. The predicted box is the smallest one around
    all values above alpha times the map's mean. It is correct if its intersection over union with the box of one object
    of that class is at least 0.5. The table has the percentage of wrong boxes.

    ``equal_area`` and ``best_threshold_iou`` compare the map itself with the boxes of all objects of that class. The
    table has their means, with intervals over photos.

    Args:
        model: the network.
        images: the images.
        annotations: where the boxes come from.
        boxes: the boxes; see ``read_boxes``.
        class_names: the annotations' class names in the order of the network's outputs; None for the network's own.
        alphas: thresholds; each is a row of the table.

    Raises:
        ConfigurationError: the network does not accept such images.
    """
    model.probe(model.side, model.side * 4 // 3)

    def index_of(name: str) -> int:
        try:
            return resolve_class(class_names or model.loaded.categories, name, model.num_classes)
        except ConfigurationError as error:
            raise ImageError(
                f"annotation: {error}; --class-names sets the names that annotations use"
            ) from error

    def measure(key: str) -> Iterator[Row]:
        objects = boxes.of_image(key)
        image = images.read(key)
        by_class: dict[str, list[Box]] = {}
        for item in objects:
            by_class.setdefault(item.name, []).append(item.box)
        indices = [index_of(name) for name in by_class]
        masks = {name: box_mask(class_boxes, image.size) for name, class_boxes in by_class.items()}
        for name, mask in masks.items():
            if not mask.any():
                raise ImageError(
                    f"no box of {name!r} lies in the image, which has {sides(image.size)} pixels"
                )
        if not by_class:
            return
        for method_maps in model.explain(model.whole_image(image), indices, key):
            for name, saliency in zip(by_class, method_maps.maps, strict=True):
                fine = resized(saliency, image.size)
                question = {**method_maps.labels, PHOTO: key, "class": name}
                question |= {
                    EQUAL_AREA: equal_area(fine, masks[name]),
                    BEST_IOU: best_threshold_iou(fine, masks[name]),
                }
                for alpha in alphas:
                    box = bounding_box(fine, alpha)
                    wrong = float(box is None or max(map(box.overlap, by_class[name])) < 0.5)
                    yield question | {"alpha": alpha, "wrong": wrong}

    def columns(rows: list[Row]) -> Row:
        return {
            "error": 100 * mean(rows, "wrong"),
            **mean_with_interval(rows, EQUAL_AREA),
            **mean_with_interval(rows, BEST_IOU),
            "questions": len(rows),
            "photos": num_photos(rows),
        }

    settings = model.settings | images.settings | {"alphas": list(alphas), "side": model.side}
    settings |= {"annotations": str(annotations.absolute()), "classes": class_names and list(class_names)}
    settings |= {"boxes": _hash_of(boxes, images.keys)}
    return Benchmark(
        "localize",
        settings,
        images.keys,
        measure=measure,
        keys=["alpha"],
        columns=columns,
        choice=model.choice(EQUAL_AREA, images.keys),
    )


def _hash_of(boxes: Boxes, keys: Sequence[str]) -> str | None:
    """A hash of boxes that one file lists, which may change; None for a directory."""
    if boxes.files is None:
        return None
    return configuration_hash({key: [*map(list, boxes.of_image(key))] for key in keys})


def classify_images(model: ModelUnderTest, images: LabeledImages) -> Benchmark:
    """Classify each image: its class, whether the network predicts it, and its probability.

    Args:
        model: the network.
        images: the images; without labels, the class is the predicted one.
    """

    def measure(key: str) -> Iterator[Row]:
        inputs, target = model.question(images, key)
        scores = model.probabilities(inputs)[0]
        is_right = int(scores.argmax()) == target
        yield {PHOTO: key, "class": target, "right": is_right, "probability": float(scores[target])}

    settings = {key: model.settings[key] for key in ("version", "model", "weights")}
    return Benchmark("classify_images", settings | images.settings, images.keys, measure=measure)


class Mosaics:
    """Mosaics of n x n images of different classes that the network recognizes, each preprocessed on its own.

    Args:
        model: the network.
        images: the images.
        classifications: the rows of ``classify_images``.
        count: the number of mosaics.
        size: number of images per row and column.
        confidence: minimum probability of an image's class.
        cell: side of each image in the mosaic, in pixels; None for the network's own crop.
        seed: random seed for the choice of images.

    Raises:
        ConfigurationError: too few classes are recognized, or the network does not accept images of that size.

    Attributes:
        model: as above.
        n: the size.
        units: their numbers.
        settings: everything that measurements depend on.
    """

    def __init__(
        self,
        model: ModelUnderTest,
        images: LabeledImages,
        classifications: Sequence[Row],
        count: int,
        *,
        size: int = 2,
        confidence: float = 0.5,
        cell: int | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.n = size
        self.units = [*map(str, range(count))]
        self._images = images
        self._seed = seed
        self._side = cell or model.loaded.transforms.shape[0]
        correct_rows = [row for row in classifications if row["right"] and row["probability"] >= confidence]
        self._photos = [row[PHOTO] for row in correct_rows]
        self._groups = [correct_rows]
        if model.finds_best_layer:
            half = half_of(self._photos)
            self._groups = [
                [row for row in correct_rows if (row[PHOTO] in half) == chooses] for chooses in (True, False)
            ]
        self._check_number_of_classes(confidence)
        model.probe(size * self._side, size * self._side)
        rows_hash = configuration_hash({"rows": list(classifications)})
        self.settings = model.settings | images.settings | {"classified": rows_hash, "confidence": confidence}
        self.settings |= {"n": size, "cell": self._side, "seed": seed, "halves": len(self._groups)}

    def make(self, unit: str) -> tuple[torch.Tensor, list[Row]]:
        """The mosaic of a number, (1, 3, H, W), and the rows of its images, from the top left to the bottom right."""
        n = self.n
        generator = np.random.default_rng([self._seed, int(unit)])
        by_class = [*group_rows(self._groups[int(unit) % len(self._groups)], "class").values()]
        classes = generator.choice(len(by_class), n**2, replace=False)
        candidates = [by_class[index] for index in classes]
        rows = [group[generator.integers(len(group))] for group in candidates]
        cells = [self.model.inputs(self._images.read(row["image"]), self._side) for row in rows]
        strips = [torch.cat(cells[start : start + n], 3) for start in range(0, n**2, n)]
        return torch.cat(strips, 2), rows

    def choice(self, column: str) -> LayerChoice | None:
        """How the best layer is chosen: by mosaics of other photos than those that are measured."""
        return self.model.choice(column, self._photos)

    def _check_number_of_classes(self, confidence: float) -> None:
        needed = self.n**2
        for rows in self._groups:
            count = len(group_rows(rows, "class"))
            if count < needed:
                half = " in each half of the photos" if len(self._groups) > 1 else ""
                raise ConfigurationError(
                    f"a mosaic needs images of {needed} classes{half} recognized with a probability of at least "
                    f"{confidence:g}, but there are only {count}: add images, or lower --confidence"
                )


def grid(mosaics: Mosaics) -> Benchmark:
    """Böhle et al., Convolutional Dynamic Alignment Networks, CVPR 2021; Rao et al., CVPR 2022.

    Every class in a mosaic is one question. The table has the mean and median of ``grid_score``, the mean of
    ``grid_hit``, and that of ``equal_area`` of the right photo, with its interval over photos.
    """

    def measure(unit: str) -> Iterator[Row]:
        mosaic, rows = mosaics.make(unit)
        for method_maps in mosaics.model.explain(mosaic, [row["class"] for row in rows], unit):
            for index, saliency in enumerate(method_maps.maps):
                yield {
                    **method_maps.labels,
                    PHOTO: rows[index][PHOTO],
                    "score": grid_score(saliency, index, mosaics.n),
                    EQUAL_AREA: equal_area(saliency, cell_fractions(saliency.shape, index, mosaics.n)),
                    "hit": grid_hit(saliency, index, mosaics.n),
                }

    def columns(rows: list[Row]) -> Row:
        return {
            "score": mean(rows, "score"),
            "median": statistics.median(row["score"] for row in rows),
            **mean_with_interval(rows, EQUAL_AREA),
            "hits": mean(rows, "hit"),
            "questions": len(rows),
            "photos": num_photos(rows),
        }

    return Benchmark(
        "grid",
        mosaics.settings,
        mosaics.units,
        unit="mosaic",
        measure=measure,
        columns=columns,
        choice=mosaics.choice(EQUAL_AREA),
    )


def naming(mosaics: Mosaics, top_k: int = 20) -> Benchmark:
    """Name each cell of a mosaic by the class with the most evidence there, among the ``top_k`` most likely ones.

    A map's positive values are compared as evidence, see ``Atlas``, and as they are (``plain``). The table has the
    share of cells named after the image that they are in: of all cells, and of those where the lead is clear; how many
    cells these are; and the share of images named right by their strongest cell. ``listed`` is the share of images
    whose class is among the likeliest ones, which no map can exceed.

    Args:
        mosaics: the mosaics.
        top_k: the number of classes to compare.
    """

    def measure(unit: str) -> Iterator[Row]:
        mosaic, images = mosaics.make(unit)
        scores = mosaics.model.probabilities(mosaic)[0].cpu()
        classes = scores.topk(min(top_k, len(scores))).indices.tolist()
        labels = np.array([row["class"] for row in images]).reshape(mosaics.n, mosaics.n)
        listed = float(np.isin(labels, classes).mean())
        for method_maps in mosaics.model.explain(mosaic, classes, unit):
            class_scores = scores[classes].tolist()
            evidence_maps = np.stack([*map(evidence, method_maps.maps, class_scores)])
            for ranking, values in (("evidence", evidence_maps), ("plain", np.maximum(method_maps.maps, 0))):
                counts = count_named(values, np.array(classes), labels)
                yield {**method_maps.labels, "compared": ranking, **counts, "listed": listed}

    def columns(rows: list[Row]) -> Row:
        def share(part: str, total_name: str) -> float | None:
            total: float = sum(row[total_name] for row in rows)
            return sum(row[part] for row in rows) / total if total else None

        return {
            "clear cells": share("right and clear", "clear"),
            "all cells": share("right", "cells"),
            "clear": share("clear", "cells"),
            "images": share("right images", "images"),
            "listed": mean(rows, "listed"),
        }

    settings = mosaics.settings | {"top_k": top_k, "clear lead": CLEAR}
    return Benchmark(
        "naming", settings, mosaics.units, unit="mosaic", measure=measure, keys=["compared"], columns=columns
    )


def count_named(values: NDArray[np.float32], classes: NDArray[np.int_], labels: NDArray[np.int_]) -> Row:
    """Count the cells and images of a mosaic that are named right.

    Args:
        values: what is compared, (K, h, w), nonnegative; where all are 0, no class is method_maps.
        classes: the class of each map, (K,).
        labels: those of the images, (n, n).
    """
    best = classes[values.argmax(0)]
    largest = values.max(0)
    rows, columns = (np.arange(count) * len(labels) // count for count in largest.shape)
    places = rows[:, None] * len(labels) + columns
    right = (best == labels.ravel()[places]) & (largest > 0)
    clear = leads(values).max(0) >= max(CLEAR * largest.max(), np.finfo(np.float32).tiny)
    strongest = [np.where(places == image, largest, -1).argmax() for image in range(labels.size)]
    return {
        "cells": right.size,
        "right": int(right.sum()),
        "clear": int(clear.sum()),
        "right and clear": int((right & clear).sum()),
        "images": labels.size,
        "right images": int(right.ravel()[strongest].sum()),
    }
