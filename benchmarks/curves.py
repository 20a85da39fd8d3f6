"""How the cost of a map grows with the image, the batch, the number of classes and the depth of the layer.

    python benchmarks/curves.py --plot docs/performance/curves.png  # some ten minutes

VGG-16, as in ``speed.py``: medians of ratios to one plain forward pass of the same batch, taken in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from speed import Measured, Row, measure

LAYER = "features.23"
KINDS = {"contrastive": True, "marginal": False}
DEPTHS = (None, "features.4", "features.9", "features.16", "features.23", "features.30")

# what grows: its values, and the row for one of them
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
    "layer": (DEPTHS, lambda layer, contrastive: Row("vgg16", layer, contrastive, batch=1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves, too")
    parser.add_argument("--only", choices=CURVES, action="append", help="some curves; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed (3)")
    parser.add_argument("--threads", type=int, default=2, help="of the processor (2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, list[Measured]]] = {}
    for growing in options.only or CURVES:
        values, row = CURVES[growing]
        for kind, contrastive in KINDS.items():
            for value in values:
                (measured,) = measure(row(value, contrastive), options.rounds, peers=False)
                found.setdefault(growing, {}).setdefault(kind, []).append(measured)
                line = {"growing": growing, "value": value, "kind": kind, "forward passes": round(measured.median, 2)}
                print(json.dumps(line), flush=True)
    if options.plot:
        draw(found, options.plot)


def draw(found: dict[str, dict[str, list[Measured]]], path: Path) -> None:
    """One picture, a panel for each curve; bars show the middle half."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6 * len(found) / 2 + 1), layout="constrained")
    panels = figure.subplots(-(-len(found) // 2), 2, squeeze=False).flat
    for panel, (growing, kinds) in zip(panels, found.items(), strict=False):
        values = ["pixels" if value is None else str(value) for value in CURVES[growing][0]]
        for kind, measured in kinds.items():
            medians = [m.median for m in measured]
            spread = [[m.median - m.low for m in measured], [m.high - m.median for m in measured]]
            panel.errorbar(values, medians, spread, marker="o", capsize=3, label=kind)
        panel.set(xlabel=growing, ylabel="forward passes", ylim=(0, None))
        panel.grid(alpha=0.3)
    next(iter(figure.axes)).legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
