"""Train the networks that are not trained yet, measure their maps, and print a table.

python -m benchmarks.trained                    # three quarters of an hour on two processors the first time
python -m benchmarks.trained --family ViT --task letters
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms._presets import ImageClassification

import ebcli

from .methods import attn_lrp, excitation, gradients, masses
from .networks import FAMILIES
from .pictures import SIDE, TASKS, Task
from .prototypes import joint_excitation
from .scores import score
from .training import CACHE, ROUNDS, trained

PICTURES = 96  # of two objects each
SEED = 2


def measured(family: str, task: Task, cache: Path, count: int = PICTURES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """A row for each layer and method."""
    net, accuracy = trained(family, task, cache, rounds)
    kind = FAMILIES[family]
    pictures = task.pictures(count, 2, torch.Generator().manual_seed(SEED))
    images, labels = pictures.images, pictures.labels
    layers = [None, *kind.layers]
    maps = excitation(net, images, labels, layers)
    grids = {layer: tuple(found.shape[2:]) for layer, found in maps["contrastive"].items()}
    maps |= joint_excitation(net, images, labels, grids)
    *_, classifier = (module for module in net.modules() if isinstance(module, nn.Linear))
    at_classifier = joint_excitation(net, images, labels, grids, classifier=classifier.weight)
    maps["joint contrastive, inputs of the classifier as neurons"] = at_classifier["joint contrastive"]
    maps |= gradients(net, images, labels, grids)
    if kind.attends:
        maps["AttnLRP"] = attn_lrp(net, images, labels, grids)
    seen = _seen(net, images, labels)
    mass = masses(net, images, labels, layers)
    default = default_layer(family, net)
    rows = []
    for layer in layers:
        for method, found in maps.items():
            rows.append(
                {
                    "task": task.name,
                    "network": family,
                    "accuracy": accuracy,
                    "seen": float(seen.float().mean()),
                    "layer": layer or "input",
                    "default": layer == default,
                    "cells": " x ".join(map(str, grids[layer])),
                    "mass": mass[layer],
                    "method": method,
                    **vars(score(found[layer], pictures.boxes)),
                    "share if seen": score(found[layer], pictures.boxes, seen).share,
                }
            )
    return rows


def default_layer(family: str, net: nn.Module) -> str | None:
    """The layer that ebcli would choose for a network of this family, at this size."""
    name = {"VGG": "vgg11_bn", "ResNet": "resnet18"}.get(family, family)
    transforms = ImageClassification(crop_size=SIDE, resize_size=SIDE)
    *_, last = (module for module in net.modules() if isinstance(module, nn.Linear))
    return ebcli.default_layer(ebcli.LoadedModel(name, net, transforms, None, "none", last.out_features))


def _seen(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Which of the classes asked for (B, K) are among the two that the network finds likeliest."""
    with torch.inference_mode():
        likeliest = net(images).topk(2).indices
    return (labels[:, :, None] == likeliest[:, None]).any(2)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: a line for each layer, and for each method share / hits, blank maps in brackets."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = ["| network | layer | cells | mass | " + " | ".join(methods) + " |", "|---" * (4 + len(methods)) + "|"]
    keys = dict.fromkeys((row["network"], row["layer"]) for row in rows)
    for network, layer in keys:
        found = {row["method"]: row for row in rows if (row["network"], row["layer"]) == (network, layer)}
        first = found["contrastive"]
        name = f"{layer} (default)" if first["default"] else layer
        cells = [_cell(found[method]) if method in found else "" for method in methods]
        lines.append(f"| {network} | {name} | {first['cells']} | {first['mass']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    blank = f" ({row['blank']:.0%} blank)" if row["blank"] else ""
    return f"{row['share']:.3f} / {row['hits']:.2f}{blank}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of two objects each")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of training at most; 0 for what has been trained")
    parser.add_argument("--output", type=Path, help="a file for the tables")
    options = parser.parse_args()
    torch.set_num_threads(2)
    text = []
    for name in options.task or TASKS:
        rows = []
        for family in options.family or FAMILIES:
            found = measured(family, TASKS[name], options.cache, options.count, options.rounds)
            first = found[0]
            print(f"{family} on {name}: accuracy {first['accuracy']:.3f}, asked class seen {first['seen']:.2f}")
            rows += found
        text.append(f"## {name}\n\n{table(rows)}\n")
        print(text[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
