"""A network of the page: loaded while the page is open, then asked about photos, by one thread at a time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ebcli.drawing.style import UNSIGNED_STYLES, DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.naming import slug
from ebcli.files.sources import Source
from ebcli.models.caveats import caveat
from ebcli.models.classes import matching_classes
from ebcli.models.keywords import ALL, CLASSIFICATION, INPUT, SEGMENTATION
from ebcli.models.sources import takes_texts
from ebcli.models.spec import ModelSpec, as_classes
from ebcli.nouns.explanation import Explanation, Subject
from ebcli.run.plan import ExecutionOptions, InputOptions, MapOptions, OutputOptions, RunPlan
from ebcli.run.reading import NetworkInput, Reader
from ebcli.serve.question import EVERY, Question

if TYPE_CHECKING:
    from ebcli.models import LoadedModel
    from ebcli.run.explainer import Explainer

_EXPLAINERS, _INPUTS = 32, 16  # kept in memory
_LIKELY = 8  # classes
_ANY_TEXT = ("a photo",)


class Network:
    """A network.

    Args:
        spec: which one.
        execution: its device and type.
        layers: those that the user named; the first one is shown first.
        arguments: the options of the command line that name the network.

    Attributes:
        problem: why it cannot be loaded, in one sentence.
        doubt: a sentence on how far its maps can be trusted.
        layers: the layers that the page offers, from the pixels to the classifier.
        default: the layer that is shown first.
        takes_texts: its classes are texts.
    """

    def __init__(
        self, spec: ModelSpec, execution: ExecutionOptions, layers: Sequence[str], arguments: Sequence[str]
    ) -> None:
        self.spec, self._execution, self._named, self._arguments = spec, execution, tuple(layers), tuple(arguments)
        self.problem: str | None = None
        self.doubt: str | None = None
        self.layers: tuple[str, ...] = ()
        self.default = ""
        self.takes_texts = spec.class_names is None and takes_texts(spec.name)
        self._loaded: LoadedModel | None = None
        # each set of texts is a network of its own
        self._with_texts = lru_cache(1)(self._loaded_with_texts)
        self._explainer = lru_cache(2 if self.takes_texts else _EXPLAINERS)(self._new_explainer)
        self._input = lru_cache(_INPUTS)(self._read)

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

        texts = _ANY_TEXT if self.takes_texts else ()
        first = Explainer(self._plan(MapOptions(self._named[:1]), texts), 1)
        loaded = first.loaded
        if loaded.transforms.axes != "HW" or loaded.transforms.frames is not None:
            raise ConfigurationError(f"{loaded.name} is for {loaded.task}: the page is for images, the command is not")
        order = {layer.name: at for at, layer in enumerate(layers(loaded))} | {INPUT: -1}
        offered = chosen_layers((*self._named, *first.network.layers, ALL), loaded)
        self.layers = tuple(sorted(offered, key=lambda layer: order.get(layer, len(order))))
        self.default = first.network.layers[0]
        self.doubt = caveat(loaded.name) if loaded.trained else f"{loaded.name} is untrained: its maps are meaningless"
        self._loaded = loaded

    def subjects(self, question: Question, source: Source) -> list[Subject]:
        """The most likely classes of a photo, or what is found in it; for texts, how well they fit."""
        some = MapOptions(top_k=min(_LIKELY, self.loaded.num_classes) if self.loaded.task == CLASSIFICATION else None)
        asked = self._maps(question, ()) if self.takes_texts else some
        return self._explainer(self._texts(question), (self.default,), True).asked(asked).subjects(self._input(source))

    def explain(self, question: Question, source: Source) -> Explanation:
        """The maps of a photo.

        Raises:
            ConfigurationError: a class or a layer does not exist.
            ImageError: the photo cannot be read, or nothing is found.
        """
        layers = self.layers if question.layer == EVERY else (question.layer or self.default,)
        explainer = self._explainer(self._texts(question), layers, question.contrastive)
        (found,) = explainer.asked(self._maps(question, layers)).explain([self._input(source)])
        if isinstance(found, ImageError):
            raise found
        if not found.maps:
            raise ImageError(f"{self.loaded.name} finds nothing to explain: name a class")
        return found

    def size(self, source: Source) -> tuple[int, int]:
        """The width and height of a photo."""
        return self._input(source).size

    def picture(self, question: Question, source: Source, explanation: Explanation) -> bytes:
        """The picture of the only map of an explanation, as a run writes it."""
        from ebcli.run.prepare import common_record, render_options
        from ebcli.run.rendering import render

        layers = (question.layer or self.default,)
        maps, texts = self._maps(question, layers), self._texts(question)
        network = self._explainer(texts, layers, question.contrastive).asked(maps).network
        plan = self._plan(maps, texts, question.style)
        options = render_options(plan, network, plan.style, common_record(plan, network, plan.style))
        reader = Reader(network.loaded.transforms)
        return render(source, self._input(source), reader, options, explanation, None).files[0]

    def label(self, question: Question) -> str:
        """The class of a question, by its name if it has one of its own, else by its index; or the text."""
        return ", ".join(map(self._word, question.targets))

    def command(self, question: Question, name: str) -> str:
        """The command line that makes the picture of a question.

        Args:
            question: the question.
            name: the photo's path.
        """
        style, usual = question.style, DrawingStyle(question.style.name)
        # not an option, nor the name of a command
        words = ["eb-saliency", f"./{name}" if name.startswith("-") or "." not in name else name, *self._arguments]
        for option, values in (("--target", question.targets), ("--against", question.against)):
            for value in values:
                words += [option, self._word(value)]
        if question.box is not None:
            words += ["--box", ",".join(f"{number:.10g}" for number in question.box)]
        words += ["--layer", question.layer or self.default]
        words += [] if question.contrastive else ["--marginal"]
        words += [] if style.name == usual.name == "overlay" else ["--style", style.name]
        words += [] if style.alpha == usual.alpha else ["--alpha", f"{style.alpha:g}"]
        if style.signed != (bool(question.against) and style.name not in UNSIGNED_STYLES):
            words.append("--signed" if style.signed else "--unsigned")
        words += ["--cells"] if style.cells else []
        # a single file takes a single map, and a photo can have several segments
        is_one = self.loaded.task != SEGMENTATION
        words += ["-o", self.file_name(question, name)] if is_one else ["--format", "png"]
        return shlex.join(words)

    def file_name(self, question: Question, name: str) -> str:
        """The name of the picture of a question about a photo."""
        parts = [Path(name).stem, *map(self._word, question.targets)]
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

    def _texts(self, question: Question) -> tuple[str, ...]:
        if self.takes_texts and not question.targets:
            raise ConfigurationError(f"{self.spec.name} compares images with texts: type one")
        return as_classes(question.targets, question.against)[0] if self.takes_texts else ()

    def _maps(self, question: Question, layers: Sequence[str]) -> MapOptions:
        targets, against = question.targets, question.against
        if self.takes_texts:
            _, targets, against = as_classes(targets, against)
        return MapOptions(tuple(layers), question.contrastive, against, (), targets, box=question.box)

    def _plan(self, maps: MapOptions, texts: tuple[str, ...], style: DrawingStyle | None = None) -> RunPlan:
        spec = replace(self.spec, class_names=texts) if self.takes_texts else self.spec
        output = OutputOptions(format="png")
        return RunPlan(InputOptions((Path("photo"),)), spec, maps, style or DrawingStyle(), output, self._execution)

    def _loaded_with_texts(self, texts: tuple[str, ...]) -> LoadedModel:
        from ebcli.run.explainer import Explainer

        return Explainer(self._plan(MapOptions((self.default,)), texts), 1).loaded

    def _new_explainer(self, texts: tuple[str, ...], layers: tuple[str, ...], contrastive: bool) -> Explainer:
        """A network that is ready to explain photos at some layers."""
        from ebcli.run.explainer import Explainer

        plan = self._plan(MapOptions(layers, contrastive), texts)
        return Explainer(plan, 1, self._with_texts(texts) if texts else self.loaded)

    def _read(self, source: Source) -> NetworkInput:
        found = Reader(self.loaded.transforms).load(source)
        if found is None:
            raise ImageError("it is not an image")
        return found
