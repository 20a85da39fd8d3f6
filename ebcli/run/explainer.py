"""Batches of images in, maps out: the only part of a run that needs the network."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from threading import Event, Lock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import ebcli.run.tasks  # noqa: F401 - registers them
from ebcli.datatypes.explanation import Explanation, Map, Subject
from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.eb.forward import evaluating, single_tensor
from ebcli.errors import ConfigurationError, ImageError, NonFiniteError, first_line
from ebcli.imports import guard_user_code
from ebcli.models import LoadedModel, load_model
from ebcli.models.keywords import INPUT
from ebcli.models.running import is_out_of_memory, resolve_device
from ebcli.run import controls
from ebcli.run.maps import batch_sizes, maps_of, priors
from ebcli.run.network_description import NetworkDescription, chosen_classes, class_labels, describe, method_in_words
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions
from ebcli.run.reading import NetworkInput
from ebcli.run.tasks.task import REGISTRY, ImageRequest, Pieces, check_options, class_scores

Targets = Tensor | Callable[[Tensor], Tensor]
Batch = Sequence[NDArray[np.uint8]]  # of pieces
Images = Sequence[NetworkInput]
MapRows = list[list[Map]]  # of each image
Results = list[Explanation | ImageError]


class ImageFindings(NamedTuple):
    """What the network finds in an image.

    Attributes:
        request: what is asked of the image.
        row: the subjects to explain.
        best: the most likely class, if the true one is known.
    """

    request: ImageRequest
    row: list[Subject]
    best: int | None

    def explanation(self, maps: Sequence[Map], seconds: float) -> Explanation:
        """The maps as the explanation of the image, which took so long."""
        return Explanation(maps=maps, seconds=seconds, label=self.request.label, predicted=self.best)


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
        network: its description.
        device: the name of the device.
        batch_size: images per batch, halved when memory runs out; videos are explained one by one.
    """

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
        if self.loaded.task not in REGISTRY:
            raise ConfigurationError(f"{plan.model.name} is for {self.loaded.task}, but there is no such task")
        self._task = REGISTRY[self.loaded.task]
        self._keep_relevance = plan.output.raw and self.loaded.transforms.frames is None
        self.batch_size, self._piece_batch_size = batch_sizes(
            self.loaded, execution.batch_size, self.device, total, self._task.in_batches
        )
        self._joint = self._task.joint
        self._lock = Lock()
        self._stopping = Event()
        check_options(plan, self.loaded)
        self.network = describe(plan, self.loaded, self._task.layer, may_be_bundled=loaded is None)
        if not self.network.method:
            self.network = self._probe(plan.maps)
        is_labeled = plan.inputs.labels is not None
        self._request_template = ImageRequest(self.network, plan.maps, labeled=is_labeled, words=plan.words)

    def with_options(self, maps: MapOptions) -> "Explainer":
        """The same network at the same layers, asked about other classes."""
        other = copy(self)
        classes, against = chosen_classes(maps, self.loaded)
        other.network = replace(self.network, classes=classes, against=against)
        if against:  # how strong maps of noise are depends on both
            other.network = other._probe(maps)
        other._request_template = replace(self._request_template, network=other.network, maps=maps)
        return other

    @property
    def _maps_asked(self) -> MapOptions:
        return self._request_template.maps

    @property
    def _width(self) -> int:
        """The number of subjects that are explained at a time."""
        return self._task.width(self._request_template)

    def subjects(self, image: NetworkInput) -> list[Subject]:
        """What the maps of an image are about, before they are computed."""
        request = self._request(image)
        pieces = self._task.pieces(self.loaded, image)
        with self._lock, evaluating(self.loaded.net), guard_user_code(self.loaded.name), torch.no_grad():
            if pieces is None:
                (output,) = self._task.run(self._inputs(image.pixels[None]), [request])
            else:
                output = self._scores_of(self._batches(pieces)).mean(0)
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
        warnings.warn(f"{self.device} ran out of memory: continuing with a batch size of {size // 2}", stacklevel=3)

    def _next(self, images: Images) -> Images:
        """The first images that the network gets together: those of one size, or one that is explained in pieces."""
        if self._task.pieces(self.loaded, images[0]) is not None:
            return images[:1]
        form = images[0].form
        return [*takewhile(lambda image: image.form == form, images[: self.batch_size])]

    def _request(self, image: NetworkInput) -> ImageRequest:
        request = replace(self._request_template, label=image.label, size=image.size)
        return replace(request, place=self._task.place(request))

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
            if pieces is not None:
                return [self._explain_in_pieces(images[0], pieces)]
            return [*self._explain_batch(images)]
        except (ImageError, NonFiniteError) as error:
            if len(images) == 1:
                return [ImageError(str(error))]
        return [result for image in images for result in self._explain_or_split([image])]

    def _explain_batch(self, images: Images) -> list[Explanation]:
        """The maps of at most one batch of images."""
        start = perf_counter()
        requests = [*map(self._request, images)]
        if self._task.explain is not None:
            return [*map(self._task.explain, images, requests)]
        pixels = [image.pixels for image in images]
        pixels += pixels[-1:] * (self.batch_size - len(images))
        inputs = self._inputs(np.stack(pixels))
        findings: list[ImageFindings] = []
        min_width = self._width if self._task.in_batches else 1

        def targets(first: int, logits: Tensor) -> Tensor:
            if not findings:  # outputs beyond the images only fill the batch
                findings.extend(map(self._find, class_scores(self.loaded, logits), requests))
            rows = [row[first : first + self._width] or row[:1] for _, row, _ in findings]
            return priors(rows, min_width, logits)

        if self._task.has_own_pass:
            findings += map(self._find, self._task.run(inputs, requests), requests)
        maps: MapRows = [[] for _ in images]
        first = 0
        while not findings or first < max(len(row) for _, row, _ in findings):
            results = self._backprop(inputs, partial(targets, first), self._maps_asked)
            rows = [row[first : first + self._width] for _, row, _ in findings]
            new_maps = maps_of(requests, inputs, results, rows, self._keep_relevance)
            for of_image, new in zip(maps, new_maps, strict=True):
                of_image.extend(new)
            first += self._width
        if self._maps_asked.sufficiency:
            controls.measure_sufficiency(inputs, maps, requests)
        for i, finding in enumerate(findings):
            maps[i] += chain(*self._against_label(inputs[i : i + 1], finding))
        seconds = (perf_counter() - start) / len(images)
        pairs = zip(findings, maps, strict=True)
        return [finding.explanation(image_maps, seconds) for finding, image_maps in pairs]

    def _find(self, output: Any, request: ImageRequest) -> ImageFindings:
        """What is explained in an image, given what the task needs of it."""
        best = None if request.label is None else int(output.argmax())
        return ImageFindings(request, self._task.subjects(output, request), best)

    def _explain_in_pieces(self, image: NetworkInput, pieces: Pieces) -> Explanation:
        """The maps of one video or photo: scores averaged over its clips or tiles choose the subjects.

        Each piece is then explained for these. Torchvision's evaluation of videos averages scores, too.
        """
        start = perf_counter()
        batches = self._batches(pieces)
        piece_scores = self._scores_of(batches)
        finding = self._find(piece_scores.mean(0), self._request(image))
        scores = piece_scores.cpu().numpy()
        maps: list[Map] = []

        def add_maps(explain: Callable[[Tensor], MapRows]) -> None:
            """Join the maps that a function computes of each piece."""
            of_pieces = chain(*map(explain, self._unless_stopping(batches)))
            maps.extend(map(partial(pieces.join, scores), zip(*of_pieces, strict=True)))

        for first in range(0, len(finding.row), self._width):
            chosen = finding.row[first : first + self._width]
            add_maps(partial(self._maps, subjects=chosen, request=finding.request))
        add_maps(partial(self._against_label, finding=finding))
        explanation = finding.explanation(maps, perf_counter() - start)
        return replace(explanation, tiles=len(pieces.pixels)) if pieces.unit == "tile" else explanation

    def _against_label(self, inputs: Tensor, finding: ImageFindings) -> MapRows:
        """Of a wrong prediction, what tells it from the true class in each of the inputs, layer by layer; else none."""
        label = finding.request.label
        if label is None or label == finding.best or self.network.against or not self._maps_asked.contrastive:
            return []
        predicted = next(subject for subject in finding.row if subject.index == finding.best)
        subject = replace(predicted)  # one of its own
        rows = self._maps(inputs, [subject], finding.request, [label])
        name = class_labels(self.loaded, [label])[0]
        changes: dict[str, Any] = {"against": name, "is_two_sided": True, "noise": None, "method_maps": {}}
        return [[replace(map_, **changes) for map_ in row] for row in rows]

    def _maps(
        self, inputs: Tensor, subjects: Sequence[Subject], request: ImageRequest, against: list[int] | None = None
    ) -> MapRows:
        """The maps of the same subjects in each of the inputs."""
        results = self._backprop(inputs, partial(priors, [subjects], 1), self._maps_asked, against)
        count = len(inputs)
        return maps_of([request] * count, inputs, results, [subjects] * count, self._keep_relevance)

    def _batches(self, pieces: Pieces) -> list[Batch]:
        size = self._piece_batch_size
        return [pieces.pixels[first : first + size] for first in range(0, len(pieces.pixels), size)]

    def _scores_of(self, batches: Iterable[Batch]) -> Tensor:
        """The scores (pieces, ..., num_classes) of the pieces of an image."""
        with torch.no_grad():
            outputs = [self.loaded.net(part) for part in self._unless_stopping(batches)]
        return torch.cat([class_scores(self.loaded, single_tensor(output, "the output")).float() for output in outputs])

    def _unless_stopping(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        for batch in batches:
            if self._stopping.is_set():
                raise CancelledError
            yield self._inputs(np.stack(batch))

    def _inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        return self.loaded.transforms.normalize(pixels).to(self.device, self._dtype)

    def _backprop(
        self, inputs: Tensor, targets: Targets, maps: MapOptions, against: list[int] | None = None
    ) -> tuple[ExcitationResult, ...]:
        return excitation_backprop(
            self.loaded.net,
            inputs,
            targets,
            layer=[None if layer == INPUT else layer for layer in self.network.layers],
            contrastive=maps.contrastive,
            against=against or self.network.against,
            joint=self._joint,
            unsupported="gradient" if maps.allow_unsupported else "error",
            track_lost_mass=maps.track_lost_mass,
        )

    def _probe(self, maps: MapOptions) -> NetworkDescription:
        """The network's description after noise was explained; for errors, see ``controls.probe_noise``."""
        network = self.network
        if self._task.has_own_pass:  # noise has no detections
            method = method_in_words(maps, network.labels_against, joint=bool(self._joint))
            return replace(network, method=method)
        explain = partial(self._backprop, maps=maps)
        description, first = controls.probe_noise(network, maps, explain)
        joint = {result.joint for result in first}
        self._joint = None
        if len(joint) == 1:  # saves a forward pass
            self._joint = joint.pop()
        noise = {}
        if maps.contrastive and self._task.in_batches and self.loaded.trained:
            noise = controls.references(network, first, explain)
        return replace(description, noise=noise)


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
