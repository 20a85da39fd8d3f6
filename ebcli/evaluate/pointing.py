"""The pointing game: does a map's maximum lie on the object it is asked for?"""

from __future__ import annotations

from collections.abc import Sequence

from ebcli.errors import ConfigurationError
from ebcli.evaluate.annotations import AnnotatedImages
from ebcli.evaluate.benchmark import Benchmark, Row, grouped, mean
from ebcli.evaluate.metrics import is_difficult, pointing_hit, resized
from ebcli.evaluate.published import POINTING
from ebcli.evaluate.subject import Subject
from ebcli.images import decode

SIDE = 224  # of the shorter side, as in the paper


def pointing(
    subject: Subject, data: AnnotatedImages, keys: Sequence[str], tolerance: int = 15, side: int = SIDE
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
