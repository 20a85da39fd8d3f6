"""The one file that knows the order of the steps: load, find, then decode, explain, paint and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor

from ebcli.eb import excitation_backprop
from ebcli.errors import ConfigurationError, ImageError
from ebcli.images import Source, decode, find, has_image_suffix, is_recognised, placement
from ebcli.models import LoadedModel, default_layer, load_model, resolve_class, resolve_layer
from ebcli.models import layers as model_layers
from ebcli.output import picture_path, write_picture
from ebcli.overlay import is_blank, overlay, palette
from ebcli.plan import RunPlan

Targets = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ClassMap:
    """One finished picture.

    Attributes:
        index, category: the class, by number and (where the weights tell) by name.
        score: its softmax probability.
        mass: what the marginal map sums to: the share of the probability that reached the layer.
        picture: the file.
        blank: the map had nothing to show, and the picture shows none.
    """

    index: int
    category: str | None
    score: float
    mass: float
    picture: Path
    blank: bool


@dataclass(frozen=True)
class ImageResult:
    """What became of one file: its maps, or the reason why there are none; ``skipped`` if it is no image."""

    path: Path
    maps: tuple[ClassMap, ...] = ()
    error: str | None = None
    skipped: bool = False


@dataclass(frozen=True)
class Run:
    """A run that is ready to go: each step of ``results`` works on one file, ``total`` of them at most."""

    model: str
    weights: str
    layer: str
    device: str
    total: int
    results: Iterator[ImageResult]


def run(plan: RunPlan) -> Run:
    """Check and load everything that all images share; the images are worked on as ``results`` is read.

    Raises:
        ConfigurationError: model, weights, layer, class, colormap or device do not exist or do not fit.
        OutputError: (from ``results``) a picture cannot be written.
    """
    palette(plan.cmap)
    device = _device(plan.device)
    loaded = load_model(plan.model, plan.weights, device)
    layer = default_layer(loaded) if plan.layer is None else resolve_layer(loaded, plan.layer)
    worker = _Worker(plan, loaded, layer, _targets(plan, loaded, device), device)
    sources = list(find(plan.images, without=plan.output))
    return Run(loaded.name, loaded.weights, layer, device, len(sources), map(worker.explain, sources))


def layer_table(model: str, weights: str) -> list[tuple[str, str, str, str]]:
    """The layers of a model as rows of text, below a row of headings: name, type, output shape and stride.

    Raises:
        ConfigurationError: the model or the weights do not exist or do not fit together.
    """
    loaded = load_model(model, weights, "cpu")
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE")]
    for layer in model_layers(loaded):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        rows.append((layer.name, layer.type, "x".join(map(str, layer.shape)), stride))
    return rows


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _targets(plan: RunPlan, loaded: LoadedModel, device: str) -> Targets:
    """From the logits (B, num_classes) of a batch to the class indices (B, K) that it gets maps for."""
    num_classes = len(loaded.categories or ()) or _count_outputs(loaded, device)
    if plan.targets:
        found = (resolve_class(loaded.categories, target, num_classes) for target in plan.targets)
        indices = list(dict.fromkeys(found))  # an index and a name may mean the same class
        return lambda logits: torch.tensor([indices] * len(logits), device=logits.device)
    if plan.top_k > num_classes:
        raise ConfigurationError(f"top-k is {plan.top_k}, but {loaded.name} has only {num_classes} classes")
    return lambda logits: logits.topk(plan.top_k).indices


def _count_outputs(loaded: LoadedModel, device: str) -> int:
    side = loaded.transforms.crop_size[0]
    with torch.no_grad():
        return loaded.net(torch.zeros(1, 3, side, side, device=device)).shape[1]


@dataclass(frozen=True)
class _Worker:
    """Everything that the images of a run share."""

    plan: RunPlan
    loaded: LoadedModel
    layer: str
    targets: Targets
    device: str

    def explain(self, source: Source) -> ImageResult:
        path = source.path
        if not (source.named or has_image_suffix(path) or is_recognised(path)):
            return ImageResult(path, skipped=True)
        try:
            image = decode(path)
        except ImageError as error:
            return ImageResult(path, error=str(error))
        return ImageResult(path, tuple(self._draw(path, image)))

    def _draw(self, path: Path, image: Image) -> Iterator[ClassMap]:
        chosen: list[Tensor] = []

        def choose(logits: Tensor) -> Tensor:
            chosen.append(self.targets(logits))
            return chosen[0]

        plan, loaded = self.plan, self.loaded
        inputs = loaded.transforms(image).unsqueeze(0).to(self.device)
        result = excitation_backprop(loaded.net, inputs, choose, layer=self.layer, contrastive=plan.contrastive)
        place = placement(image.size, loaded.transforms)
        maps, mass, scores = result.maps[0], result.mass[0].tolist(), result.logits[0].softmax(-1).tolist()
        for k, index in enumerate(chosen[0][0].tolist()):
            saliency = maps[k].float().cpu().numpy()
            category = loaded.categories[index] if loaded.categories else None
            picture = picture_path(plan.output, path, index, category)
            write_picture(overlay(image, saliency, place, plan.cmap, plan.alpha), picture)
            yield ClassMap(index, category, scores[index], mass[k], picture, is_blank(saliency))
