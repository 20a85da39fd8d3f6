"""Batches of images in, maps out: the only part of a run that needs the network."""

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from threading import Event, Lock
from typing import Any

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
from ebcli.models.keywords import INPUT, VIDEO
from ebcli.models.running import is_out_of_memory, resolve_device
from ebcli.run import controls
from ebcli.run.maps import Tiles, batch_sizes, in_sequence, maps_of, priors
from ebcli.run.network_description import NetworkDescription, chosen_classes, class_labels, describe, method_in_words
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions
from ebcli.run.reading import NetworkInput
from ebcli.run.tasks.task import REGISTRY, ImageRequest, check_options

Targets = Tensor | Callable[[Tensor], Tensor]
Join = Callable[[NDArray[np.float32], Sequence[Map]], Map]


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
        model, maps, execution = plan.model, plan.maps, plan.execution
        if loaded is None:
            self.device, self._dtype = resolve_device(execution.device), getattr(torch, execution.dtype)
            if plan.words is None:
                self.loaded = load_model(device=self.device, **vars(model))
                self.loaded.net.to(self._dtype)
            else:
                from ebcli.models.sources.vision_language import VisionLanguage

                self.loaded = VisionLanguage(model.name, self.device, self._dtype).as_loaded()
        else:
            parameter = next(loaded.net.parameters(), torch.empty(0))
            self.loaded = loaded.with_preprocessing(model.preprocessing)
            self.device, self._dtype = str(parameter.device), parameter.dtype
        if self.loaded.task not in REGISTRY:
            raise ConfigurationError(f"{model.name} is for {self.loaded.task}, but there is no such task")
        self._task, self._is_video = REGISTRY[self.loaded.task], self.loaded.task == VIDEO
        self._keep_relevance = plan.output.raw and not self._is_video
        # most convolutions are faster in channels_last, on CPUs and on GPUs; a network that others use stays as it is
        if loaded is None and self.loaded.transforms.axes == "HW" and self._task.explain is None:
            self.loaded.net.to(memory_format=torch.channels_last)
        sizes = batch_sizes(self.loaded, execution.batch_size, self.device, total, self._task.in_batches)
        self.batch_size, self._pieces = sizes
        self._joint, self._lock, self._stopping = self._task.joint, Lock(), Event()
        check_options(plan, self.loaded)
        description = NetworkDescription.of_bundled(plan) if loaded is None else None
        if description is not None and not description.against:  # the first picture need not wait for what is known
            self.network = replace(description, loaded=self.loaded)
        else:
            self.network = describe(plan, self.loaded, self._task.layer)
            self.network = self.network if self._task.layer else self._probe(maps)
        self._request_template = ImageRequest(
            self.network, maps, labeled=plan.inputs.labels is not None, words=plan.words
        )
        self._width = self._task.width(self._request_template)

    def with_options(self, maps: MapOptions) -> "Explainer":
        """The same network at the same layers, asked about other classes."""
        other = copy(self)
        classes, against = chosen_classes(maps, self.loaded)
        other.network = replace(self.network, classes=classes, against=against)
        if other.network.against:  # how strong maps of noise are depends on both
            other.network = other._probe(maps)
        other._request_template = replace(self._request_template, network=other.network, maps=maps)
        other._width = self._task.width(other._request_template)
        return other

    def subjects(self, image: NetworkInput) -> list[Subject]:
        """What the maps of an image are about, before they are computed."""
        request, tiles = self._request(image), self._tiles(image)
        with self._lock, evaluating(self.loaded.net), guard_user_code(self.loaded.name), torch.no_grad():
            if self._task.run is not None:
                return self._task.subjects(self._task.run(self._inputs(image.pixels[None]), [request])[0], request)
            pieces = [image.pixels] if tiles is None else tiles.cut(image.pixels)
            return self._task.subjects(self._scores_of(self._batches(pieces)).mean(0), request)

    def explain(self, images: Sequence[NetworkInput], stopping: Event | None = None) -> list[Explanation | ImageError]:
        """The maps of each of any number of images or videos; or its error. Threads wait for each other.

        Args:
            images: the images or videos.
            stopping: if it is set meanwhile, a video or an image in tiles, which can take minutes, is given up.

        Raises:
            CancelledError: it was given up.
            ConfigurationError: there is not enough memory for a single image.
        """
        results: list[Explanation | ImageError] = []
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
        is_in_pieces = self._is_video or self._tiles(image) is not None
        if (self._pieces if is_in_pieces else self.batch_size) == 1:
            piece = "clip" if self._is_video else "tile" if is_in_pieces else "image"
            raise ConfigurationError(f"{self.device} has not enough memory for a single {piece}: try another --device")
        self._pieces, self.batch_size = max(1, self._pieces // 2), max(1, self.batch_size // 2)
        size = self._pieces if is_in_pieces else self.batch_size
        warnings.warn(f"{self.device} ran out of memory: continuing with a batch size of {size}", stacklevel=3)

    def _next(self, images: Sequence[NetworkInput]) -> Sequence[NetworkInput]:
        """The first images that the network gets together: those of one size, or one that is explained in tiles."""
        if self._tiles(images[0]) is not None:
            return images[:1]
        form = images[0].form
        return [*takewhile(lambda image: image.form == form, images[: self.batch_size])]

    def _tiles(self, image: NetworkInput) -> Tiles | None:
        """The tiles in which an image is explained; None if it is explained at once."""
        return Tiles.if_needed(self.loaded.transforms, image.pixels.shape) if self._task.in_batches else None

    def _request(self, image: NetworkInput) -> ImageRequest:
        request = replace(self._request_template, label=image.label, size=image.size)
        place = self.loaded.transforms.place(image.size) if self._task.place is None else self._task.place(request)
        return replace(request, place=place)

    def _try_batch(self, images: Sequence[NetworkInput]) -> list[Explanation | ImageError] | None:
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

    def _explain_or_split(self, images: Sequence[NetworkInput]) -> list[Explanation | ImageError]:
        """The maps of at most one batch of images; if some are not finite, images are explained one by one."""
        try:
            if self._is_video and len(images) == 1:
                return [self._explain_in_pieces(images[0], [*images[0].pixels], lambda _, clips: in_sequence(clips))]
            if (tiles := self._tiles(images[0])) is not None:
                explanation = self._explain_in_pieces(images[0], tiles.cut(images[0].pixels), tiles.join)
                return [replace(explanation, tiles=len(tiles.corners))]
            if self._task.in_batches or len(images) == 1:
                return [*self._explain_batch(images)]
        except (ImageError, NonFiniteError) as error:
            if len(images) == 1:
                return [ImageError(str(error))]
        return [result for image in images for result in self._explain_or_split([image])]

    def _explain_batch(self, images: Sequence[NetworkInput]) -> list[Explanation]:
        """The maps of at most one batch of images."""
        start = time.perf_counter()
        requests = [self._request(image) for image in images]
        if self._task.explain is not None:
            return [self._task.explain(image, request) for image, request in zip(images, requests, strict=True)]
        missing = self.batch_size - len(images) if self._task.in_batches else 0
        inputs = self._inputs(np.stack([image.pixels for image in images] + [images[-1].pixels] * missing))
        rows: list[list[Subject]] = []
        best_classes: list[int | None] = [None] * len(images)

        def find(outputs: Iterable[Any]) -> None:
            for i, (output, request) in enumerate(zip(outputs, requests, strict=False)):  # some only fill the batch
                rows.append(self._task.subjects(output, request))
                if request.label is not None:
                    best_classes[i] = int(output.argmax())

        def targets(first: int, logits: Tensor) -> Tensor:
            if not rows:
                find(self._scores(logits))
            chosen = [row[first : first + self._width] or row[:1] for row in rows]
            return priors(chosen, self._width if self._task.in_batches else 1, logits)

        if self._task.run is not None:
            find(self._task.run(inputs, requests))
        maps: list[list[Map]] = [[] for _ in images]
        first = 0
        while not rows or first < max(map(len, rows)):
            results = self._backprop(inputs, partial(targets, first), self._request_template.maps)
            chosen = [row[first : first + self._width] for row in rows]
            new_maps = maps_of(requests, inputs, results, chosen, self._keep_relevance)
            for of_image, layer_maps in zip(maps, new_maps, strict=True):
                of_image.extend(layer_maps)
            first += self._width
        if self._request_template.maps.sufficiency:
            controls.measure_sufficiency(inputs, maps, requests)
        for i, (request, best) in enumerate(zip(requests, best_classes, strict=True)):
            for layer_maps in self._against_label(inputs[i : i + 1], rows[i], request, best):
                maps[i].extend(layer_maps)
        seconds = (time.perf_counter() - start) / len(images)
        return [
            Explanation(maps=of_image, seconds=seconds, label=request.label, predicted=best)
            for of_image, request, best in zip(maps, requests, best_classes, strict=True)
        ]

    def _explain_in_pieces(self, image: NetworkInput, pieces: Sequence[NDArray[np.uint8]], join: Join) -> Explanation:
        """The maps of one video or photo: scores averaged over its clips or tiles choose the subjects.

        Each piece is then explained for these. Torchvision's evaluation of videos averages scores, too.

        Args:
            image: the video or photo.
            pieces: what the network gets of each piece.
            join: makes one map of the maps of all pieces, given their scores (pieces, num_classes).
        """
        start, request = time.perf_counter(), self._request(image)
        batches = self._batches(pieces)
        piece_scores = self._scores_of(batches)
        scores = piece_scores.mean(0)
        row, maps = self._task.subjects(scores, request), list[Map]()

        def join_maps(batches_of_maps: Iterable[Sequence[Sequence[Map]]]) -> list[Map]:
            return [
                join(piece_scores.cpu().numpy(), of_pieces) for of_pieces in zip(*chain(*batches_of_maps), strict=True)
            ]

        for first in range(0, len(row), self._width):
            chosen = row[first : first + self._width]
            maps += join_maps(self._maps(inputs, chosen, request) for inputs in self._unless_stopping(batches))
        best = None if request.label is None else int(scores.argmax())
        maps += join_maps(self._against_label(part, row, request, best) for part in self._unless_stopping(batches))
        return Explanation(maps=maps, seconds=time.perf_counter() - start, label=request.label, predicted=best)

    def _against_label(
        self, inputs: Tensor, row: Sequence[Subject], request: ImageRequest, best: int | None
    ) -> list[list[Map]]:
        """Of a wrong prediction, what tells it from the true class in each of the inputs, layer by layer; else none."""
        label, maps = request.label, self._request_template.maps
        if label is None or best == label or self.network.against or not maps.contrastive:
            return []
        subject = replace(next(candidate for candidate in row if candidate.index == best))  # a subject of its own
        rows_of_maps = self._maps(inputs, [subject], request, [label])
        name = class_labels(self.loaded, [label])[0]
        return [
            [replace(map_, against=name, is_two_sided=True, noise=None, method_maps={}) for map_ in image_maps]
            for image_maps in rows_of_maps
        ]

    def _maps(
        self, inputs: Tensor, subjects: Sequence[Subject], request: ImageRequest, against: list[int] | None = None
    ) -> list[list[Map]]:
        """The maps of the same subjects in each of the inputs."""
        results = self._backprop(inputs, partial(priors, [subjects], 1), self._request_template.maps, against)
        count = len(inputs)
        return maps_of([request] * count, inputs, results, [subjects] * count, self._keep_relevance)

    def _batches(self, pieces: Sequence[NDArray[np.uint8]]) -> list[Sequence[NDArray[np.uint8]]]:
        return [pieces[first : first + self._pieces] for first in range(0, len(pieces), self._pieces)]

    def _scores_of(self, batches: Iterable[Sequence[NDArray[np.uint8]]]) -> Tensor:
        """The scores (pieces, ..., num_classes) of the pieces of an image."""
        with torch.no_grad():
            outputs = [single_tensor(self.loaded.net(part), "the output") for part in self._unless_stopping(batches)]
        return torch.cat([self._scores(output).float() for output in outputs])

    def _unless_stopping(self, batches: Iterable[Sequence[NDArray[np.uint8]]]) -> Iterator[Tensor]:
        for batch in batches:
            if self._stopping.is_set():
                raise CancelledError
            yield self._inputs(np.stack(batch))

    def _scores(self, logits: Tensor) -> Tensor:
        """The scores (B, ..., num_classes) of logits (B, num_classes, ...)."""
        return self.loaded.to_scores(logits.detach().movedim(1, -1))

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
        network, explain = self.network, partial(self._backprop, maps=maps)
        if self._task.run is not None:  # noise has no detections
            return replace(network, method=method_in_words(maps, network.labels_against, joint=bool(self._joint)))
        description, first = controls.probe_noise(network, maps, explain)
        self._joint = first[0].joint if len({result.joint for result in first}) == 1 else None  # saves a forward pass
        is_measured = maps.contrastive and self._task.in_batches and self.loaded.trained
        return replace(description, noise=controls.references(network, first, explain) if is_measured else {})
