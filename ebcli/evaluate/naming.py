"""The naming game: is the class with the most evidence at a place of a mosaic that of the image there?"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ebcli.evaluate.grid import Mosaics
from ebcli.evaluate.runner import Benchmark, Row
from ebcli.nouns.atlas import CLEAR, evidence, leads


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
        listed = {"listed": float(np.isin(labels, classes).mean())}
        for method, layer, maps in mosaics.model.explain(mosaic, classes, unit):
            weighted = [evidence(values, float(scores[index])) for index, values in zip(classes, maps, strict=True)]
            for compared, values in (("evidence", np.stack(weighted)), ("plain", np.maximum(maps, 0))):
                about = {"method": method, "layer": layer, "compared": compared}
                yield about | named(values, np.array(classes), labels) | listed

    def columns(rows: list[Row]) -> Row:
        def share(part: str, whole: str) -> float | None:
            total: float = sum(row[whole] for row in rows)
            return sum(row[part] for row in rows) / total if total else None

        clear, listed = share("clear", "cells"), sum(row["listed"] for row in rows) / len(rows)
        right = {"clear cells": share("right and clear", "clear"), "all cells": share("right", "cells")}
        return right | {"clear": clear, "images": share("right images", "images"), "listed": listed}

    settings, keys = mosaics.settings | {"top_k": top_k, "clear lead": CLEAR}, ("method", "layer", "compared")
    return Benchmark("naming", settings, mosaics.units, unit="mosaic", measure=measure, keys=keys, columns=columns)


def named(values: NDArray[np.float32], classes: NDArray[np.int_], labels: NDArray[np.int_]) -> Row:
    """Count the cells and images of a mosaic that are named right.

    Args:
        values: what is compared, (K, h, w), nonnegative; where all are 0, no class is named.
        classes: the class of each map, (K,).
        labels: those of the images, (n, n).
    """
    best, largest = classes[values.argmax(0)], values.max(0)
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
