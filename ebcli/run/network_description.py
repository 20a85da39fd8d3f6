"""What is asked of a network, and what records, names and checks need to know of it. Imports no torch."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ebcli import models  # of which some names import torch when they are used
from ebcli.errors import ConfigurationError, LayerError
from ebcli.files.naming import slug
from ebcli.methods.table import CONTRASTIVE, PICTURE, Method, check_methods
from ebcli.models.classes import read_class_names
from ebcli.models.keywords import ALL, BUNDLED, DEFAULT, INPUT, OF_INPUT, RAW, SOFTMAX, WHOLE
from ebcli.models.loaded import DEFAULT_LAYER, NAME, PRESET, STRENGTH_ON_NOISE, LoadedModel
from ebcli.models.names import imagenet_classes
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions, Names, Values, WordOptions

Classes = list[tuple[int, ...]] | None  # see ``NetworkDescription``
Indices = list[int] | None  # of classes

_NOT_LOADED: Any = None
_MAX_NAMES = 5  # classes in a message


@dataclass(frozen=True, kw_only=True)
class NetworkDescription:
    """The network of a run, and what is asked of it.

    Attributes:
        loaded: the network; without its ``net`` as long as nothing needs it.
        layers: the names of the layers.
        default_layer: the layer that is used if none is asked for; None if the network has none, or several are used.
        classes: for each target, the classes that it can mean, of which the one that scores highest is explained in an
            image; None to explain each image's most likely classes.
        against: the classes to contrast with; None for the target's dual.
        method: how the maps are computed, in words.
        noise: the median strength of contrastive maps of noise, by layer; empty if it is unknown.
        strides: of how many cells of a layer the next ones read only the first, by layer; 1 where it is not listed.
    """

    loaded: LoadedModel
    layers: Names
    default_layer: str | None = None
    classes: Classes = None
    against: Indices = None
    method: str = ""
    noise: Mapping[str, float] = field(default_factory=dict)
    strides: Mapping[str, int] = field(default_factory=dict)

    @property
    def possible(self) -> list[int]:
        """All classes that can be explained."""
        if self.classes is None:
            return [*range(self.loaded.num_classes)]
        return [*chain(*self.classes)]

    @property
    def labels_against(self) -> list[str]:
        """The names of the classes to contrast with."""
        return class_labels(self.loaded, self.against)

    @property
    def provenance(self) -> Values:
        """How maps are made, as records have it: the model, its weights, the layer, the method and the fit."""
        model = self.loaded
        provenance = {
            "model": model.name,
            "weights": model.weights,
            "layer": ", ".join(self.layers),
            "method": self.method,
            "fit": model.transforms.fit if model.transforms.size else WHOLE,
        }
        if model.head is not None:
            provenance["head"] = model.head
        return provenance

    def provenance_of_picture(self, other_methods: Sequence[str] = ()) -> Values:
        """The same in the words of a picture, with other methods whose maps are in it."""
        provenance = self.provenance
        if other_methods:
            provenance["method"] += f"; beside: {', '.join(other_methods)}"
        if not self.loaded.trained:
            provenance["weights"] = "untrained"
        return provenance

    @classmethod
    def of_bundled(cls, plan: RunPlan) -> "NetworkDescription | None":
        """That of the bundled network at its default layer, which need not be loaded for it; None for others.

        Raises:
            ConfigurationError: a class does not exist, or the preprocessing does not fit.
        """
        model = plan.model
        maps = plan.maps
        if model.name.lower() != BUNDLED or model.weights not in (DEFAULT, NAME):
            return None
        if model.class_names or model.like or model.head is not None:
            return None
        network = _without_network(BUNDLED, NAME, model.scores, tuple(imagenet_classes()))
        classes, against = chosen_classes(maps, network)
        if maps.layers or maps.beside or model.preprocessing.crop is not None:
            return None
        if any(method.place == PICTURE for method in maps.method_entries):  # which has no default layer
            return None
        preprocessing = model.preprocessing
        network = replace(network, transforms=preprocessing.apply(PRESET), preprocessing=preprocessing)
        return cls(
            loaded=network,
            layers=(DEFAULT_LAYER,),
            default_layer=DEFAULT_LAYER,
            classes=classes,
            against=against,
            method=methods_in_words(maps, class_labels(network, against)),
            noise={DEFAULT_LAYER: STRENGTH_ON_NOISE} if maps.contrastive and not against else {},
        )

    @classmethod
    def of_plan(cls, plan: RunPlan) -> "NetworkDescription":
        """As the user named it, for records of files that cannot be read."""
        model = plan.model
        network = _without_network(model.name, model.weights, model.scores)
        network = replace(network, head=model.head)
        method = methods_in_words(plan.maps, plan.values["against"])
        return cls(loaded=network, layers=plan.maps.layers, method=method)


def _without_network(name: str, weights: str, scores: str | None, names: Names = ()) -> LoadedModel:
    return LoadedModel(
        name,
        _NOT_LOADED,
        transforms=PRESET,
        weights=weights,
        categories=names or None,
        num_classes=len(names),
        scores=scores or SOFTMAX,
        has_values=scores == RAW,
    )


def in_a_sentence(provenance: Mapping[str, str]) -> str:
    """How maps are made, below the title of a figure."""
    parts = ["{model} ({weights})", "layer {layer}", "{method}"]
    if "head" in provenance:
        parts.insert(1, "head {head}")
    return ", ".join(parts).format(**provenance)


def chosen_classes(maps: MapOptions, model: LoadedModel) -> tuple[Classes, Indices]:
    """The classes to explain, and those to contrast with, each once; see ``NetworkDescription``.

    Raises:
        ConfigurationError: a class does not exist or is contrasted with.
    """
    names = model.categories
    count = model.num_classes
    against = [*dict.fromkeys(models.resolve_class(names, name, count) for name in maps.against)]
    # two names can mean the same
    meant = dict.fromkeys(models.matching_classes(names, name, count) for name in target_names(maps))
    groups = []
    for group in meant:
        remaining = tuple(index for index in group if index not in against)
        if not remaining:
            problem = f"{class_labels(model, group)[0]} is both --target and --against"
            raise ConfigurationError(f"{problem}: choose another class to contrast with")
        groups.append(remaining)
    return groups or None, against or None


def target_names(maps: MapOptions) -> Sequence[str]:
    """The names or indices of the classes to explain in every image, also those in a file; empty if there are none.

    Raises:
        ConfigurationError: the file cannot be read, or is empty.
    """
    if isinstance(maps.candidates, Path):
        return read_class_names(maps.candidates)
    return maps.targets


def warn_of_several(network: NetworkDescription, targets: Sequence[str]) -> None:
    """Warn of each target that several classes match, of which the likeliest is explained."""
    model = network.loaded
    words = {}  # in the order of the classes
    for word in targets:
        words[models.matching_classes(model.categories, word, model.num_classes)] = word
    for word, group in zip(words.values(), network.classes or (), strict=False):
        count = len(group)
        names = class_labels(model, group[:_MAX_NAMES])
        if count > _MAX_NAMES:
            names.append("...")
        if count > 1:
            warnings.warn(
                f"{word!r} means {count} classes ({', '.join(names)}): of these, the one that scores highest is "
                "explained",
                stacklevel=2,
            )


def class_labels(model: LoadedModel, indices: Sequence[int] | None) -> list[str]:
    """The names of classes, or their indices in words."""
    return [model.category(index) or f"class {index}" for index in indices or ()]


def methods_in_words(maps: MapOptions, against: Sequence[str], *, joint: bool = False) -> str:
    """How maps are computed, as records and figures say it; for the arguments, see `method_in_words`."""
    return "; ".join(method_in_words(method, against, joint=joint) for method in maps.method_entries)


def method_in_words(
    method: Method, against: Sequence[str], *, joint: bool = False, over_cells: bool = False
) -> str:
    """How the maps of a method are computed.

    Args:
        method: the method.
        against: the names of the classes to contrast with.
        joint: whether winning neurons are explained jointly.
        over_cells: whether the layer has tokens that are not cells of the map.
    """
    words = method.words
    if joint:
        words = words.replace("EB", "joint EB")
    if against and method.takes_against:
        words += f" against {', '.join(against)}"
    if not method.knows_class:
        words += ", the same for every class"
    if over_cells and method.name == CONTRASTIVE:
        words += ", over the cells of the map"
    return words


def describe(plan: RunPlan, model: LoadedModel, own_layer: str | None) -> NetworkDescription:
    """What is asked of a network: its layers, or its task's own one, and classes; without the method if that varies."""
    if own_layer is not None:
        method = (plan.words or WordOptions()).method
        return NetworkDescription(loaded=model, layers=(own_layer,), default_layer=own_layer, method=method)
    layers = layers_of_methods(plan.maps, model)
    check_methods([*plan.maps.method_entries, *plan.maps.entries_beside], layers == (INPUT,))
    counts = Counter(map(slug, layers))
    same_slugs = [repr(name) for name in layers if counts[slug(name)] > 1]
    if same_slugs and not plan.output.panel:
        names = " and ".join(same_slugs)
        raise ConfigurationError(f"the layers {names} share a file name: run them one at a time")
    classes, against = chosen_classes(plan.maps, model)
    default = None
    if not plan.maps.layers:
        default = layers[0]
    elif len(layers) == 1:
        with suppress(LayerError):  # another layer may do nevertheless
            default = models.default_layer(model)
    return NetworkDescription(
        loaded=model, layers=layers, default_layer=default, classes=classes, against=against
    )


def layers_of_methods(maps: MapOptions, model: LoadedModel) -> Names:
    """The layers that are asked for; the picture alone if no method looks into the network.

    Raises:
        ConfigurationError: a method has no maps at such layers.
    """
    if all(method.place == PICTURE for method in maps.method_entries):
        if maps.layers not in ((), (INPUT,)):
            raise ConfigurationError(f"{maps.methods[0]} makes maps of the picture: drop --layer")
        return (INPUT,)
    return chosen_layers(maps.layers, model)


def chosen_layers(names: Sequence[str], model: LoadedModel) -> Names:
    """The layers that are asked for, each once; the model's default layer if none are.

    Raises:
        LayerError: there is no such layer, or one is an input that is not the picture, beside other layers.
    """
    if not names and model.inputs is not None and model.inputs.pictures:
        return (INPUT,)  # the only layer at which each picture has a map of its own
    chosen: list[str] = []
    for name in names or (models.default_layer(model),):
        if name == ALL:
            chosen += [*models.layer_per_resolution(model), INPUT]
        elif name == INPUT:
            chosen.append(INPUT)
        else:
            chosen.append(_input_named(name, model) or models.resolve_layer(model, name))
    layers = tuple(dict.fromkeys(chosen))
    for layer in layers:
        if layer.startswith(OF_INPUT) and len(layers) > 1:
            raise LayerError(f"layer {layer!r} has no map of the picture: ask for it alone")
    return layers


def _input_named(name: str, model: LoadedModel) -> str | None:
    """The layer that is an input, if a name is that of one of several inputs, and of no module; else None."""
    has_prefix = name.startswith(OF_INPUT)
    inputs = model.inputs
    if inputs is None:
        if has_prefix:
            raise LayerError(f"{model.name} has one input: use the layer {INPUT!r}")
        return None
    is_module = any(name == module_name for module_name, _ in model.net.named_modules())
    if has_prefix or (name in inputs.names and not is_module and not name.isdecimal()):
        return inputs.find_layer(name)
    return None


def check_picture(network: NetworkDescription) -> None:
    """Raise LayerError if the map is that of an input that a run cannot draw."""
    for layer in network.layers:
        if layer.startswith(OF_INPUT):
            problem = f"layer {layer!r} has no map of the photo, which is drawn here"
            raise LayerError(f"{problem}: use --layer {INPUT}, or explain(..., layer={layer!r}) in Python")
