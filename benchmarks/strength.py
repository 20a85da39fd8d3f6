"""How strong maps of noise are, and how often the evidence is called clear; writes docs/evidence/strength.csv.

    pip install -e '.[compare,hf]' --group dev
    python -m benchmarks.strength           # ten minutes on one CPU, and more the first time, for training

The bundled network explains the twenty ImageNet photos in the package ``foolbox``, each for its own class and for
twenty random ones. The small networks explain pictures of two letters or captions, each for all classes. Some have the
weights of tests/evaluate/weights, and the others are trained.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import ebcli
from benchmarks import evidence
from benchmarks.faithfulness import photos
from benchmarks.trained import captions
from benchmarks.trained.networks import FAMILIES
from benchmarks.trained.pictures import TASKS
from benchmarks.trained.rounded import restored
from benchmarks.trained.training import trained
from ebcli.datatypes.explanation import HARDLY_ANY, OF_NOISE, Map
from ebcli.run.controls import CLASSES, PICTURES, noise
from ebcli.run.saliency import Saliency

WEIGHTS = Path(__file__).resolve().parents[1] / "tests/evaluate/weights"
SEEDS, MANY = 12, 48  # references to compare; classes of one picture
LAYERS = {
    "VGG": "features.19",
    "ResNet": "layer2",
    "DenseNet": "features.denseblock2",
    "ConvNeXt": "features.1",
    "ViT": "encoder.dropout",
}
Noise = Callable[[Sequence[int], int], Tensor]
Measured = Callable[[Noise, int, int], NDArray[Any]]  # of pictures and classes, the strengths


def white(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


def strengths(
    net: torch.nn.Module, side: int, layer: str, count: int, made: Noise, pictures: int, classes: int
) -> NDArray[Any]:
    """The strengths (pictures, classes) of maps of noise that the command does not use."""
    found = []
    for seed in range(1000, 1000 + pictures):
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:classes][None]
        maps = ebcli.excitation_backprop(
            net, made((3, side, side), seed), chosen, layer, contrastive=True
        ).maps[0]
        found.append(maps.clamp(min=0).sum((1, 2)).numpy())
    return np.array(found)


def row(name: str, layer: str, own: Sequence[Map], others: Sequence[Map], measured: Measured) -> evidence.Row:
    """How strong noise is, how much that varies, and what is said about maps."""
    reference, maps = own[0].noise, measured(noise, SEEDS * PICTURES, CLASSES)
    assert reference is not None
    by_seed = maps.reshape(SEEDS, PICTURES, -1)
    ways = {"": by_seed, "one picture, ": measured(noise, SEEDS, MANY), "one class, ": by_seed[..., 0]}
    found: evidence.Row = {"network": name, "layer": layer, "reference": f"{reference:.2g}"}
    for way, some in ways.items():
        each = np.median(some.reshape(SEEDS, -1), 1)
        found |= {f"{way}largest / smallest": f"{each.max() / each.min():.2f}"}
        found |= {f"{way}spread": f"{abs(each / np.median(each) - 1).max():.2f}"}
    found |= {f"noise, {q}%": f"{np.quantile(maps, q / 100):.2g}" for q in (5, 50, 95)}
    found |= {f"noise, at least {times}": f"{(maps >= times * reference).mean():.3f}" for times in OF_NOISE}
    usual = float(np.median(measured(white, PICTURES, CLASSES)))
    found |= {"white noise": f"{usual:.2g}"}
    for kind, some in (("own", own), ("others", others)):
        times = np.array([one.strength or 0 for one in some]) / reference
        found |= {f"{kind}, maps": len(some), f"{kind}, median": f"{np.median(times):.1f}"}
        found |= {f"{kind}, at least {limit}": int((times >= limit).sum()) for limit in OF_NOISE}
        found |= {
            f"{kind}, at least {OF_NOISE[0]} times white noise": int(
                (times * reference >= OF_NOISE[0] * usual).sum()
            )
        }
        words = ("clear", "weak", HARDLY_ANY)
        found |= {f"{kind}, {word}": sum(one.evidence == word for one in some) for word in words}
    return found | evidence.stamp()


def rows(
    name: str,
    net: torch.nn.Module,
    side: int,
    found: Sequence[Saliency],
    labels: Sequence[Sequence[int]],
    count: int,
) -> Iterator[evidence.Row]:
    """A row for each layer: the maps of each picture's own classes, and those of the others."""
    for layer in found[0].explanation.by_layer:
        own, others = list[Map](), list[Map]()
        for one, about in zip(found, labels, strict=True):
            for map_ in one.explanation.by_layer[layer]:
                (own if map_.subject.index in about else others).append(map_)
        yield row(name, layer, own, others, partial(strengths, net, side, layer, count))
        print(name, layer, flush=True)


def bundled() -> Iterator[evidence.Row]:
    loaded = ebcli.load_model()
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(photos(Path(folder))[0].glob("*.jpg"))
        labels = [int(file.stem.rpartition("_")[2]) for file in files]
        random = {*torch.randperm(1000, generator=torch.Generator().manual_seed(5))[:20].tolist()} - {*labels}
        layers = [ebcli.default_layer(loaded), "features"]
        found = [
            ebcli.explain(loaded, file, target=sorted({label} | random), layer=layers)
            for file, label in zip(files, labels, strict=True)
        ]
    yield from rows(loaded.name, loaded.net, 224, found, [[label] for label in labels], 1000)


def small() -> Iterator[evidence.Row]:
    task = TASKS["letters"]
    pictures = task.pictures(12, 2, torch.Generator().manual_seed(4))
    for name, layer in LAYERS.items():
        weights = WEIGHTS / f"{name}.pt"
        net = FAMILIES[name].build(task.num_classes) if weights.exists() else trained(name, task)[0]
        if weights.exists():
            net.load_state_dict(restored(torch.load(weights, weights_only=True)))
        found = ebcli.explain(net.eval(), pictures.images, target=[*range(task.num_classes)], layer=layer)
        yield from rows(name, net, 64, found, pictures.labels.tolist(), task.num_classes)


def clip() -> Iterator[evidence.Row]:
    pictures, count = captions.TASK.pictures(12, 2, torch.Generator().manual_seed(4)), len(captions.CAPTIONS)
    with tempfile.TemporaryDirectory() as folder:
        made = captions.build("CLIP")
        made.load_state_dict(restored(torch.load(WEIGHTS / "CLIP.pt", weights_only=True)))
        captions.save(made, Path(folder))
        net = ebcli.load_model(f"clip/{folder}", class_names=captions.CAPTIONS).net
        found = ebcli.explain(net, pictures.images, target=[*range(count)], layer="vision_model.pre_layrnorm")
        yield from rows("CLIP", net, 64, found, pictures.labels.tolist(), count)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    evidence.write("strength", [*bundled(), *small(), *clip()])


if __name__ == "__main__":
    main()
