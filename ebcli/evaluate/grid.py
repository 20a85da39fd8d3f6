"""The grid pointing game: does a map of a mosaic highlight the right image?"""

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ebcli.errors import ConfigurationError
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.evaluate.metrics import grid_hit, grid_score
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.models.fingerprint import configuration_hash


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
        yield {"image": key, "class": target, "right": is_right, "probability": float(scores[target])}

    settings = {key: model.settings[key] for key in ("version", "model", "weights")}
    return Benchmark("classify_images", settings | images.settings, images.keys, unit="image", measure=measure)


class Mosaics:
    """Mosaics of n x n images of different classes that the network recognizes, each preprocessed on its own.

    Args:
        model: the network.
        images: the images.
        classified: the rows of ``classify_images``.
        count: the number of mosaics.
        n: number of images per row and column.
        confidence: minimum probability of an image's class.
        cell: side of each image in the mosaic, in pixels; None for the network's own crop.
        seed: random seed for the choice of images.

    Raises:
        ConfigurationError: too few classes are recognized, or the network does not accept images of that size.

    Attributes:
        model, n: as above.
        units: their numbers.
        settings: everything that measurements depend on.
    """

    def __init__(
        self,
        model: ModelUnderTest,
        images: LabeledImages,
        classified: Sequence[Row],
        count: int,
        *,
        n: int = 2,
        confidence: float = 0.5,
        cell: int | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self._images, self._seed, self.n = model, images, seed, n
        self._side, self.units = cell or model.loaded.transforms.shape[0], [str(index) for index in range(count)]
        by_class = grouped((row for row in classified if row["right"] and row["probability"] >= confidence), "class")
        if len(by_class) < n * n:
            raise ConfigurationError(
                f"a mosaic needs images of {n * n} classes recognized with a probability of at least {confidence:g}, "
                f"but there are only {len(by_class)}: add images, or lower --confidence"
            )
        self._candidates = list(by_class.values())
        model.probe(n * self._side, n * self._side)
        of_rows = {"classified": configuration_hash({"rows": list(classified)}), "confidence": confidence}
        self.settings = model.settings | images.settings | of_rows | {"n": n, "cell": self._side, "seed": seed}

    def make(self, unit: str) -> tuple[torch.Tensor, list[Row]]:
        """The mosaic of a number, (1, 3, H, W), and the rows of its images, from the top left to the bottom right."""
        generator = np.random.default_rng([self._seed, int(unit)])
        chosen = generator.choice(len(self._candidates), self.n**2, replace=False)
        rows = [self._candidates[index][generator.integers(len(self._candidates[index]))] for index in chosen]
        cells = [self.model.inputs(self._images.read(row["image"]), self._side) for row in rows]
        return torch.cat([torch.cat(cells[i : i + self.n], 3) for i in range(0, self.n**2, self.n)], 2), rows


def grid(mosaics: Mosaics) -> Benchmark:
    """Böhle et al., Convolutional Dynamic Alignment Networks, CVPR 2021; Rao et al., CVPR 2022.

    Every class in a mosaic is one question. The table has the mean and median of ``grid_score`` and the mean of
    ``grid_hit``.
    """

    def measure(unit: str) -> Iterator[Row]:
        mosaic, rows = mosaics.make(unit)
        for method, layer, maps in mosaics.model.explain(mosaic, [row["class"] for row in rows], unit):
            for index, saliency in enumerate(maps):
                score, hit = (metric(saliency, index, mosaics.n) for metric in (grid_score, grid_hit))
                yield {"method": method, "layer": layer, "image": rows[index]["image"], "score": score, "hit": hit}

    def columns(rows: list[Row]) -> Row:
        median = statistics.median(row["score"] for row in rows)
        return {"score": mean(rows, "score"), "median": median, "hits": mean(rows, "hit"), "questions": len(rows)}

    keys = "method", "layer"
    return Benchmark(
        "grid", mosaics.settings, mosaics.units, unit="mosaic", measure=measure, keys=keys, columns=columns
    )
