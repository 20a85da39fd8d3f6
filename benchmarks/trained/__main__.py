"""Train the networks that are not trained yet, measure their maps, and write trained.csv, sentences.csv and words.csv.

python -m benchmarks.trained                    # three quarters of an hour on two processors the first time
python -m benchmarks.trained --family ViT --task letters
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
from torch import nn

from benchmarks import evidence
from ebcli import LoadedModel, default_layer, load_model
from ebcli.datatypes.input_spec import InputSpec

from . import captions, sentence_maps, sentences
from .captions import TASK as CAPTIONS
from .methods import attn_lrp, excitation, gradients, masses_and_rules, rule_for
from .networks import FAMILIES
from .pictures import SIDE, TASKS, Task
from .scores import score
from .training import CACHE, ROUNDS, trained

PICTURES = 48  # of two objects each
SEED = 2
LEARNED = 0.85  # accuracy of networks that are listed for a task


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
    known = masses_and_rules(net, images, labels, layers)
    names = [name for name, _ in net.named_modules()]
    rows = []
    for layer in sorted(layers, key=lambda layer: -1 if layer is None else names.index(layer)):
        mass, rule = known[layer]
        for method, by_layer in maps.items():
            found = score(by_layer[layer], pictures.boxes)
            rows.append(
                {
                    "task": task.name,
                    "network": family,
                    "accuracy": f"{accuracy:.3f}",
                    "questions": labels.numel(),
                    "layer": layer or "input",
                    "default": layer == default,
                    "cells": " x ".join(map(str, grids[layer])),
                    "mass": f"{mass:.2f}",
                    "method": method,
                    "rule": rule_for(method, rule),
                    "share": f"{found.share:.3f}",
                    "hits": f"{found.hits:.2f}",
                    "blank": f"{found.blank:.2f}",
                    **evidence.stamp(),
                }
            )
    return rows


def _default_layer(family: str, net: nn.Module, num_classes: int) -> str:
    """The layer that ebcli chooses for a network of this family, at this size."""
    transforms = InputSpec((SIDE, SIDE), resize=(SIDE,))
    return default_layer(
        LoadedModel(
            family.lower(),
            net,
            transforms=transforms,
            categories=None,
            weights="none",
            num_classes=num_classes,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--family", action="append", choices=[*FAMILIES, *captions.FAMILIES, sentences.FAMILY]
    )
    parser.add_argument("--task", action="append", choices=[*TASKS, CAPTIONS.name, sentences.NAME])
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of two objects each")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of training at most; 0 for what has been trained"
    )
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.task or [*TASKS, CAPTIONS.name, sentences.NAME]:
        if name == sentences.NAME:
            is_wanted = options.rounds or (options.cache / f"{name}-{sentences.FAMILY}.pt").exists()
            if is_wanted and sentences.FAMILY in (options.family or [sentences.FAMILY]):
                net, accuracy = sentences.trained(options.cache)
                evidence.write("sentences", sentence_maps.located(net, accuracy, options.count))
                evidence.write("words", sentence_maps.shared(net, accuracy, options.count))
            continue
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
            print(f"{family} on {name}: accuracy {network.accuracy:.3f}", flush=True)
            if network.accuracy >= LEARNED:
                rows = measured(family, task, network, options.count)
                evidence.update("trained", rows, ("task", "network"))


if __name__ == "__main__":
    main()
