"""Compare the ways to fit photos into the bundled network, and write docs/evidence/fits.csv and tiles.csv.

    pip install -e . --group dev
    python -m benchmarks.fits        # some minutes
    python -m benchmarks.fits fits   # or tiles: one of the two

The photos are the twenty ImageNet photos in the package ``foolbox``, labeled by their file names. Each photo is shown

- beside the next one, at equal size, in pictures of 2:1 and of 3:2, and the network is asked for either;
- on its own, cut to 3:2 and 2:1;
- at either end of a picture of 3:2 and 2:1, whose rest is the photo's blurred edge.

Strips of several photos side by side are explained as a whole, and in tiles as high as the strip: with each tile's
share of the sum of scores, as by the command, and with equal shares. The network is asked for each photo of a strip
whose class no other photo of it has.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter

import ebcli
from benchmarks import evidence
from benchmarks.faithfulness import labeled_photos
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.datatypes.input_spec import InputSpec
from ebcli.drawing.overlay import peaks_at_border
from ebcli.run.maps import Tiles

SIDE = 256  # pixels, the height of all pictures
RATIOS = {"2:1": 2.0, "3:2": 1.5}
LAYER = "features.11"  # the default
MEANS = ("share", "peak in its place", "peak at the border", "top 1", "top 5")
STRIPS = (2, 3, 4, 6, 8)  # photos side by side


class Question(NamedTuple):
    """A picture, the class asked for, and the left and right end of its object, as shares of the width."""

    kind: str
    picture: Image.Image
    target: int
    left: float = 0.0
    right: float = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=[], metavar="fits|tiles")
    parts = parser.parse_args().parts or ("fits", "tiles")
    torch.set_num_threads(1)
    loaded = ebcli.load_model()
    if "fits" in parts:
        evidence.write("fits", list(rows_of_fits(loaded)))
    if "tiles" in parts:
        evidence.write("tiles", list(rows_of_tiles(loaded)))


def rows_of_fits(loaded: ebcli.LoadedModel) -> Iterator[evidence.Row]:
    """A row for each kind of picture and each fit."""
    spec = loaded.transforms
    fits = {"crop": spec}
    for fit in ("squash", "pad", "whole"):
        fits[fit] = replace(spec, fit=fit, resize=(224,))
    fits["whole, shorter side 256"] = replace(spec, fit="whole")
    questions = list(asked(photos()))
    for kind in dict.fromkeys(question.kind for question in questions):
        chosen = [question for question in questions if question.kind == kind]
        for name, fit in fits.items():
            means = np.mean([measured(loaded, fit, question) for question in chosen], axis=0)
            row: evidence.Row = {
                "network": loaded.name,
                "layer": LAYER,
                "pictures": kind,
                "questions": len(chosen),
            }
            row["fit"] = name
            row |= dict(zip(MEANS, (f"{one:.3f}" for one in means), strict=True)) | evidence.stamp()
            print(row, flush=True)
            yield row


def rows_of_tiles(loaded: ebcli.LoadedModel) -> Iterator[evidence.Row]:
    """A row for each number of photos and each way to explain their strip."""
    labeled = photos()
    for count in STRIPS:
        found: dict[str, list[tuple[float, bool]]] = defaultdict(list)
        for start in range(len(labeled)):
            shown = [labeled[(start + i) % len(labeled)] for i in range(count)]
            classes = [target for _, target in shown]
            targets = [target for target in classes if classes.count(target) == 1]
            if not targets:
                continue
            strip = Image.new("RGB", (count * SIDE, SIDE))
            for i, (photo, _) in enumerate(shown):
                strip.paste(photo, (i * SIDE, 0))
            for way, maps, scores in explained(loaded, strip, targets):
                likeliest = scores.argsort()[::-1][:5].tolist()
                for target, values in zip(targets, maps, strict=True):
                    edges = np.linspace(0, count, values.shape[1] + 1) - classes.index(target)
                    inside = np.diff(edges.clip(0, 1)) / np.diff(edges)
                    positive = values.clip(min=0)
                    found[way].append(
                        (float((positive * inside).sum() / positive.sum()), target in likeliest)
                    )
        for way, each in found.items():
            share, among = np.mean(each, axis=0)
            row: evidence.Row = {
                "network": loaded.name,
                "layer": LAYER,
                "photos": count,
                "questions": len(each),
            }
            row |= {"explained": way, "share": f"{share:.3f}", "top 5": f"{among:.3f}"} | evidence.stamp()
            print(row, flush=True)
            yield row


def explained(
    loaded: ebcli.LoadedModel, strip: Image.Image, targets: Sequence[int]
) -> Iterator[tuple[str, Sequence[NDArray[np.float32]], NDArray[np.float32]]]:
    """For each way to explain a strip: a map (h, w) of each class, and the scores (num_classes,)."""
    spec = replace(loaded.transforms, fit="whole", resize=(224,))

    def explain(images: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rows = torch.tensor([targets] * len(images))
        result = ebcli.excitation_backprop(loaded.net, images, rows, LAYER, contrastive=True)
        return result.maps.numpy(), loaded.to_scores(result.logits).numpy()

    whole = spec(strip)
    (maps,), (scores,) = explain(whole[None])
    yield "whole", list(maps), scores
    tiles = Tiles.covering((whole.shape[1], whole.shape[2]), 224, spec.step)
    by_tile = [whole[:, top : top + 224, left : left + 224] for top, left in tiles.corners]
    found = [explain(torch.stack(by_tile[first : first + 8])) for first in range(0, len(by_tile), 8)]
    maps, scores = (np.concatenate(each) for each in zip(*found, strict=True))
    for way, weighted in (("tiles", scores), ("tiles of equal weight", np.ones_like(scores))):
        joined = []
        for k, target in enumerate(targets):
            of_tiles = [
                Map(
                    subject=Subject(target, "", 0.0),
                    layer=LAYER,
                    values=one[k],
                    mass=1.0,
                    placement=Box(0, 0, 1, 1),
                )
                for one in maps
            ]
            joined.append(tiles.join(weighted, of_tiles).values)
        yield way, joined, scores.mean(0)


def measured(loaded: ebcli.LoadedModel, spec: InputSpec, question: Question) -> Sequence[float]:
    """The share of the positive map where the object is, peaks there and at the border, and top 1 and top 5."""
    picture, target = question.picture, question.target
    result = ebcli.excitation_backprop(loaded.net, spec(picture)[None], target, LAYER, contrastive=True)
    values, place = result.maps[0].clamp(min=0).numpy(), spec.place(picture.size)
    edges = np.linspace(place.left, place.right, values.shape[1] + 1) / picture.width
    inside = np.diff(edges.clip(question.left, question.right)) / np.diff(edges)  # the share of each column
    peak = inside[values.max(0).argmax()]
    ranks = result.logits[0].argsort(descending=True)[:5].tolist()
    share = float((values * inside).sum() / values.sum())
    return (
        share,
        round(peak),
        peaks_at_border(picture.size, values, place),
        ranks[0] == target,
        target in ranks,
    )


def asked(labeled: Sequence[tuple[Image.Image, int]]) -> Iterator[Question]:
    """All questions."""
    for i, (photo, target) in enumerate(labeled):
        other, another = labeled[(i + 1) % len(labeled)]
        for name, ratio in RATIOS.items() if target != another else ():
            width = round(SIDE * ratio / 2)
            both = Image.new("RGB", (2 * width, SIDE))
            both.paste(cut(photo, width / SIDE).resize((width, SIDE)))
            both.paste(cut(other, width / SIDE).resize((width, SIDE)), (width, 0))
            yield Question(f"pairs {name}", both, target, 0, 0.5)
            yield Question(f"pairs {name}", both, another, 0.5, 1)
        for name, ratio in RATIOS.items():
            width, share = round(SIDE * ratio), 1 / ratio
            yield Question(f"single {name}", cut(photo, ratio).resize((width, SIDE)), target)
            for start in (0, width - SIDE):
                rest = np.pad(np.asarray(photo), ((0, 0), (start, width - SIDE - start), (0, 0)), mode="edge")
                off = Image.fromarray(rest).filter(ImageFilter.GaussianBlur(16))
                off.paste(photo, (start, 0))
                yield Question(f"off center {name}", off, target, start / width, start / width + share)


def cut(photo: Image.Image, ratio: float) -> Image.Image:
    """The largest part of this aspect ratio, from the center of a square."""
    width, height = min(1.0, ratio) * SIDE, min(1.0, 1 / ratio) * SIDE
    left, top = round((SIDE - width) / 2), round((SIDE - height) / 2)
    return photo.crop((left, top, SIDE - left, SIDE - top))


def photos() -> list[tuple[Image.Image, int]]:
    """The photos as squares, and their classes."""
    squares = []
    for path, label in labeled_photos().items():
        with Image.open(path) as photo:
            squares.append((photo.convert("RGB").resize((SIDE, SIDE)), label))
    return squares


if __name__ == "__main__":
    main()
