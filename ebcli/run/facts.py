"""What records, names and checks need to know of a network. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.input_spec import InputSpec
from ebcli.models.classes import resolve_class
from ebcli.models.efficientnet_lite_weights import DEFAULT_LAYER, NAME, PRESET
from ebcli.models.imagenet import imagenet_classes
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DEFAULT, SOFTMAX, UNTRAINED
from ebcli.run.plan import MapOptions, RunPlan


@dataclass(frozen=True)
class NetworkFacts:
    """A network of a run; see ``LoadedModel`` and ``Explainer`` for the fields."""

    name: str
    weights: str
    files: tuple[Path, ...]
    transforms: InputSpec
    categories: tuple[str, ...] | None
    scores: str
    num_classes: int
    layers: tuple[str, ...]
    default_layer: str | None
    classes: list[int] | None
    against: list[int] | None
    method: str
    task: str = CLASSIFICATION

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
        if model.name.lower() != BUNDLED or model.weights not in (DEFAULT, NAME) or model.class_names or model.like:
            return None
        names = tuple(imagenet_classes())
        against = contrasting_classes(plan.maps, names, len(names))
        classes = chosen_classes(plan.maps, BUNDLED, names, len(names))
        if plan.maps.layers or plan.maps.beside or model.preprocessing.crop is not None:
            return None
        layers = (DEFAULT_LAYER,)
        preset = model.preprocessing.applied_to(PRESET)
        scores = model.scores or SOFTMAX
        method = method_in_words(plan.maps, class_labels(names, against))
        known = (BUNDLED, NAME, (), preset, names, scores, len(names), layers, DEFAULT_LAYER)
        return cls(*known, classes, against, method)

    @classmethod
    def of_plan(cls, plan: RunPlan) -> NetworkFacts:
        """As the user named it, for records of files that cannot be read."""
        model, layers = plan.model, plan.maps.layers
        against = [model.described[int(index)] for index in plan.maps.against] if model.described else plan.maps.against
        method = method_in_words(plan.maps, against)
        known = (model.name, model.weights, (), PRESET, None, model.scores or SOFTMAX, 0, layers, None)
        return cls(*known, None, None, method)


def chosen_classes(maps: MapOptions, name: str, categories: Sequence[str] | None, num_classes: int) -> list[int] | None:
    """The classes to explain in every image, each once; None for each image's most likely ones.

    Raises:
        ConfigurationError: a class does not exist or is contrasted with, or there are fewer classes than maps.
    """
    found, against = _resolved(maps.targets, categories, num_classes), _resolved(maps.against, categories, num_classes)
    most = num_classes - len(against)
    if not found and maps.most > most:
        besides = f" besides {len(against)} to contrast with" if against else ""
        raise ConfigurationError(f"top-k is {maps.most}, but {name} has only {most} classes{besides}")
    for index in against:
        if index in found:
            label = class_labels(categories, [index])[0]
            raise ConfigurationError(f"{label} is both --target and --against: choose another class to contrast with")
    return found or None


def contrasting_classes(maps: MapOptions, categories: Sequence[str] | None, num_classes: int) -> list[int] | None:
    """The classes to contrast with, each once; None for the class's dual.

    Raises:
        ConfigurationError: a class does not exist.
    """
    return _resolved(maps.against, categories, num_classes) or None


def _resolved(names: Sequence[str], categories: Sequence[str] | None, num_classes: int) -> list[int]:
    found = [resolve_class(categories, name, num_classes) for name in names]
    return list(dict.fromkeys(found))  # an index and a name can mean the same class


def class_labels(categories: Sequence[str] | None, indices: Sequence[int] | None) -> list[str]:
    """The names of classes, or their indices in words."""
    return [categories[index] if categories else f"class {index}" for index in indices or ()]


def method_in_words(maps: MapOptions, against: Sequence[str], *, joint: bool = False, over_cells: bool = False) -> str:
    """How maps are computed, as records and figures say it.

    Args:
        maps: the options.
        against: the names of the classes to contrast with.
        joint: whether winning neurons are explained jointly.
        over_cells: whether the layer has tokens that are not cells of the map.
    """
    rule = "joint EB" if joint else "EB"
    if not maps.contrastive:
        return f"marginal {rule}"
    words = f"contrastive {rule} against {', '.join(against)}" if against else f"contrastive {rule}"
    return f"{words}, over the cells of the map" if over_cells else words
