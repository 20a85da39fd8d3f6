"""A network of the page: loaded while the page is open, then asked about photos, by one thread at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.naming import slug
from ebcli.files.sources import Source
from ebcli.files.stamp import Stamp
from ebcli.models.caveats import caveat
from ebcli.models.classes import matching_classes
from ebcli.models.keywords import ALL, CLASSIFICATION, INPUT, SEGMENTATION
from ebcli.models.sources import takes_texts
from ebcli.models.spec import ModelSpec
from ebcli.nouns.explanation import Explanation, Subject
from ebcli.run.plan import ATLAS_CLASSES, RunPlan
from ebcli.run.plan_parts import MapOptions, OutputOptions
from ebcli.run.plan_text import as_command
from ebcli.run.reading import NetworkInput, Reader
from ebcli.serve.question import EVERY, Question
from ebcli.workers import Workers

if TYPE_CHECKING:
    from ebcli.models import LoadedModel
    from ebcli.run.explainer import Explainer

_EXPLAINERS, _INPUTS = 32, 16  # kept in memory
_ANY_TEXT = ("a photo",)


class Network:
    """A network.

    Args:
        plan: a run of it, without classes; the first of its layers is shown first.
        workers: the process that decodes and draws photos.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit.

    Attributes:
        problem: why it cannot be loaded, in one sentence.
        doubt: a sentence on how far its maps can be trusted.
        layers: the layers that the page offers, from the pixels to the classifier.
        default: the layer that is shown first.
        takes_texts: its classes are texts.
    """

    def __init__(self, plan: RunPlan, workers: Workers, max_pixels: int | None = None) -> None:
        self._usual, self.spec, self._workers, self._max_pixels = plan, plan.model, workers, max_pixels
        self.problem: str | None = None
        self.doubt: str | None = None
        self.layers: tuple[str, ...] = ()
        self.default = ""
        self.takes_texts = self.spec.class_names is None and takes_texts(self.spec.name)
        self._loaded: LoadedModel | None = None
        # each set of texts is a network of its own
        self._with_texts = lru_cache(1)(self._loaded_with_texts)
        self._explainer_of = lru_cache(2 if self.takes_texts else _EXPLAINERS)(self._new_explainer)
        self._read_once = lru_cache(_INPUTS)(self._read)

    @property
    def loaded(self) -> LoadedModel:
        """The network.

        Raises:
            ConfigurationError: it is not loaded.
        """
        if self._loaded is None:
            raise ConfigurationError(self.problem or f"{self.spec.name} is still loading: try again in a moment")
        return self._loaded

    @property
    def is_ready(self) -> bool:
        """Whether it is loaded."""
        return self._loaded is not None

    def load(self) -> None:
        """Load the network.

        Raises:
            ConfigurationError: it cannot be loaded, or is not for images.
        """
        from ebcli.models import layers
        from ebcli.run.explainer import Explainer
        from ebcli.run.layer_choice import chosen_layers

        named = self._usual.maps.layers
        first = Explainer(self._usual.but(layer=named[:1], target=_ANY_TEXT if self.takes_texts else ()), 1)
        loaded = first.loaded
        if loaded.transforms.axes != "HW" or loaded.transforms.frames is not None:
            raise ConfigurationError(f"{loaded.name} is for {loaded.task}: the page is for images, the command is not")
        order = {layer.name: at for at, layer in enumerate(layers(loaded))} | {INPUT: -1}
        offered = chosen_layers((*named, *first.network.layers, ALL), loaded)
        self.layers = tuple(sorted(offered, key=lambda layer: order.get(layer, len(order))))
        self.default = first.network.layers[0]
        self.doubt = caveat(loaded.name) if loaded.trained else f"{loaded.name} is untrained: its maps are meaningless"
        self._loaded = loaded

    def plan(self, question: Question, **others: Any) -> RunPlan:
        """The plan that a question stands for, with other values.

        Raises:
            ConfigurationError: it stands for none.
        """
        if self.takes_texts and not question.target:
            raise ConfigurationError(f"{self.spec.name} compares images with texts: type one")
        layers = self.layers if question.layer == EVERY else (question.layer or self.default,)
        return self._usual.but(**question.values | {"layer": layers} | others)

    def subjects(self, question: Question, source: Source) -> list[Subject]:
        """The most likely classes of a photo, or what is found in it; for texts, how well they fit."""
        plan = self._usual.but(layer=(self.default,))
        if self.takes_texts:
            plan = self.plan(replace(question, layer=""))
        elif self.loaded.task == CLASSIFICATION:
            plan = plan.but(top_k=ATLAS_CLASSES)
        return self._explainer(plan).subjects(self._input(source))

    def explain(self, question: Question, source: Source) -> Explanation:
        """The maps of a photo.

        Raises:
            ConfigurationError: a class or a layer does not exist.
            ImageError: the photo cannot be read, or nothing is found.
        """
        (found,) = self._explainer(self.plan(question)).explain([self._input(source)])
        if isinstance(found, ImageError):
            raise found
        if not found.maps:
            raise ImageError(f"{self.loaded.name} finds nothing to explain: name a class")
        return found

    def compared(self, question: Question) -> Question:
        """The question for the maps of the classes that the atlas of a photo compares.

        Raises:
            ConfigurationError: it is no classifier with classes of its own.
        """
        if self.loaded.task != CLASSIFICATION or self.takes_texts:
            raise ConfigurationError(f"{self.loaded.name} has no classes to compare at each place")
        return question.likeliest(ATLAS_CLASSES)

    def size(self, source: Source) -> tuple[int, int]:
        """The width and height of a photo."""
        return self._input(source).size

    def picture(self, question: Question, source: Source, explanation: Explanation) -> bytes:
        """The picture of the only map of an explanation, as a run writes it."""
        from ebcli.run.prepare import render_options
        from ebcli.run.rendering import render

        plan = self.plan(question, format="png")
        network = self._explainer(plan).network
        options = render_options(plan, network, plan.style)
        reader = Reader(network.loaded.transforms, max_pixels=self._max_pixels)
        drawn = self._workers.call(render, source, self._input(source), reader, options, explanation, None)
        return drawn.files[0]

    def label(self, question: Question) -> str:
        """The class of a question, by its name if it has one of its own, else by its index; or the text."""
        return ", ".join(map(self._word, question.target))

    def command(self, question: Question, name: str) -> str:
        """The command line that makes the picture of a question.

        Args:
            question: the question.
            name: the photo's path.
        """
        classes = {key: tuple(map(self._word, getattr(question, key))) for key in ("target", "against")}
        # a single file takes a single map, and a photo can have several segments
        is_one = self.loaded.task != SEGMENTATION
        written = {"output": Path(self.file_name(question, name))} if is_one else {"format": "png"}
        plan = self.plan(question, images=(Path(name),), **classes, **written)
        return as_command(plan)

    def file_name(self, question: Question, name: str) -> str:
        """The name of the picture of a question about a photo."""
        parts = [Path(name).stem, *map(self._word, question.target)]
        return "-".join(filter(None, map(slug, parts))) + ".png"

    def _word(self, target: str) -> str:
        names = self.loaded.categories
        if self.takes_texts:
            return target
        index, *others = matching_classes(names, target, self.loaded.num_classes)
        if others:  # the likeliest is meant
            return target
        name = self.loaded.category(index)
        is_own = names is not None and name is not None and names.count(name) == 1 and not name.lstrip("+-").isdigit()
        return name if is_own and name else str(index)

    def _explainer(self, plan: RunPlan) -> Explainer:
        """The network, asked for the classes of a plan."""
        maps = MapOptions(layers=plan.maps.layers, contrastive=plan.maps.contrastive)
        undrawn = replace(plan, maps=maps, style=DrawingStyle(), output=OutputOptions())
        return self._explainer_of(undrawn).asked(plan.maps)

    def _loaded_with_texts(self, spec: ModelSpec) -> LoadedModel:
        if self.loaded.retold is not None:
            return self.loaded.with_texts(spec.described)
        from ebcli.run.explainer import Explainer

        return Explainer(replace(self._usual, model=spec, maps=MapOptions(layers=(self.default,))), 1).loaded

    def _new_explainer(self, plan: RunPlan) -> Explainer:
        """A network that is ready to explain photos at some layers."""
        from ebcli.run.explainer import Explainer

        return Explainer(plan, 1, self._with_texts(plan.model) if self.takes_texts else self.loaded)

    def _input(self, source: Source) -> NetworkInput:
        return self._read_once(source, source.version())

    def _read(self, source: Source, _version: Stamp | None) -> NetworkInput:
        found = self._workers.call(Reader(self.loaded.transforms, max_pixels=self._max_pixels).load, source)
        if found is None:
            raise ImageError("it is not an image")
        return found
