"""How strong maps of noise are, and how often the evidence is called clear; writes docs/evidence/strength.csv.

    pip install -e '.[compare,hf]' --group dev
    python benchmarks/strength.py           # a few minutes on one CPU

The bundled network explains the twenty ImageNet photos in the package ``foolbox``, each for its own class and one of
the other photos' classes. The small networks have the weights of tests/evaluate/weights. They explain pictures of two
letters or captions, each for both and for two others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import torch
from faithfulness import photos
from torch import Tensor

import ebcli
from benchmarks.trained import captions
from benchmarks.trained.networks import FAMILIES
from benchmarks.trained.pictures import TASKS
from benchmarks.trained.rounded import restored
from ebcli.nouns.explanation import _CLEAR, _WEAK, Map
from ebcli.run.saliency import Saliency

WEIGHTS = Path(__file__).resolve().parents[1] / "tests/evaluate/weights"
PICTURES, CLASSES = 12, 16  # of noise; per picture


def of_noise(net: torch.nn.Module, side: int, layer: str, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The strengths (pictures, classes) of maps of noise."""
    classes = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:CLASSES][None]
    strengths = []
    for seed in range(PICTURES):
        noise = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(seed))
        maps = ebcli.excitation_backprop(net, noise, classes, layer, contrastive=True).maps[0]
        strengths.append(maps.clamp(min=0).sum((1, 2)).numpy())
    return np.array(strengths)


def row(name: str, layer: str, noise: np.ndarray[Any, Any], own: Sequence[Map], others: Sequence[Map]) -> evidence.Row:
    """Quantiles of the strength of noise, and the share of maps that are called clear, by strength alone or at all."""
    reference = own[0].noise
    found = {"network": name, "layer": layer, "reference": "" if reference is None else f"{reference:.2g}"}
    found |= {f"noise, {q}%": f"{np.quantile(noise, q / 100):.2g}" for q in (5, 50, 95)}
    found |= {"noise, one class, largest / smallest": f"{(noise.max(0) / noise.min(0)).mean():.1f}"}
    by_picture = np.median(noise, 1)
    found |= {"noise, median of classes, largest / smallest": f"{by_picture.max() / by_picture.min():.1f}"}
    for kind, maps in (("own", own), ("others", others)):
        strong = [reference is not None and (one.strength or 0) >= _CLEAR * reference for one in maps]
        weak = [reference is not None and (one.strength or 0) >= _WEAK * reference for one in maps]
        found |= {
            f"{kind}, maps": len(maps),
            f"{kind}, clear by strength": sum(strong),
            f"{kind}, clear or weak by strength": sum(weak),
            **{
                f"{kind}, {word}": sum(one.evidence == word for one in maps) for word in ("clear", "weak", "hardly any")
            },
        }
    return found | evidence.stamp()


def split(found: Sequence[Saliency], labels: Sequence[Sequence[int]]) -> tuple[list[Map], list[Map]]:
    """The maps of each picture's own classes, and of as many others: the next ones in the list of classes."""
    own, others = [], []
    for one, about in zip(found, labels, strict=True):
        by_class = {map_.subject.index: map_ for map_ in one.explanation.maps}
        rest = sorted(by_class.keys() - {*about}, key=lambda index: (index <= about[0], index))
        own += [by_class[index] for index in about]
        others += [by_class[index] for index in rest[: len(about)]]
    return own, others


def bundled() -> evidence.Row:
    loaded = ebcli.load_model()
    layer = ebcli.default_layer(loaded)
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(photos(Path(folder))[0].glob("*.jpg"))
        labels = [int(file.stem.rpartition("_")[2]) for file in files]
        found = ebcli.explain(loaded, files, target=sorted(set(labels)))
    own, others = split(found, [[label] for label in labels])
    return row(loaded.name, layer, of_noise(loaded.net, 224, layer, 1000), own, others)


def small(name: str, net: torch.nn.Module, layer: str, count: int, images: Tensor, labels: Tensor) -> evidence.Row:
    found = ebcli.explain(net, images, target=[*range(count)], layer=layer)
    return row(name, layer, of_noise(net, 64, layer, count), *split(found, labels.tolist()))


def main() -> None:
    rows = [bundled()]
    task = TASKS["letters"]
    pictures = task.pictures(12, 2, torch.Generator().manual_seed(4))
    for name, layer in (("DenseNet", "features.denseblock2"), ("ViT", "encoder.dropout")):
        net = FAMILIES[name].build(task.num_classes)
        net.load_state_dict(restored(torch.load(WEIGHTS / f"{name}.pt", weights_only=True)))
        rows.append(small(name, net.eval(), layer, task.num_classes, pictures.images, pictures.labels))
    pictures = captions.TASK.pictures(12, 2, torch.Generator().manual_seed(4))
    with tempfile.TemporaryDirectory() as folder:
        clip = captions.build("CLIP")
        clip.load_state_dict(restored(torch.load(WEIGHTS / "CLIP.pt", weights_only=True)))
        captions.save(clip, Path(folder))
        net = ebcli.load_model(f"clip/{folder}", class_names=captions.CAPTIONS).net
        rows.append(
            small("CLIP", net, "vision_model.pre_layrnorm", len(captions.CAPTIONS), pictures.images, pictures.labels)
        )
    evidence.write("strength", rows)


if __name__ == "__main__":
    main()
