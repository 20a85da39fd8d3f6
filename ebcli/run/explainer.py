"""Batches of images in, maps out: the only part of a run that needs the network."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, takewhile
from threading import Event, Lock
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import ebcli.run.tasks  # noqa: F401 - registers them
from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Box, Explanation, Map, Subject
from ebcli.eb.forward import evaluating
from ebcli.eb.inputs import Inputs
from ebcli.errors import ConfigurationError, ImageError, NonFiniteError, first_line
from ebcli.heads import single_tensor
from ebcli.imports import guard_user_code
from ebcli.methods.call import MethodCall, Progress
from ebcli.methods.table import CONTRASTIVE, find_method
from ebcli.models import LoadedModel, load_model
from ebcli.models.keywords import INPUT, OF_INPUT
from ebcli.models.running import is_out_of_memory, resolve_device
from ebcli.run import controls
from ebcli.run.input_evidence import fields_of_inputs
from ebcli.run.maps import BatchMaps, batch_sizes, compute_maps, maps_of, priors
from ebcli.run.network_description import (
    Indices,
    NetworkDescription,
    chosen_classes,
    class_labels,
    describe,
    methods_in_words,
)
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import WINDOWS, MapOptions
from ebcli.run.reading import NetworkInput
from ebcli.run.tasks.task import REGISTRY, ImageRequest, Pieces, check_options, class_scores

Targets = Callable[[Tensor], Tensor]  # priors (B, K, num_classes, ...) of an output
Images = Sequence[NetworkInput]
MapRows = list[list[Map]]  # of each image
Results = list[Explanation | ImageError]


@dataclass(frozen=True)
class ImageFindings:
    """What the network finds in an image.

    Attributes:
        request: what is asked of the image.
        row: the subjects to explain.
        best: the most likely class, if the true one is known.
        maps: the maps that were computed so far.
    """

    request: ImageRequest
    row: list[Subject]
    best: int | None
    maps: list[Map] = field(default_factory=list)

    def explanation(self, seconds: float) -> Explanation:
        """The explanation of the image, which took so long."""
        return Explanation(maps=self.maps, seconds=seconds, label=self.request.label, predicted=self.best)


class Explainer:
    """A network, ready to explain images.

    The network always gets full batches, the last one padded: so an image's maps are bit-identical whatever other
    images share its batch.

    Args:
        plan: the run.
        total: the number of its images.
        loaded: the network, if it is loaded already; it stays on its device, and gets images as the plan says.

    Raises:
        ConfigurationError: the model, weights, layer, class or device does not exist or does not fit.
        UnsupportedOpError: the network has operations without an excitation rule.

    Attributes:
        loaded: the network.
        device: the name of the device.
        batch_size: images per batch, halved when memory runs out; videos are explained one by one.
        on_text: gets an answer as far as it is, again and again.
        on_passes: gets the numbers of forward passes that are done, and that there are, of methods that take many.
    """

    on_text: Callable[[str], None] | None = None
    on_passes: Progress | None = None

    def __init__(self, plan: RunPlan, total: int = sys.maxsize, loaded: LoadedModel | None = None) -> None:
        execution = plan.execution
        if loaded is None:
            self.device = resolve_device(execution.device)
            self._dtype = getattr(torch, execution.dtype)
            self.loaded = _load(plan, self.device, self._dtype)
        else:
            parameter = next(loaded.net.parameters(), torch.empty(0))
            self.device = str(parameter.device)
            self._dtype = parameter.dtype
            self.loaded = loaded.with_preprocessing(plan.model.preprocessing)
        task_name = self.loaded.task
        if task_name not in REGISTRY:
            raise ConfigurationError(f"{plan.model.name} is for {task_name}, but there is no such task")
        task = REGISTRY[task_name]
        self._task = task
        self._keep_relevance = plan.output.raw and self.loaded.transforms.frames is None
        self.batch_size, self._piece_batch_size = batch_sizes(
            self.loaded, execution.batch_size, self.device, total, task.in_batches
        )
        self._joint = task.joint
        self._lock = Lock()
        self._stopping = Event()
        check_options(plan, self.loaded)
        network = None
        if loaded is None:
            network = NetworkDescription.of_bundled(plan)
        if network is None or network.against:
            network = describe(plan, self.loaded, task.layer)
        else:  # the first picture need not wait for what is known
            network = replace(network, loaded=self.loaded)
        is_input = network.layers == (INPUT,) or network.layers[0].startswith(OF_INPUT)
        if self.loaded.inputs is not None and is_input:
            self._joint = False  # jointly, the map of each input sums to 1, however little reaches it
        is_labeled = plan.inputs.labels is not None
        self._request_template = ImageRequest(network, plan.maps, labeled=is_labeled, words=plan.words)
        if not network.method:
            self._probe()

    def with_options(self, maps: MapOptions) -> "Explainer":
        """The same network at the same layers, asked about other classes."""
        other = copy(self)
        classes, against = chosen_classes(maps, self.loaded)
        network = replace(self.network, classes=classes, against=against)
        other._request_template = replace(self._request_template, network=network, maps=maps)
        if against:  # how strong maps of noise are depends on both
            other._probe()
        return other

    @property
    def has_classes(self) -> bool:
        """Whether it can be asked about the same classes in all images, rather than about the objects of each."""
        return self._task.in_batches

    def for_film(self, sample: Images, label: int | None = None) -> tuple["Explainer", int | None]:
        """The same network, asked about the same classes in each frame of a video; and its prediction, given a label.

        Without targets, these are the classes that score highest on average over some of its frames; with a label, the
        true class, too. Of detectors and segmentation networks, each frame has its own objects.

        Args:
            sample: the frames.
            label: the true class of the video.
        """
        if not self.has_classes:
            return self, None
        guard = guard_user_code(self.loaded.name)
        with self._lock, evaluating(self.loaded.net), guard, self._other_inputs(sample[0]):
            # one by one, for which there is enough memory if there is for anything
            scores = self._scores_of([image.pixels for image in sample], 1).nanmean(0)
            subjects = self._task.subjects(scores, replace(self._request(sample[0]), label=label))
        other = copy(self)
        network = replace(self.network, classes=[(subject.index,) for subject in subjects])
        maps = replace(self._maps_asked, above=None, top_k=None, only=None)
        other._request_template = replace(self._request_template, network=network, maps=maps, labeled=False)
        return other, None if label is None else int(scores.argmax())

    @property
    def network(self) -> NetworkDescription:
        """The description of the network."""
        return self._request_template.network

    @property
    def _maps_asked(self) -> MapOptions:
        return self._request_template.maps

    @property
    def _width(self) -> int:
        """The number of subjects that are explained at a time."""
        return self._task.width(self._request_template)

    def subjects(self, image: NetworkInput) -> list[Subject]:
        """What the maps of an image are about, before they are computed."""
        pieces = self._task.pieces(self.loaded, image)
        guard = guard_user_code(self.loaded.name)
        with self._lock, evaluating(self.loaded.net), guard, torch.no_grad(), self._other_inputs(image):
            request = self._request(image)
            if pieces is None:
                (output,) = self._task.run(self._inputs(image.pixels[None]), [request])
            else:
                output = self._scores_of(pieces.pixels, self._piece_batch_size).mean(0)
            return self._task.subjects(output, request)

    def explain(self, images: Images, stopping: Event | None = None) -> Results:
        """The maps of each of any number of images or videos; or its error. Threads wait for each other.

        Args:
            images: the images or videos.
            stopping: if it is set meanwhile, a video or an image in tiles, which can take minutes, is given up.

        Raises:
            CancelledError: it was given up.
            ConfigurationError: there is not enough memory for a single image.
        """
        results: Results = []
        with self._lock, evaluating(self.loaded.net):
            self._stopping = stopping or Event()
            while len(results) < len(images):
                batch = self._next(images[len(results) :])
                batch_results = self._try_batch(batch)
                if batch_results is None:
                    self._halve_batches(batch[0])
                else:
                    results += batch_results
        return results

    def _halve_batches(self, image: NetworkInput) -> None:
        """After memory ran out at an image. Raises ConfigurationError if a batch has only one already."""
        unit = "image"
        size = self.batch_size
        pieces = self._task.pieces(self.loaded, image)
        if pieces is not None:
            unit = pieces.unit
            size = self._piece_batch_size
        if size == 1:
            problem = f"{self.device} has not enough memory for a single {unit}"
            raise ConfigurationError(f"{problem}: try another --device")
        self._piece_batch_size = max(1, self._piece_batch_size // 2)
        self.batch_size = max(1, self.batch_size // 2)
        warnings.warn(
            f"{self.device} ran out of memory: continuing with a batch size of {size // 2}", stacklevel=3
        )

    def _next(self, images: Images) -> Images:
        """The first images that the network gets together: those of one size, or one that is explained in pieces."""
        if self._task.pieces(self.loaded, images[0]) is not None:
            return images[:1]
        form = images[0].form
        return [*takewhile(lambda image: image.form == form, images[: self.batch_size])]

    def _request(self, image: NetworkInput) -> ImageRequest:
        request = replace(self._request_template, label=image.label, size=image.size)
        if request.words is not None and image.query is not None:
            words = request.words.about(image.query)
            request = replace(request, words=words, on_text=self._note_text)
        if request.maps.candidates == WINDOWS and image.windows is not None:
            request = replace(request, window_scores=self._window_scores(image.windows))
        return replace(request, place=self._task.place(request))

    def _window_scores(self, windows: AnyArray) -> Tensor:
        """The scores (9, num_classes) of windows of an image. Raises ImageError if they are not finite."""
        size = 1 if self.loaded.one_by_one else len(windows)  # without maps, they take little memory
        scores = self._scores_of([*windows], size).cpu()
        if not scores.isfinite().all():
            raise ImageError(f"{self.loaded.name} gives scores of its parts that are not finite")
        return scores

    def _try_batch(self, images: Images) -> Results | None:
        """The maps of at most one batch of images; None if memory runs out.

        A method of its own, so that the tensors of a failed attempt are freed before the next one.
        """
        try:
            with guard_user_code(self.loaded.name):
                return self._explain_or_split(images)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                if self.loaded.transforms.depth != 0:
                    raise
                sides = " x ".join(map(str, images[0].pixels.shape[:-1]))  # of any size, as it is
                return [ImageError(f"{self.loaded.name} fails on volumes of {sides} ({first_line(error)})")]
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return None

    def _explain_or_split(self, images: Images) -> Results:
        """The maps of at most one batch of images; if some are not finite, images are explained one by one."""
        pieces = self._task.pieces(self.loaded, images[0])
        try:
            with self._other_inputs(images[0]):
                if pieces is not None:
                    return [self._explain_in_pieces(images[0], pieces)]
                explanations = self._explain_batch(images)
                if self.loaded.inputs is None:
                    return [*explanations]
                digest = self.loaded.inputs.digest
                return [replace(explanation, other_inputs=digest) for explanation in explanations]
        except (ImageError, NonFiniteError) as error:
            if len(images) == 1:
                return [ImageError(str(error))]
        return [result for image in images for result in self._explain_or_split([image])]

    def _other_inputs(self, image: NetworkInput) -> AbstractContextManager[None]:
        """Let a network with several inputs, which gets one image at a time, have those of the image."""
        inputs = self.loaded.inputs
        if inputs is None:
            return nullcontext()
        return inputs.given(image.others, image.path)

    def _explain_batch(self, images: Images) -> list[Explanation]:
        """The maps of at most one batch of images."""
        start = perf_counter()
        requests = [*map(self._request, images)]
        if self._task.explain is not None:
            try:
                return [*map(self._task.explain, images, requests)]
            except ConfigurationError as error:  # of this photo and this question
                raise ImageError(str(error)) from error
        pixels = [image.pixels for image in images]
        pixels += pixels[-1:] * (self.batch_size - len(images))
        inputs = self._inputs(np.stack(pixels))
        findings: list[ImageFindings] = []
        width = self._width
        min_width = width if self._task.in_batches else 1

        def targets(first: int, logits: Tensor) -> Tensor:
            if not findings:  # outputs beyond the images only fill the batch
                findings.extend(map(self._find, class_scores(self.loaded, logits), requests))
            rows = [finding.row[first : first + width] or finding.row[:1] for finding in findings]
            return priors(rows, min_width, logits)

        # a batch without a wrong prediction needs no backward pass
        if self._task.has_own_pass or self._maps_asked.only is not None:
            with torch.no_grad():
                findings += map(self._find, self._task.run(inputs, requests), requests)
        first = 0
        while not findings or first < max(len(finding.row) for finding in findings):
            results, beside = self._compute(inputs, partial(targets, first), len(images))
            if not findings:  # no method asked for the classes
                targets(first, self._call(inputs, partial(targets, first)).output_of(inputs))
            rows = [finding.row[first : first + width] for finding in findings]
            maps = maps_of(requests, results, beside, rows, self._keep_relevance)
            if self.loaded.inputs is not None:
                maps = [self._with_inputs(image_maps, inputs, partial(targets, first)) for image_maps in maps]
            for finding, image_maps in zip(findings, maps, strict=True):
                finding.maps.extend(image_maps)
            first += width
        if self._maps_asked.sufficiency:
            controls.measure_sufficiency(inputs, [finding.maps for finding in findings], requests)
        for finding, image in zip(findings, inputs.split(1), strict=False):
            finding.maps.extend(chain(*self._against_label(image, finding)))
        seconds = (perf_counter() - start) / len(images)
        return [finding.explanation(seconds) for finding in findings]

    def _with_inputs(self, maps: list[Map], image: Tensor, targets: Targets) -> list[Map]:
        """The maps of an image with the shares of all inputs of the network."""
        inputs = self.loaded.inputs
        assert inputs is not None  # of networks with several inputs
        subjects = [*dict.fromkeys(map_.subject for map_ in maps)]
        options = {"contrastive": self._maps_asked.contrastive, "against": self.network.against}
        fields = fields_of_inputs(self.loaded, image, targets, options, len(subjects))
        results = []
        for map_ in maps:
            changes = fields[subjects.index(map_.subject)]
            if inputs.picture_at(map_.layer) is not None:
                height, width = map_.values.shape
                changes["placement"] = Box(0, 0, width, height)
            if map_.layer != INPUT:  # other pictures have no map of that layer
                changes = {**changes, "pictures": ()}
            elif changes["pictures"]:  # noise was in the first picture only
                changes = {**changes, "noise": None}
            results.append(replace(map_, **changes))
        return results

    def _find(self, output: Any, request: ImageRequest) -> ImageFindings:
        """What is explained in an image, given what the task needs of it."""
        best = None if request.label is None else int(output.argmax())
        return ImageFindings(request, self._task.subjects(output, request), best)

    def _explain_in_pieces(self, image: NetworkInput, pieces: Pieces) -> Explanation:
        """The maps of one video or photo: scores averaged over its clips or tiles choose the subjects.

        Each piece is then explained for these. Torchvision's evaluation of videos averages scores, too.
        """
        start = perf_counter()
        piece_scores = self._scores_of(pieces.pixels, self._piece_batch_size)
        finding = self._find(piece_scores.mean(0), self._request(image))
        join_maps = partial(pieces.join, piece_scores.cpu().numpy())

        def add_maps(explain: Callable[[Tensor], MapRows]) -> None:
            """Join the maps that a function computes of each piece."""
            of_pieces = chain(*map(explain, self._batches(pieces.pixels, self._piece_batch_size)))
            finding.maps.extend(map(join_maps, zip(*of_pieces, strict=True)))

        width = self._width
        for first in range(0, len(finding.row), width):
            chosen = finding.row[first : first + width]
            add_maps(partial(self._maps, subjects=chosen, request=finding.request))
        add_maps(partial(self._against_label, finding=finding))
        explanation = finding.explanation(perf_counter() - start)
        if pieces.unit == "tile":
            return replace(explanation, tiles=len(pieces.pixels))
        return explanation

    def _against_label(self, inputs: Tensor, finding: ImageFindings) -> MapRows:
        """Of a wrong prediction, what tells it from the true class in each of the inputs, layer by layer; else none."""
        label = finding.request.label
        if label is None or label == finding.best or self.network.against or not self._maps_asked.contrastive:
            return []
        # one of its own
        (subject,) = (replace(subject) for subject in finding.row if subject.index == finding.best)
        rows = self._maps(inputs, [subject], finding.request, [label])
        name = class_labels(self.loaded, [label])[0]
        changes: dict[str, Any] = {"against": name, "is_two_sided": True, "noise": None, "method_maps": {}}
        return [[replace(map_, **changes) for map_ in row] for row in rows]

    def _maps(
        self, inputs: Tensor, subjects: Sequence[Subject], request: ImageRequest, against: Indices = None
    ) -> MapRows:
        """The maps of the same subjects in each of the inputs."""
        count = len(inputs)
        results, beside = self._compute(inputs, partial(priors, [subjects], 1), count, against)
        return maps_of([request] * count, results, beside, [subjects] * count, self._keep_relevance)

    def _batches(self, pieces: Sequence[AnyArray], size: int) -> Iterator[Tensor]:
        """The pieces of an image in batches, as the network gets them. Raises CancelledError after a stop."""
        for first in range(0, len(pieces), size):
            if self._stopping.is_set():
                raise CancelledError
            yield self._inputs(np.stack(pieces[first : first + size]))

    def _scores_of(self, pieces: Sequence[AnyArray], size: int) -> Tensor:
        """The scores (pieces, ..., num_classes) of the pieces of an image, in batches of a size."""
        with torch.no_grad():
            outputs = [
                single_tensor(self.loaded.net(batch), "the output") for batch in self._batches(pieces, size)
            ]
        return torch.cat([class_scores(self.loaded, logits).float() for logits in outputs])

    def _inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        return self.loaded.transforms.normalize(pixels).to(self.device, self._dtype)

    def _compute(
        self, inputs: Tensor, targets: Targets, count: int, against: Indices = None
    ) -> tuple[list[BatchMaps], list[BatchMaps]]:
        """The maps of subjects in a batch, and those beside; given other classes to contrast with, contrastive ones."""
        maps = self._maps_asked
        call = self._call(inputs, targets, against)
        if against is not None:
            return compute_maps(call, [find_method(CONTRASTIVE)], count), []
        beside = maps.entries_beside
        return compute_maps(call, maps.method_entries, count), compute_maps(call, beside, count)

    def _call(self, inputs: Tensor, targets: Targets, against: Indices = None) -> MethodCall:
        maps = self._maps_asked
        all_inputs: Inputs = inputs
        if self.loaded.inputs is not None:
            all_inputs = self.loaded.inputs.call(inputs)
        return MethodCall(
            net=self.loaded.net,
            inputs=all_inputs,
            priors=targets,
            layers=[None if layer == INPUT else layer for layer in self.network.layers],
            against=against or self.network.against,
            joint=self._joint,
            allow_unsupported=maps.allow_unsupported,
            track_lost_mass=maps.track_lost_mass,
            batch_size=self._piece_batch_size,
            progress=self._note_passes,
        )

    def _note_passes(self, done: int, total: int) -> None:
        """Tell how many passes of many are done. Raises CancelledError after a stop."""
        if self._stopping.is_set():
            raise CancelledError
        if self.on_passes is not None:
            self.on_passes(done, total)

    def _note_text(self, text: str) -> None:
        """Tell how an answer goes on. Raises CancelledError after a stop."""
        if self._stopping.is_set():
            raise CancelledError
        if self.on_text is not None:
            self.on_text(text)

    @property
    def passes(self) -> dict[str, int]:
        """How many forward passes an image takes, of the methods that take many, by name."""
        maps = self._maps_asked
        sides = self.loaded.transforms.shape
        numbers = {
            method.name: method.passes_of(sides) for method in (*maps.method_entries, *maps.entries_beside)
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def _probe(self) -> None:
        """Explain noise to complete the network's description; for errors, see ``controls.probe_noise``."""
        network = self.network
        maps = self._maps_asked
        if self._task.has_own_pass:  # noise has no detections
            method = methods_in_words(maps, network.labels_against, joint=bool(self._joint))
            description = replace(network, method=method)
        else:
            description, first = controls.probe_noise(network, maps, self._call)
            joint = {item.maps.joint for item in first} - {None}
            if len(joint) == 1:  # saves a forward pass
                self._joint = joint.pop()
            noise = {}
            has_noise = self._task.in_batches and not network.layers[0].startswith(OF_INPUT)
            if maps.contrastive and has_noise and self.loaded.trained:
                noise = controls.references(network, first, self._call)
            description = replace(description, noise=noise)
        self._request_template = replace(self._request_template, network=description)


def _load(plan: RunPlan, device: str, dtype: torch.dtype) -> LoadedModel:
    """The network of a plan."""
    if plan.words is not None:
        from ebcli.models.sources.vision_language import VisionLanguage

        return VisionLanguage(plan.model.name, device, dtype).as_loaded()
    loaded = load_model(device=device, **vars(plan.model))
    loaded.net.to(dtype)
    if loaded.transforms.axes == "HW":  # most convolutions are faster so, on CPUs and on GPUs
        loaded.net.to(memory_format=torch.channels_last)
    return loaded
