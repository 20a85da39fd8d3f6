"""Cost of a map by image size, batch size, number of classes and layer.

    python benchmarks/curves.py --plot curves.png  # about ten minutes

VGG-16, as in ``speed.py``: medians of ratios to one plain forward pass of the same batch, taken in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from speed import Row, measure

LAYER = "features.23"
KINDS = {"contrastive": True, "marginal": False}
DEPTHS = (None, "features.4", "features.9", "features.16", "features.23", "features.30")

# x axis: its values, and the row for one of them
CURVES: dict[str, tuple[tuple, Callable[[object, bool], Row]]] = {
    "image side, in pixels": (
        (224, 448, 672, 896, 1344),
        lambda side, contrastive: Row("vgg16", LAYER, contrastive, batch=1, side=side),
    ),
    "batch": (
        (1, 2, 4, 8, 16, 32),
        lambda batch, contrastive: Row("vgg16", LAYER, contrastive, batch=batch),
    ),
    "classes of one image": (
        (1, 2, 5, 10, 20, 50, 100),
        lambda classes, contrastive: Row("vgg16", LAYER, contrastive, batch=1, classes=classes),
    ),
    "layer, by its number in features": (DEPTHS, lambda layer, contrastive: Row("vgg16", layer, contrastive, batch=1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the curves")
    parser.add_argument(
        "--measured", type=argparse.FileType(), metavar="LINES", help="draw earlier output instead of measuring"
    )
    parser.add_argument("--only", choices=CURVES, action="append", help="some curves; can be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="timings of each (3)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measured:
        lines = [json.loads(line) for line in options.measured]
    else:
        lines = []
        for line in measured(options.only or CURVES, options.rounds):
            print(json.dumps(line), flush=True)
            lines.append(line)
    if options.plot:
        draw(lines, options.plot)


def measured(curves: Iterable[str], rounds: int) -> Iterator[dict[str, Any]]:
    for growing in curves:
        values, row = CURVES[growing]
        for kind, contrastive in KINDS.items():
            for value in values:
                (found,) = measure(row(value, contrastive), rounds, peers=False)
                yield {"growing": growing, "value": value, "kind": kind, **asdict(found)}


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel per curve; bars show the quartiles."""
    from matplotlib.figure import Figure

    curves = list(dict.fromkeys(line["growing"] for line in lines))
    figure = Figure(figsize=(10, 2.8 * -(-len(curves) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(curves) // 2), 2, squeeze=False).flat
    for panel, growing in zip(panels, curves, strict=False):
        for kind in KINDS:
            found = [line for line in lines if (line["growing"], line["kind"]) == (growing, kind)]
            values = ["pixels" if line["value"] is None else str(line["value"]).split(".")[-1] for line in found]
            medians = [line["median"] for line in found]
            spread = [
                [line["median"] - line["low"] for line in found],
                [line["high"] - line["median"] for line in found],
            ]
            panel.errorbar(values, medians, spread, marker="o", capsize=3, label=kind)
        panel.set(xlabel=growing, ylabel="forward passes", ylim=(0, None))
        panel.grid(alpha=0.3)
    next(iter(figure.axes)).legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
