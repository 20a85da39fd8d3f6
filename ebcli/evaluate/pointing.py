"""The pointing game: does a map's maximum lie on the object it is asked for?"""

from __future__ import annotations

from collections.abc import Sequence

from ebcli.errors import ConfigurationError
from ebcli.evaluate.annotations import AnnotatedImages
from ebcli.evaluate.metrics import is_difficult, pointing_hit, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.files.images import decode

# Published results, in per cent, for all questions and for the difficult ones. *Paper* is Zhang et al., ECCV 2016;
# *TorchRay* is Fong et al., ICCV 2019, whose table measures both methods anew.
# data set, network, method
POINTING: dict[tuple[str, str, str], str] = {
    ("VOC 2007 test", "vgg16", "marginal"): "paper 76.9 / 55.1, TorchRay 77.1 / 56.6",
    ("VOC 2007 test", "vgg16", "contrastive"): "paper 80.0 / 66.8, TorchRay 79.9 / 66.5",
    ("VOC 2007 test", "resnet50", "contrastive"): "TorchRay 90.7 / 82.1",
    ("COCO instances_val2014", "vgg16", "marginal"): "paper 39.5 / 32.5",
    ("COCO instances_val2014", "vgg16", "contrastive"): "paper 49.6 / 44.2",
}

SIDE = 224  # of the shorter side, as in the paper


def pointing(
    subject: ModelUnderTest, data: AnnotatedImages, keys: Sequence[str], tolerance: int = 15, side: int = SIDE
) -> Benchmark:
    """Zhang et al., ECCV 2016, section 4.1.

    Every class that an image shows is one question. The network gets the whole image, its shorter side resized to
    ``side``; maps are resized bicubically to the image's own size. The table has the mean over classes of the share
    of hits, in per cent, of all questions and of the *difficult* ones (``is_difficult``), with what others measured.

    Args:
        subject: the network, with one output for each class of the data.
        data: the images.
        keys: those to take.
        tolerance: how many pixels of the image a hit may lie beside the object.
        side: in pixels.

    Raises:
        ConfigurationError: the network has other classes, or takes no such images.
    """
    if subject.num_classes != len(data.classes):
        raise ConfigurationError(
            f"{subject.loaded.name} tells {subject.num_classes} classes apart, but {data.name} has "
            f"{len(data.classes)}: give --weights of a network trained for it"
        )
    subject.probe(side, side * 4 // 3)

    def measure(key: str) -> list[Row]:
        image = decode(data.path(key))
        masks = data.masks(key, image.size)
        if not masks:
            return []
        classes = list(masks)
        rows = []
        for method, layer, maps in subject.explain(subject.whole(image, side), classes, key):
            for index, saliency in zip(classes, maps, strict=True):
                mask = masks[index]
                row = {
                    "method": method,
                    "layer": layer,
                    "class": data.classes[index],
                    "hit": pointing_hit(resized(saliency, image.size), mask, tolerance),
                    "difficult": is_difficult(mask, len(masks) - 1),
                }
                rows.append(row)
        return rows

    def summarise(rows: list[Row]) -> list[Row]:
        return [
            {
                "method": method,
                "layer": layer,
                "all": _mean_over_classes(found),
                "difficult": _mean_over_classes([row for row in found if row["difficult"]]),
                "questions": len(found),
                "others (all / difficult)": POINTING.get((data.name, subject.loaded.name, method)),
            }
            for (method, layer), found in grouped(rows, "method", "layer").items()
        ]

    settings = {**subject.settings, **data.settings, "tolerance": tolerance, "side": side}
    return Benchmark("pointing", settings, keys, "image", measure, summarise)


def _mean_over_classes(rows: list[Row]) -> float | None:
    """In per cent."""
    classes = grouped(rows, "class").values()
    return 100 * sum(mean(found, "hit") or 0.0 for found in classes) / len(classes) if classes else None
