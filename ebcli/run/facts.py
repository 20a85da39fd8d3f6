"""What records, names and checks need to know of a network. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError
from ebcli.models.classes import resolve_class
from ebcli.models.efficientnet_lite_weights import DEFAULT_LAYER, NAME, PRESET
from ebcli.models.imagenet import imagenet_classes
from ebcli.models.keywords import BUNDLED, DEFAULT, SOFTMAX, UNTRAINED
from ebcli.run.plan import MapOptions, RunPlan

if TYPE_CHECKING:
    from torchvision.transforms._presets import ImageClassification

    from ebcli.models.preset import Preset


@dataclass(frozen=True)
class NetworkFacts:
    """A network of a run; see ``LoadedModel`` and ``Explainer`` for the fields."""

    name: str
    weights: str
    files: tuple[Path, ...]
    transforms: ImageClassification | Preset
    categories: tuple[str, ...] | None
    scores: str
    num_classes: int
    layers: tuple[str, ...]
    default_layer: str | None
    classes: list[int] | None

    @property
    def trained(self) -> bool:
        """As ``LoadedModel.trained``."""
        return self.weights != UNTRAINED

    def category(self, index: int) -> str | None:
        """The name of a class; None if it is unknown."""
        return self.categories[index] if self.categories else None

    @classmethod
    def of_bundled(cls, plan: RunPlan) -> NetworkFacts | None:
        """Those of the bundled network at its default layer, which need not be loaded for them; None for others.

        Raises:
            ConfigurationError: a class does not exist, or the preprocessing does not fit.
        """
        model = plan.model
        if model.name.lower() != BUNDLED or model.weights not in (DEFAULT, NAME) or model.class_names:
            return None
        names = tuple(imagenet_classes())
        classes = chosen_classes(plan.maps, BUNDLED, names, len(names))
        if plan.maps.layers:
            return None
        layers = (DEFAULT_LAYER,)
        preset = model.preprocessing.applied_to(PRESET)
        scores = model.scores or SOFTMAX
        return cls(BUNDLED, NAME, (), preset, names, scores, len(names), layers, DEFAULT_LAYER, classes)

    @classmethod
    def of_plan(cls, plan: RunPlan) -> NetworkFacts:
        """As the user named it, for records of files that cannot be read."""
        model, layers = plan.model, plan.maps.layers
        return cls(model.name, model.weights, (), PRESET, None, model.scores or SOFTMAX, 0, layers, None, None)


def chosen_classes(maps: MapOptions, name: str, categories: Sequence[str] | None, num_classes: int) -> list[int] | None:
    """The classes to explain in every image, each once; None for each image's most likely ones.

    Raises:
        ConfigurationError: a class does not exist, or there are fewer classes than maps.
    """
    found = [resolve_class(categories, target, num_classes) for target in maps.targets]
    if not found and maps.top_k > num_classes:
        raise ConfigurationError(f"top-k is {maps.top_k}, but {name} has only {num_classes} classes")
    return list(dict.fromkeys(found)) or None  # an index and a name can mean the same class
