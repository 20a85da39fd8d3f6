"""A network of the page: loaded while the page is open, then asked about photos, by one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebcli.datatypes.explanation import Box, Explanation, JsonObject, Size, Subject
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.clips import Clips
from ebcli.files.naming import slug
from ebcli.files.sources import Source
from ebcli.methods.table import CONTRASTIVE, PICTURE, Method, find_method, method_names
from ebcli.models.classes import matching_classes
from ebcli.models.keywords import ALL, CLASSIFICATION, INPUT, SEGMENTATION
from ebcli.models.names import caveat
from ebcli.models.sources import answers_questions, takes_texts
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import RunPlan, as_command
from ebcli.run.plan_parts import WINDOWS, MapOptions, OutputOptions, WordOptions
from ebcli.run.reading import NetworkInput, Reader
from ebcli.serve.photos import PhotoCache
from ebcli.workers import Workers

if TYPE_CHECKING:
    from ebcli.models import LoadedModel
    from ebcli.run.explainer import Explainer
    from ebcli.serve.volumes import PlanesView, Voxel

ALL_LAYERS = "every"  # in place of a layer: all that the page offers
_NUM_EXPLAINERS = 32  # in memory
_CACHE_SIZE = 16  # inputs, explanations, and views of volumes, in memory
_ANY_TEXT = ("a photo",)
_NUM_LIKELIEST = 5  # classes of a frame, or a volume
_BACKGROUND_CLASS = "1"  # of a segmentation network with one channel
_UNDRAWN: JsonObject = {"style": DrawingStyle(), "output": OutputOptions()}


class CameraFrame(NamedTuple):
    """What a network sees in a frame of a camera.

    Attributes:
        explanation: the maps; none if nothing is found.
        subjects: the likeliest classes, or what else is found, or texts.
        size: the width and height of the frame.
    """

    explanation: Explanation
    subjects: list[Subject]
    size: Size


class Network:
    """A network.

    Args:
        plan: a run of it, without classes; the first of its layers is shown first.
        workers: the process that decodes and draws photos.

    Attributes:
        problem: why it cannot be loaded, in one sentence.
        doubt: a sentence on how far its maps can be trusted.
        layers: the layers that the page offers, from the pixels to the classifier.
        default: the layer that is shown first.
        methods: those that the page offers, the one that is shown first at the front.
        takes_texts: its classes are texts.
        answers: it answers questions about photos, and explains the words.
    """

    def __init__(self, plan: RunPlan, workers: Workers) -> None:
        self._base_plan = plan
        self.spec = plan.model
        self._workers = workers
        self.problem: str | None = None
        self.doubt: str | None = None
        self.layers: tuple[str, ...] = ()
        self.default = ""
        self.methods: list[Method] = []
        self.answers = answers_questions(plan.model.name)
        self.takes_texts = not (self.answers or plan.model.class_names) and takes_texts(plan.model.name)
        self._loaded_model: LoadedModel | None = None
        # each set of texts is a network of its own
        self._with_texts = lru_cache(1)(self._loaded_with_texts)
        num_explainers = 2 if self.takes_texts else _NUM_EXPLAINERS
        self._explainer_of = lru_cache(num_explainers)(self._new_explainer)
        self._explainer = lru_cache(num_explainers)(self._explainer_for)
        self._inputs = PhotoCache[NetworkInput](_CACHE_SIZE)
        self._explanations = PhotoCache[Explanation](_CACHE_SIZE)
        self._views: PhotoCache[PlanesView] = PhotoCache(_CACHE_SIZE)

    @property
    def loaded(self) -> LoadedModel:
        """The network.

        Raises:
            ConfigurationError: it is not loaded.
        """
        if self._loaded_model is not None:
            return self._loaded_model
        raise ConfigurationError(self.problem or f"{self.spec.name} is still loading: try again in a moment")

    @property
    def is_ready(self) -> bool:
        """Whether it is loaded."""
        return self._loaded_model is not None

    @property
    def axes(self) -> str:
        """``"DHW"`` of a network for volumes, else ``"HW"``, also until it is loaded."""
        return "HW" if self._loaded_model is None else self._loaded_model.transforms.axes

    @property
    def title(self) -> str:
        """Its name, with the head that is explained if there are several."""
        if self._loaded_model is None or self._loaded_model.head is None:
            return self.spec.name
        return f"{self.spec.name}, head {self._loaded_model.head}"

    def load(self) -> None:
        """Load the network.

        Raises:
            ConfigurationError: it cannot be loaded, or is for videos.
        """
        from ebcli.models import layers
        from ebcli.models.sources.answers import only_answers
        from ebcli.run.explainer import Explainer
        from ebcli.run.network_description import check_picture, chosen_layers

        if self.answers:
            first = Explainer(self._base_plan.replace(words=WordOptions()), 1)
            self.layers = first.network.layers
            (self.default,) = self.layers
            self._loaded_model = first.loaded
            return
        layer_names = self._base_plan.maps.layers
        target = _ANY_TEXT if self.takes_texts else ()
        first = Explainer(self._base_plan.replace(layer=layer_names[:1], target=target), 1)
        check_picture(first.network)
        model = first.loaded
        if model.transforms.frames is not None:
            problem = f"{model.name} is for {model.task}: the page is for images and volumes"
            raise ConfigurationError(f"{problem}, the command is not")
        order = [INPUT, *(layer.name for layer in layers(model))]
        choice = chosen_layers((*layer_names, *first.network.layers, ALL), model)
        choice_in_order = [name for name in order if name in choice]
        self.layers = tuple(dict.fromkeys([*choice_in_order, *choice]))
        self.default = first.network.layers[0]
        self.doubt = caveat(model.name)
        if not model.trained:
            self.doubt = f"{model.name} is untrained: its maps are meaningless"
        self.methods = [*map(find_method, dict.fromkeys([*self._base_plan.maps.methods, *method_names()]))]
        # those that take many passes are offered where there are no others
        has_others = not only_answers(model.net)
        self.methods = [method for method in self.methods if (method.passes is None) == has_others]
        self._loaded_model = model

    def plan(self, query: Mapping[str, str]) -> RunPlan:
        """The plan that an address of the page stands for.

        Args:
            query: ``question``, ``method``, ``target``, ``against``, ``box`` or ``pixel``, ``layer``, which can be
                `ALL_LAYERS`, and how a map is drawn.

        Raises:
            ConfigurationError: it stands for none.
        """
        options = {name: value for name, value in query.items() if value}
        if self.answers:  # with all its words
            words = WordOptions(question=options.get("question", ""), against=options.get("against"))
            return self._base_plan.replace(words=words)
        values: JsonObject = {name: (options[name],) for name in ("target", "against") if name in options}
        if self.takes_texts and "target" not in values:
            raise ConfigurationError(f"{self.spec.name} compares images with texts: type one")
        try:
            if "box" in options:
                left, top, width, height = map(float, options["box"].split(","))
                values["where"] = Box.from_xywh(left, top, width, height)
            if "pixel" in options:
                x, y = map(int, options["pixel"].split(","))
                values["where"] = x, y
            values["alpha"] = float(options["alpha"]) if "alpha" in options else None
        except ValueError as error:
            raise ConfigurationError(
                f"this is no address of the page ({error}): open the page again"
            ) from error
        own_methods = self._base_plan.maps.methods
        name = options.get("method", own_methods[0])
        if name not in (*own_methods, *method_names()):  # an address must not name a file of code
            raise ConfigurationError(f"the page has no method {name!r}: open the page again")
        method = find_method(name)
        layers: tuple[str, ...] = (options.get("layer", self.default),)
        if method.place == PICTURE:
            layers = (INPUT,)
        elif layers == (ALL_LAYERS,):
            layers = self.layers
        return self._base_plan.replace(
            **values,
            layer=layers,
            method=(method.name,),
            style=options.get("style"),
            signed={"0": False, "1": True}.get(options.get("signed", "")),
            cells=options.get("cells") == "1",
        )

    def atlas_plan(self) -> RunPlan:
        """The plan for the classes of a photo that its atlas compares: the likeliest ones of its windows.

        Raises:
            ConfigurationError: it is no classifier with classes of its own.
        """
        if not self._has_windows:
            raise ConfigurationError(f"{self.loaded.name} has no classes to compare at each place")
        return self._base_plan.replace(layer=(self.default,), method=(CONTRASTIVE,), candidates=WINDOWS)

    def subjects(self, plan: RunPlan, source: Source) -> list[Subject]:
        """The classes that the atlas of a photo compares, likeliest first; or what else is found in it, or texts.

        For the pixel of a plan, these are its values. A segmentation network with one channel also has its background.
        """
        if self.takes_texts:
            plan = plan.replace(layer=(self.default,))
        elif self._has_windows:
            plan = self.atlas_plan()
        elif self.loaded.task == CLASSIFICATION:
            plan = self._base_plan.replace(layer=(self.default,), top_k=_NUM_LIKELIEST)
        else:
            plan = self._base_plan.replace(layer=(self.default,), where=plan.maps.where)
        subjects = self._explainer(plan).subjects(self._input(source))
        if self._has_background:
            plan = plan.replace(target=(_BACKGROUND_CLASS,))
            subjects += self._explainer(plan).subjects(self._input(source))
        if self.loaded.task == CLASSIFICATION:
            subjects.sort(key=lambda subject: -subject.score)
        return subjects

    @property
    def _has_windows(self) -> bool:
        """Whether classes are compared at each place of a photo, for which it is asked about windows."""
        return self.loaded.task == CLASSIFICATION and self.axes == "HW" and not self.takes_texts

    @property
    def _has_background(self) -> bool:
        """Whether it tells one object from the background, which a run explains on request."""
        from ebcli.models.outputs import BACKGROUND

        names = self.loaded.categories or ()
        return self.loaded.task == SEGMENTATION and tuple(names[1:]) == (BACKGROUND,)

    def explain(self, plan: RunPlan, source: Source) -> Explanation:
        """The maps of a photo; the last ones are kept in memory.

        Raises:
            ConfigurationError: a class or a layer does not exist.
            ImageError: the photo cannot be read, or nothing is found.
        """
        plan = replace(plan, **_UNDRAWN)
        return self._explanations.get(source, plan, partial(self._explain, plan, source))

    def _explain(self, plan: RunPlan, source: Source) -> Explanation:
        (explanation,) = self._explainer(plan).explain([self._input(source)])
        if isinstance(explanation, ImageError):
            raise explanation
        if not explanation.maps:
            raise ImageError(f"{self.loaded.name} finds nothing to explain: name a class")
        return explanation

    def explain_frame(self, plan: RunPlan, source: Source) -> CameraFrame:
        """The maps of a frame of a camera, of which nothing is kept; for what it raises, see ``explain``."""
        frame = self._read(source, replace(self._reader, has_windows=False))
        likeliest = plan
        if not self.takes_texts:
            likeliest = self._base_plan.replace(layer=plan.maps.layers, top_k=_NUM_LIKELIEST)
        subjects = self._explainer(likeliest).subjects(frame)
        (explanation,) = self._explainer(plan).explain([frame])
        if isinstance(explanation, ImageError):
            raise explanation
        return CameraFrame(explanation, subjects, frame.size)

    def size(self, source: Source) -> Size:
        """The width and height of a photo."""
        return self._input(source).size

    def slices(self, source: Source) -> Clips | None:
        """The slices of a volume; None of a photo."""
        return self._input(source).clips

    def planes(self, plan: RunPlan, source: Source, voxel: Voxel | None, is_stacked: bool) -> PlanesView:
        """The planes of a volume with the maps of a plan; for what it raises, see ``explain`` and ``view_planes``."""
        from ebcli.serve.volumes import view_planes

        arguments = source, self._input(source), self._reader, self.explain(plan, source), voxel, is_stacked
        view = partial(self._workers.call, view_planes, *arguments)
        return self._views.get(source, (replace(plan, **_UNDRAWN), voxel, is_stacked), view)

    def picture(self, plan: RunPlan, source: Source) -> bytes:
        """The picture of the only map of a photo, as a run writes it; for what it raises, see ``explain``."""
        from ebcli.run.prepare import render_options
        from ebcli.run.rendering import render

        explanation = self.explain(plan, source)
        plan = plan.replace(format="png")
        options = render_options(plan, self._explainer(plan).network, plan.style)
        result = self._workers.call(
            render, source, self._input(source), self._reader, options, explanation, None
        )
        return next(iter(result.files.values()))

    def command(self, plan: RunPlan, name: str) -> str:
        """The command line that makes the picture of a plan for the photo at a path."""
        classes = {key: tuple(map(self._word, plan.values[key])) for key in ("target", "against")}
        # a single file takes a single map, and a photo can have several segments or detections
        output: JsonObject = {"format": "png"}
        if len(plan.maps.layers) == 1 and self.loaded.task == CLASSIFICATION:
            output = {"output": Path(self.file_name(plan, name))}
        return as_command(plan.replace(images=(Path(name),), **classes, **output))

    def file_name(self, plan: RunPlan, name: str) -> str:
        """The name of the picture of a plan for a photo."""
        parts = [Path(name).stem, *map(self._word, plan.values["target"])]
        return "-".join(filter(None, map(slug, parts))) + ".png"

    def _word(self, target: str) -> str:
        if self.takes_texts:
            return target
        names = self.loaded.categories
        index, *other_matches = matching_classes(names, target, self.loaded.num_classes)
        if other_matches:  # the likeliest is meant
            return target
        name = self.loaded.category(index)
        if names and name and names.count(name) == 1 and not name.lstrip("+-").isdigit():
            return name
        return str(index)

    def _explainer_for(self, plan: RunPlan) -> Explainer:
        """The network, asked for the classes of a plan."""
        from ebcli.run.tasks.task import check_options

        if self.answers and plan.words is None:
            raise ConfigurationError(f"{self.spec.name} answers questions about photos: ask one")
        check_options(plan, self.loaded)
        maps = MapOptions(layers=plan.maps.layers, methods=plan.maps.methods)
        return self._explainer_of(replace(plan, maps=maps, **_UNDRAWN)).with_options(plan.maps)

    def _loaded_with_texts(self, spec: ModelSpec) -> LoadedModel:
        if self.loaded.compares_texts:
            return self.loaded.with_texts(spec.descriptions)
        from ebcli.run.explainer import Explainer

        maps = MapOptions(layers=(self.default,))
        return Explainer(replace(self._base_plan, model=spec, maps=maps), 1).loaded

    def _new_explainer(self, plan: RunPlan) -> Explainer:
        """A network that is ready to explain photos at some layers."""
        from ebcli.run.explainer import Explainer
        from ebcli.run.network_description import check_picture

        model = self._with_texts(plan.model) if self.takes_texts else self.loaded
        explainer = Explainer(plan, 1, model)
        check_picture(explainer.network)
        return explainer

    @property
    def _reader(self) -> Reader:
        max_pixels = self._base_plan.inputs.max_pixels
        return Reader(self.loaded.transforms, max_pixels=max_pixels, has_windows=self._has_windows)

    def _input(self, source: Source) -> NetworkInput:
        """A photo as the network gets it. Raises ImageError if it cannot be read, or needs a path that it lacks."""
        return self._inputs.get(source, None, partial(self._read, source, self._reader))

    def _read(self, source: Source, reader: Reader) -> NetworkInput:
        if source.content is not None and self.loaded.inputs is not None:
            problem = f"an upload has no path, by which {self.loaded.name} reads its other inputs"
            raise ImageError(f"{problem}: start eb-saliency serve with the photo's file")
        network_input = self._workers.call(reader.load, source)
        if network_input is None:
            raise ImageError(f"it is no {reader.unit}")
        return network_input
