"""The grid pointing game: of several photos in one mosaic, does a map find the right one?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import torch

from ebcli.errors import ConfigurationError
from ebcli.evaluate.labeled_images import LabeledImages
from ebcli.evaluate.metrics import grid_hit, grid_score
from ebcli.evaluate.model_under_test import ModelUnderTest
from ebcli.evaluate.runner import Benchmark, Row, grouped, mean
from ebcli.files.images import decode
from ebcli.models.fingerprint import configuration_hash


def classify_images(subject: ModelUnderTest, pictures: LabeledImages, keys: Sequence[str]) -> Benchmark:
    """What the network says about each image: the class to ask for, and its probability.

    Args:
        subject: the network.
        pictures: the images; without labels, the class to ask for is the most likely one.
        keys: those to take.
    """

    def measure(key: str) -> list[Row]:
        probabilities = subject.probabilities(subject.inputs(decode(pictures.path(key))))[0]
        likely = int(probabilities.argmax())
        asked = pictures.labels[key] if pictures.labels is not None else likely
        return [{"image": key, "class": asked, "right": likely == asked, "probability": float(probabilities[asked])}]

    settings = {key: subject.settings[key] for key in ("version", "model", "weights")}
    return Benchmark("classify_images", {**settings, **pictures.settings}, keys, "image", measure, list)


def grid(
    subject: ModelUnderTest,
    pictures: LabeledImages,
    surveyed: Sequence[Row],
    n: int = 2,
    mosaics: int = 100,
    confidence: float = 0.5,
    cell: int | None = None,
    seed: int = 0,
) -> Benchmark:
    """Böhle et al., Convolutional Dynamic Alignment Networks, CVPR 2021; Rao et al., CVPR 2022.

    A mosaic is made of n x n images of different classes that the network recognises, each preprocessed as for
    itself, and every one of their classes is one question. The table has the mean and the median of
    ``grid_score``, and the mean of ``grid_hit``.

    Args:
        subject: the network.
        pictures: where the images are.
        surveyed: the rows of ``classify_images``.
        n: how many images a row and a column have.
        mosaics: how many are made, at random.
        confidence: the least probability of an image's class, for it to be taken.
        cell: each image's side in the mosaic, in pixels; None for the network's own crop.
        seed: for the choice of images.

    Raises:
        ConfigurationError: too few classes are recognised, or the network takes no such images.
    """
    side = cell or subject.loaded.transforms.crop_size[0]
    by_class = grouped((row for row in surveyed if row["right"] and row["probability"] >= confidence), "class")
    if len(by_class) < n * n:
        raise ConfigurationError(
            f"a mosaic takes images of {n * n} different classes that the network recognises with a probability of at "
            f"least {confidence:g}, but here it recognises {len(by_class)}: give more images, or a lower --confidence"
        )
    subject.probe(n * side, n * side)

    def measure(unit: str) -> list[Row]:
        generator = np.random.default_rng([seed, int(unit)])
        chosen = generator.choice(len(by_class), n * n, replace=False)
        candidates = list(by_class.values())
        rows = [candidates[index][generator.integers(len(candidates[index]))] for index in chosen]
        cells = [subject.inputs(decode(pictures.path(row["image"])), side) for row in rows]
        mosaic = torch.cat([torch.cat(cells[i : i + n], 3) for i in range(0, n * n, n)], 2)
        return [
            {
                "method": method,
                "layer": layer,
                "image": rows[place]["image"],
                "score": grid_score(saliency, place, n),
                "hit": grid_hit(saliency, place, n),
            }
            for method, layer, maps in subject.explain(mosaic, [row["class"] for row in rows], unit)
            for place, saliency in enumerate(maps)
        ]

    def summarise(rows: list[Row]) -> list[Row]:
        return [
            {
                "method": method,
                "layer": layer,
                "score": mean(found, "score"),
                "median": statistics.median(row["score"] for row in found),
                "hits": mean(found, "hit"),
                "questions": len(found),
            }
            for (method, layer), found in grouped(rows, "method", "layer").items()
        ]

    settings = {**subject.settings, **pictures.settings}
    settings |= {"surveyed": configuration_hash({"rows": list(surveyed)}), "confidence": confidence}
    settings |= {"n": n, "cell": side, "seed": seed}
    return Benchmark("grid", settings, [str(index) for index in range(mosaics)], "mosaic", measure, summarise)
