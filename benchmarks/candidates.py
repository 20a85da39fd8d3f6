"""Measure the names in atlases by how the compared classes are chosen, and write docs/evidence/candidates.csv.

    pip install -e . --group dev
    python -m benchmarks.candidates                # a quarter of an hour on two CPUs

The pictures are photos alone, and four photos joined into one picture, which the network gets at its usual size: its
default layer then has 14 x 14 cells. Four photos are equally large, so that windows of the picture show each of them
alone, or of four sizes. The photos are those of the package ``foolbox`` that the network recognizes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

import ebcli
from benchmarks import evidence
from benchmarks.faithfulness import MODEL, Run
from ebcli.datatypes.atlas import Atlas
from ebcli.run.plan_parts import CANDIDATES

SIDE = 448  # pixels
PICTURES = 49  # of four photos each, so 196 photos
CELLS = 14  # a side of the map of such a picture
EDGES = {"four": ((0.5,), (0.5,)), "four of different sizes": ((0.4,), (0.6,)), "one": ((), ())}


class Photo(NamedTuple):
    """A photo in a picture: what it is, and its left, top, right and bottom, as shares of the picture."""

    label: int
    place: tuple[float, float, float, float]


class Picture(NamedTuple):
    """A picture of photos."""

    image: Image.Image
    photos: list[Photo]


def recognized(cache: Path) -> list[tuple[Path, int]]:
    """The photos that the network recognizes, each with its class."""
    rows = [row for row in Run(cache).classified() if row["right"] and row["probability"] >= 0.5]
    return [(cache / "photos" / row["image"], row["class"]) for row in rows]


def pictures(kind: str, photos: list[tuple[Path, int]]) -> Iterator[Picture]:
    """The pictures of a kind."""
    if kind == "one":
        for path, label in photos:
            yield Picture(Image.open(path).convert("RGB"), [Photo(label, (0, 0, 1, 1))])
        return
    columns, rows = ((0.0, *edges, 1.0) for edges in EDGES[kind])
    generator = np.random.default_rng(0)
    for _ in range(PICTURES):
        picture = Picture(Image.new("RGB", (SIDE, SIDE)), [])
        for number, index in enumerate(generator.choice(len(photos), 4, replace=False)):
            row, column = divmod(number, 2)
            place = columns[column], rows[row], columns[column + 1], rows[row + 1]
            left, top, right, bottom = (round(SIDE * share) for share in place)
            path, label = photos[index]
            photo = ImageOps.fit(Image.open(path).convert("RGB"), (right - left, bottom - top))
            picture.image.paste(photo, (left, top))
            picture.photos.append(Photo(label, place))
        yield picture


def labels(photos: list[Photo], height: int, width: int) -> NDArray[np.int_]:
    """The class of the photo at the center of each cell."""
    classes = np.zeros((height, width), int)
    y = (np.arange(height)[:, None] + 0.5) / height
    x = (np.arange(width) + 0.5) / width
    for photo in photos:
        left, top, right, bottom = photo.place
        classes[(left <= x) & (x < right) & (top <= y) & (y < bottom)] = photo.label
    return classes


def measure(picture: Picture, network: ebcli.LoadedModel, candidates: str) -> dict[str, float]:
    """How many classes are compared, and what an atlas names right."""
    saliency = ebcli.explain(network, picture.image, candidates=candidates)
    atlas = Atlas.from_maps(saliency.explanation.maps)
    classes = np.array([subject.index for subject in atlas.subjects])
    values = atlas.evidence
    right = (classes[values.argmax(0)] == labels(picture.photos, *values.shape[1:])) & (values.max(0) > 0)
    named = Atlas.winners(values) >= 0
    width, height = picture.image.size
    centers = 0
    for photo in picture.photos:
        left, top, right_edge, bottom = photo.place
        ranking = saliency.at(int((left + right_edge) / 2 * width), int((top + bottom) / 2 * height))
        centers += bool(ranking) and ranking[0][0] == network.category(photo.label)
    return {
        "classes": len(classes),
        "listed": float(np.isin([photo.label for photo in picture.photos], classes).mean()),
        "cells": float(right.mean()),
        "named": float(named.mean()),
        "named right": float((right & named).mean()),
        "centers": centers / len(picture.photos),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "faithfulness"))
    options = parser.parse_args()
    photos = recognized(options.cache)
    network = ebcli.load_model(MODEL)
    rows: list[evidence.Row] = []
    for kind in EDGES:
        for candidates in reversed(CANDIDATES):
            results = [measure(picture, network, candidates) for picture in pictures(kind, photos)]
            means = {name: float(np.mean([result[name] for result in results])) for name in results[0]}
            means["named right"] /= means["named"]
            figures = {name: f"{mean:.3f}" for name, mean in means.items()}
            row = {"network": MODEL, "pictures": kind, "candidates": candidates, "count": len(results)}
            rows.append(row | figures | evidence.stamp())
            print(rows[-1], flush=True)
    evidence.write("candidates", rows)


if __name__ == "__main__":
    main()
