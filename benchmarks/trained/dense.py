"""Train detectors, segmentation networks and video classifiers, and write docs/evidence/dense.csv.

python -m benchmarks.trained.dense                  # half an hour on one processor the first time
python -m benchmarks.trained.dense FCOS LRASPP
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import evidence

from .dense_maps import DEFAULT, EXCITATION, LAYERS, Share, maps, questions, rules, share, task_of
from .dense_networks import DETECTORS, as_detector
from .dense_training import NETWORKS, accuracy, trained
from .methods import rule_for
from .training import CACHE

PICTURES = 16  # of two letters each
METHODS = (*EXCITATION, "Grad-CAM", "gradient x activation", "untrained")


def measured(name: str, count: int, cache: Path) -> list[dict[str, Any]]:
    """A row for each layer and method."""
    net = trained(name, cache)
    layers: list[str | None] = [None, *LAYERS[name]]
    untrained = _untrained(name)
    shares: dict[tuple[str | None, str], list[Share]] = defaultdict(list)
    asked, decided = 0, dict[str | None, str]()
    for asked, question in enumerate(questions(name, net, count), 1):  # noqa: B007
        decided = decided or rules(question, layers)
        found_by = maps(question, layers)
        if untrained is not None:
            found_by["untrained"] = maps(replace(question, net=untrained), layers, ["contrastive"])[
                "contrastive"
            ]
        for method, by_layer in found_by.items():
            for layer, found in by_layer.items():
                shares[layer, method].append(share(found, question))
    rows = []
    for layer in layers:
        if 2 * sum(one.half == 0 for one in shares[layer, "marginal"]) > asked:
            continue  # no probability passes here
        for method in [method for method in METHODS if shares[layer, method]]:
            rows.append(
                {
                    "task": task_of(name),
                    "network": name,
                    "accuracy": f"{accuracy(name, net):.2f}",
                    "questions": asked,
                    "layer": layer or "input",
                    "default": layer == DEFAULT[name],
                    "chance": f"{_mean(shares[layer, METHODS[0]], 'chance'):.2f}",
                    "method": method,
                    "rule": rule_for(method, decided[layer]),
                    "share": f"{_mean(shares[layer, method], 'half'):.3f}",
                    "place": f"{_mean(shares[layer, method], 'place'):.3f}",
                    **evidence.stamp(),
                }
            )
            print(rows[-1], flush=True)
    return rows


def _untrained(name: str) -> nn.Module | None:
    """A network with random weights; None where they choose other places (proposals)."""
    torch.manual_seed(1)
    net = NETWORKS[name]().eval()
    if hasattr(net, "roi_heads"):
        return None
    return as_detector(net) if name in DETECTORS else net


def _mean(shares: Sequence[Share], what: str) -> float:
    return sum(getattr(one, what) for one in shares) / len(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of two letters each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        evidence.update("dense", measured(name, options.count, options.cache), ("network",))


if __name__ == "__main__":
    main()
