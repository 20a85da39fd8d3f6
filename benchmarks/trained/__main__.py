"""Train the networks that are not trained yet, measure their maps, and write docs/trained.md.

python -m benchmarks.trained                    # three quarters of an hour on two processors the first time
python -m benchmarks.trained --family ViT --task letters --output vit.md
python -m benchmarks.trained --rounds 0         # the networks that have been trained
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ebcli import LoadedModel, default_layer, load_model
from ebcli.files.input_spec import InputSpec

from . import captions
from .captions import TASK as CAPTIONS
from .dense import SECTIONS
from .methods import attn_lrp, excitation, gradients, masses
from .networks import FAMILIES
from .page import section, with_section
from .pictures import SIDE, TASKS, Task
from .scores import score
from .training import CACHE, ROOT, ROUNDS, trained

PICTURES = 96  # of two objects each
SEED = 2


@dataclass(frozen=True)
class Trained:
    """A trained network: its accuracy, the layers to read, the default one, and whether AttnLRP is written for it."""

    net: nn.Module
    accuracy: float
    layers: Sequence[str]
    default: str
    attends: bool


def classifier(family: str, task: Task, cache: Path, rounds: int = ROUNDS) -> Trained:
    """A network of torchvision's families."""
    net, accuracy = trained(family, task, cache, rounds)
    kind = FAMILIES[family]
    return Trained(net, accuracy, kind.layers, _default_layer(family, net, task.num_classes), kind.attends)


def two_towers(family: str, cache: Path) -> Trained:
    """A network of transformers with a tower for texts, loaded as by the command; its classes are all captions."""
    net, accuracy = captions.trained(family, cache)
    with tempfile.TemporaryDirectory() as folder:
        captions.save(net, Path(folder))
        loaded = load_model(f"clip/{folder}", class_names=captions.CAPTIONS)
    return Trained(loaded.net, accuracy, captions.LAYERS, default_layer(loaded), attends=False)


def measured(family: str, task: Task, found: Trained, count: int = PICTURES) -> list[dict[str, Any]]:
    """A row for each layer and method."""
    net, accuracy, default = found.net, found.accuracy, found.default
    pictures = task.pictures(count, 2, torch.Generator().manual_seed(SEED))
    images, labels = pictures.images, pictures.labels
    layers = list(dict.fromkeys([None, *found.layers, default]))
    maps = excitation(net, images, labels, layers)
    grids = {layer: tuple(by_cell.shape[2:]) for layer, by_cell in maps["contrastive"].items()}
    maps |= gradients(net, images, labels, grids)
    if found.attends:
        maps["AttnLRP"] = attn_lrp(net, images, labels, grids)
    seen = _seen(net, images, labels)
    mass = masses(net, images, labels, layers)
    rows = []
    for layer in layers:
        for method, by_layer in maps.items():
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
                    **vars(score(by_layer[layer], pictures.boxes)),
                    "share if seen": score(by_layer[layer], pictures.boxes, seen).share,
                }
            )
    return rows


def _default_layer(family: str, net: nn.Module, num_classes: int) -> str:
    """The layer that ebcli chooses for a network of this family, at this size."""
    transforms = InputSpec((SIDE, SIDE), (SIDE,))
    return default_layer(LoadedModel(family.lower(), net, transforms, None, "none", num_classes))


def _seen(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Which of the classes asked for (B, K) are among the two that the network finds likeliest."""
    with torch.inference_mode():
        likeliest = net(images).topk(2).indices
    return (labels[:, :, None] == likeliest[:, None]).any(2)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of the default layers: the share of each method's map."""
    rows = [row for row in rows if row["default"]]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = ["| network | accuracy | layer | " + " | ".join(methods) + " |", "|---" * 3 + "|--:" * len(methods) + "|"]
    for network in dict.fromkeys(row["network"] for row in rows):
        found = {row["method"]: row for row in rows if row["network"] == network}
        first = found["contrastive"]
        shares = [f"{found[method]['share']:.3f}" if method in found else "" for method in methods]
        lines.append(f"| {network} | {first['accuracy']:.3f} | `{first['layer']}` | " + " | ".join(shares) + " |")
    return "\n".join(lines)


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
    parser.add_argument("--family", action="append", choices=[*FAMILIES, *captions.FAMILIES])
    parser.add_argument("--task", action="append", choices=[*TASKS, CAPTIONS.name])
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of two objects each")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of training at most; 0 for what has been trained")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "trained.md")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = []
    for name in options.task or [*TASKS, CAPTIONS.name]:
        rows: list[dict[str, Any]] = []
        has_texts = name == CAPTIONS.name
        families = captions.FAMILIES if has_texts else tuple(FAMILIES)
        for family in filter(families.__contains__, options.family or families):
            if not options.rounds and not (options.cache / f"{name}-{family}.pt").exists():
                continue
            task = CAPTIONS if has_texts else TASKS[name]
            if has_texts:
                network = two_towers(family, options.cache)
            else:
                network = classifier(family, task, options.cache, options.rounds)
            found = measured(family, task, network, options.count)
            first = found[0]
            print(f"{family} on {name}: accuracy {first['accuracy']:.3f}, asked class seen {first['seen']:.2f}")
            rows += found
        if rows:
            intro = f"{captions.INTRODUCTION}\n\n" if has_texts else ""
            text.append(f"## {name.capitalize()}\n\n{intro}{summary(rows)}\n\nAll layers:\n\n{table(rows)}")
            print(text[-1], flush=True)
    template = Path(__file__).with_name("template.md").read_text(encoding="utf-8")
    page = template.format(pictures=options.count, questions=2 * options.count, tables="\n\n".join(text))
    earlier = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
    for heading in SECTIONS:
        if kept := section(earlier, heading):
            page = with_section(page, heading, kept)
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
