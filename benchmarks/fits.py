"""Compare the ways to fit photos into the bundled network, for docs/fits.md.

    pip install -e '.[test]'
    python benchmarks/fits.py        # some minutes

The photos are the twenty ImageNet photos in the package ``foolbox``, labeled by their file names. Each photo is shown

- beside the next one, at equal size, in pictures of 2:1 and of 3:2, and the network is asked for either;
- on its own, cut to 3:2 and 2:1;
- at either end of a picture of 3:2 and 2:1, whose rest is the photo's blurred edge.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter

import ebcli
from ebcli.drawing.overlay import peaks_at_border
from ebcli.files.input_spec import InputSpec

SIDE = 256  # pixels, the height of all pictures
RATIOS = {"2:1": 2.0, "3:2": 1.5}
LAYER = "features.11"  # the default


class Question(NamedTuple):
    """A picture, the class asked for, and the left and right end of its object, as shares of the width."""

    kind: str
    picture: Image.Image
    target: int
    left: float = 0.0
    right: float = 1.0


def main() -> None:
    torch.set_num_threads(1)
    loaded = ebcli.load_model()
    spec = loaded.transforms
    fits = {"crop": spec}
    for fit in ("squash", "pad", "whole"):
        fits[fit] = replace(spec, fit=fit, resize=(224,))
    fits["whole, shorter side 256"] = replace(spec, fit="whole")
    questions = list(asked(photos()))
    print("| pictures | fit | in its place | peak in its place | peak at the border | top 1 | top 5 |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for kind in dict.fromkeys(question.kind for question in questions):
        chosen = [question for question in questions if question.kind == kind]
        for name, fit in fits.items():
            means = np.mean([measured(loaded, fit, question) for question in chosen], axis=0)
            print(
                f"| {kind} ({len(chosen)}) | {name} | " + " | ".join(f"{one:.3f}" for one in means) + " |", flush=True
            )


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
    return share, round(peak), peaks_at_border(picture.size, values, place), ranks[0] == target, target in ranks


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
    spec = importlib.util.find_spec("foolbox")
    assert spec is not None and spec.submodule_search_locations, "pip install foolbox"
    found = []
    for path in sorted(Path(spec.submodule_search_locations[0], "data").glob("imagenet_*.jpg")):
        with Image.open(path) as photo:
            found.append((photo.convert("RGB").resize((SIDE, SIDE)), int(path.stem.rpartition("_")[2])))
    return found


if __name__ == "__main__":
    main()
