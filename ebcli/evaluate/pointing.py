"""The pointing game: does a map's maximum lie on an object of the target class?"""

from collections.abc import Iterator

from ebcli.errors import ConfigurationError
from ebcli.evaluate.data_sets import AnnotatedImages
from ebcli.evaluate.metrics import is_difficult, pointing_hit, resized
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean

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


def pointing(model: ModelUnderTest, data: AnnotatedImages, tolerance: int = 15, side: int = SIDE) -> Benchmark:
    """Zhang et al., ECCV 2016, section 4.1.

    Every class in an image is one question. The network gets the whole image, its shorter side resized to ``side``;
    maps are resized bicubically to the image's own size. The table has the percentage of hits, averaged over classes,
    for all questions and for the *difficult* ones (``is_difficult``), next to published results.

    Args:
        model: the network, with one output per class of the data set.
        data: the images.
        tolerance: maximum distance of a hit from the object, in pixels of the image.
        side: length of the shorter side after resizing, in pixels.

    Raises:
        ConfigurationError: the network has another number of classes, or does not accept such images.
    """
    if model.num_classes != len(data.classes):
        raise ConfigurationError(
            f"{model.loaded.name} has {model.num_classes} classes, but {data.name} has {len(data.classes)}: pass "
            "--weights of a network trained on it"
        )
    model.probe(side, side * 4 // 3)

    def measure(key: str) -> Iterator[Row]:
        image = data.read(key)
        masks = data.masks(key, image.size)
        for method, layer, maps in model.explain(model.whole(image, side), [*masks], key) if masks else ():
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

    settings, keys = model.settings | data.settings | {"tolerance": tolerance, "side": side}, ("method", "layer")
    return Benchmark("pointing", settings, data.keys, unit="image", measure=measure, keys=keys, columns=columns)


def _mean_over_classes(rows: list[Row]) -> float | None:
    """Percentage of hits, averaged over classes."""
    classes = grouped(rows, "class").values()
    return 100 * sum(mean(found, "hit") or 0.0 for found in classes) / len(classes) if classes else None
