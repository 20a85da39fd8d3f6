"""Batches of images in, maps out: the only part of a run that needs the network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebcli.drawing.explanation import Explanation, LayerMaps
from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.errors import ConfigurationError, ImageError, LayerError, NonFiniteError
from ebcli.imports import contained
from ebcli.models import default_layer, load_model
from ebcli.models.device import default_batch_size, resolve_device
from ebcli.models.keywords import DETECTION, INPUT, VIDEO
from ebcli.models.probe import probe
from ebcli.run.choice import Choice
from ebcli.run.clips import average_scores, explain_clips
from ebcli.run.facts import NetworkFacts, chosen_classes, class_labels, contrasting_classes, method_in_words
from ebcli.run.layer_choice import check_distinct, chosen_layers
from ebcli.run.layer_maps import by_image, joined, maps_beside
from ebcli.run.plan import RunPlan
from ebcli.run.subjects import SCENES, Size, View, check_options

Targets = Tensor | Callable[[Tensor], Tensor]

_FRAMES = 16  # of a clip, which takes about as much memory as so many images
_SUBJECTS = 4  # detections or segments at a time; the output of a detector has millions of elements


class Explainer:
    """A network, ready to explain images.

    The network always gets full batches, the last one padded: so an image's maps are bit-identical whatever other
    images share its batch.

    Args:
        plan: the run.

    Raises:
        ConfigurationError: the model, weights, layer, class or device does not exist or does not fit.
        UnsupportedOpError: the network has operations without an excitation rule.

    Attributes:
        loaded: the network.
        layers: the names of the layers.
        default_layer: the layer that is used if none is asked for; None if the network has none, or several are used.
        device: the name of the device.
        num_classes: the number of classes.
        classes: the classes to explain in every image; None for each image's most likely ones.
        against: the classes to contrast with; None for the target's dual.
        method: how the maps are computed, in words.
        batch_size: images per batch; halved when memory runs out.
    """

    def __init__(self, plan: RunPlan) -> None:
        model, maps, execution = plan.model, plan.maps, plan.execution
        self.device = resolve_device(execution.device)
        self.loaded = load_model(
            model.name,
            model.weights,
            self.device,
            class_names=model.class_names,
            like=model.like,
            preprocessing=model.preprocessing,
            scores=model.scores,
        )
        self._maps, self._keep_relevance = maps, plan.output.raw
        self._has_labels = plan.inputs.labels is not None
        self._dtype = getattr(torch, execution.dtype)
        self._is_dense, self._is_video = self.loaded.task in SCENES, self.loaded.task == VIDEO
        self.loaded.net.to(self._dtype)
        if not self._is_video:  # most convolutions and poolings are faster in channels_last, on CPUs and on GPUs
            self.loaded.net.to(memory_format=torch.channels_last)
        usual = 1 if self._is_dense else default_batch_size(self.device)  # whole images are large
        self.batch_size = execution.batch_size or usual
        self._clips = execution.batch_size or max(1, usual // _FRAMES)  # at a time
        if self._is_video:
            self.batch_size = 1
        self.num_classes = self.loaded.num_classes
        # better on trained detectors and video networks, see docs/trained.md; None decides by the network
        self._joint = True if self.loaded.task in (DETECTION, VIDEO) else None
        check_options(plan, self.loaded)
        known = NetworkFacts.of_bundled(plan)
        if known is not None:  # the first picture need not wait for what is known
            self.layers, self.default_layer, self.method = known.layers, known.default_layer, known.method
            self.classes, self.against = known.classes, known.against
            return
        self.layers = chosen_layers(maps.layers, self.loaded)
        self.default_layer = None if maps.layers else self.layers[0]
        if len(self.layers) == 1 and maps.layers:
            with suppress(LayerError):  # this layer may do nevertheless
                self.default_layer = default_layer(self.loaded)
        if not plan.output.panel:
            check_distinct(self.layers)
        categories = self.loaded.categories
        self.against = contrasting_classes(maps, categories, self.num_classes)
        self.method = self._check_layers()
        self.classes = chosen_classes(maps, self.loaded.name, categories, self.num_classes)

    @property
    def facts(self) -> NetworkFacts:
        """What records, names and checks need to know."""
        loaded = self.loaded
        return NetworkFacts(
            loaded.name,
            loaded.weights,
            loaded.files,
            loaded.transforms,
            loaded.categories,
            loaded.scores,
            self.num_classes,
            self.layers,
            self.default_layer,
            self.classes,
            self.against,
            self.method,
            loaded.task,
        )

    def explain(
        self,
        images: Sequence[NDArray[np.uint8]],
        labels: Sequence[int | None] = (),
        sizes: Sequence[tuple[int, int]] = (),
    ) -> list[Explanation | ImageError]:
        """The maps of any number of images; or its error.

        Args:
            images: what the network gets of them, (crop, crop, 3), or (height, width, 3) of whole images; of videos,
                (clips, frames, crop, crop, 3).
            labels: their true classes, None where it is not known; none at all if the run has no labels.
            sizes: their widths and heights; classifiers do not need them.

        Raises:
            ConfigurationError: there is not enough memory for a single image.
        """
        found: list[Explanation | ImageError] = []
        while len(found) < len(images):
            part = slice(len(found), len(found) + self.batch_size)
            explained = self._within_memory(images[part], labels[part], sizes[part])
            if explained is not None:
                found += explained
            elif (self._clips if self._is_video else self.batch_size) == 1:
                what = "clip" if self._is_video else "image"
                raise ConfigurationError(
                    f"{self.device} has not enough memory for a single {what}: try another --device"
                )
            else:
                self._clips //= 2
                self.batch_size = max(1, self.batch_size // 2)
                size = self._clips if self._is_video else self.batch_size
                warnings.warn(f"{self.device} ran out of memory: continuing with a batch size of {size}", stacklevel=2)
        return found

    def _within_memory(
        self, images: Sequence[NDArray[np.uint8]], labels: Sequence[int | None], sizes: Sequence[Size]
    ) -> list[Explanation | ImageError] | None:
        """The maps of at most one batch of images; None if memory runs out.

        A method of its own, so that the tensors of a failed attempt are freed before the next one.
        """
        try:
            with contained(self.loaded.name):
                return self._finite(images, labels, sizes)
        except (torch.OutOfMemoryError, MemoryError):
            pass
        except RuntimeError as error:  # CPU allocators and some devices raise no class of their own
            if not any(
                words in str(error).lower() for words in ("out of memory", "not enough memory", "can't allocate")
            ):
                raise
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return None

    def _finite(
        self, images: Sequence[NDArray[np.uint8]], labels: Sequence[int | None], sizes: Sequence[Size]
    ) -> list[Explanation | ImageError]:
        """The maps of at most one batch of images; if some are not finite, images are explained one by one."""
        try:
            if self._is_video and len(images) == 1:
                return [self._explain_video(images[0], labels)]
            if not (self._is_dense or self._is_video):
                return [*self._explain(images, labels)]
            if len(images) == 1:
                return [self._explain_scene(images[0], sizes[0])]
        except (ImageError, NonFiniteError) as error:
            if len(images) == 1:
                return [ImageError(str(error))]
        ones = [slice(i, i + 1) for i in range(len(images))]
        return [found for one in ones for found in self._finite(images[one], labels[one], sizes[one])]

    def _explain(self, images: Sequence[NDArray[np.uint8]], labels: Sequence[int | None]) -> list[Explanation]:
        start = time.perf_counter()
        count, filled = len(images), [*images, *[images[-1]] * (self.batch_size - len(images))]
        chosen: list[Choice] = []

        def choose(logits: Tensor) -> Tensor:
            known = labels if self._has_labels else None
            chosen.append(Choice.of(self.loaded.to_scores(logits), self._maps, self.classes, known, self.against or ()))
            return chosen[0].targets(0)

        inputs = self._inputs(np.stack(filled))
        results = self._backprop(inputs, choose, self._maps.contrastive)
        choice = chosen[0]
        turns = [self._by_layer(inputs, results, choice.targets(0))]
        for first in choice.starts[1:]:
            targets = choice.targets(first)
            results = self._backprop(inputs, targets, self._maps.contrastive)
            turns.append(self._by_layer(inputs, results, targets))
        seconds = (time.perf_counter() - start) / count
        return [self._explained(choice, i, turns, seconds) for i in range(count)]

    def _explained(
        self, choice: Choice, i: int, turns: Sequence[Sequence[Sequence[LayerMaps]]], seconds: float
    ) -> Explanation:
        """The explanation of image ``i``, from the maps of all turns."""
        classes = choice.classes[i]
        return Explanation(
            classes,
            choice.scores[i],
            list(map(self.facts.category, classes)),
            tuple(joined([turn[at][i] for turn in turns], len(classes)) for at in range(len(self.layers))),
            seconds,
            *choice.label_and_prediction(i),
        )

    def _explain_video(self, clips: NDArray[np.uint8], labels: Sequence[int | None]) -> Explanation:
        """The maps of one video."""
        start = time.perf_counter()

        def batches() -> Iterator[Tensor]:
            for first in range(0, len(clips), self._clips):
                yield self._inputs(clips[first : first + self._clips])

        known = labels if self._has_labels else None
        scores = average_scores(self.loaded, batches())
        choice = Choice.of(scores, self._maps, self.classes, known, self.against or ())
        turns = explain_clips(batches, choice, self._maps_of)
        return self._explained(choice, 0, turns, time.perf_counter() - start)

    def _explain_scene(self, image: NDArray[np.uint8], size: Size) -> Explanation:
        """The maps of one image by a network that predicts many things."""
        start = time.perf_counter()
        inputs = self._inputs(image[None])
        view = View(size, self.loaded.transforms.place(size))
        scene = SCENES[self.loaded.task](self.loaded, inputs, self._maps, self.classes, view)
        at_a_time = _SUBJECTS if self.against is None else 1  # classes to contrast with share the subject's place
        turns = [self._maps_of(inputs, priors) for priors in scene.priors(at_a_time)]
        return scene.explained([[of_layer[0] for of_layer in turn] for turn in turns], self.facts.category, start)

    def _maps_of(self, inputs: Tensor, targets: Targets) -> list[list[LayerMaps]]:
        """For each layer, the maps of each input."""
        results = self._backprop(inputs, targets, self._maps.contrastive)
        keeps = self._keep_relevance and self.loaded.task != VIDEO
        return [by_image(name, result, keeps, self._kind) for name, result in zip(self.layers, results, strict=True)]

    @property
    def _kind(self) -> str:
        return "contrastive" if self._maps.contrastive else "marginal"

    def _by_layer(self, inputs: Tensor, results: Sequence[ExcitationResult], targets: Tensor) -> list[list[LayerMaps]]:
        """For each layer, the maps of each image, with those of other methods beside them if they are asked for."""
        beside = [self._beside(inputs, targets, layer) for layer in self.layers]
        return [
            by_image(name, result, self._keep_relevance, self._kind, others)
            for name, result, others in zip(self.layers, results, beside, strict=True)
        ]

    def _beside(self, inputs: Tensor, targets: Tensor, layer: str) -> dict[str, NDArray[np.float32]]:
        where = None if layer == INPUT else layer
        return maps_beside(self.loaded.net, self._maps.beside, inputs, targets, where)

    def _inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        return self.loaded.transforms.normalize(pixels).to(self.device, self._dtype)

    def _backprop(self, inputs: Tensor, targets: Targets, contrastive: bool) -> tuple[ExcitationResult, ...]:
        return excitation_backprop(
            self.loaded.net,
            inputs,
            targets,
            layer=[None if layer == INPUT else layer for layer in self.layers],
            contrastive=contrastive,
            against=self.against if contrastive else None,
            joint=self._joint,
            unsupported="gradient" if self._maps.allow_unsupported else "error",
            track_lost_mass=self._maps.track_lost_mass,
        )

    def _without_others(self, logits: Tensor) -> Tensor:
        """Logits that rank the classes to contrast with last."""
        return logits if self.against is None else logits.index_fill(1, logits.new_tensor(self.against).long(), -inf)

    def _check_layers(self) -> str:
        """Explain a blank image, to report layers without a map and operations without a rule before any work.

        Returns the method, in words.
        """
        if self.loaded.task == DETECTION:  # a blank image has no detections
            return method_in_words(self._maps, class_labels(self.loaded.categories, self.against), joint=True)
        size = self.loaded.transforms.shape
        results = probe(
            self.loaded.name,
            self.loaded.net,
            size,
            lambda blank: self._backprop(
                blank, lambda logits: _best(self._without_others(logits)), self._maps.contrastive
            ),
        )
        try:
            for result in results:
                len(result.maps)
            blank = torch.zeros(1, 3, *size, device=self.device, dtype=self._dtype)
            target = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            for layer in self.layers:
                self._beside(blank, target, layer)
        except LayerError as error:
            raise LayerError(f"{error}, such as {default_layer(self.loaded)!r}") from error
        rules = {result.joint for result in results}
        self._joint = rules.pop() if len(rules) == 1 else None  # known, so that no forward pass is repeated
        labels = class_labels(self.loaded.categories, self.against)
        found = [
            method_in_words(self._maps, labels, joint=result.joint, over_cells=bool(result.special_tokens))
            for result in results
        ]
        return "; ".join(dict.fromkeys(found))


def _best(logits: Tensor) -> Tensor:
    """The most likely class of each image, (B, 1), on average over all places."""
    return logits.flatten(2).mean(2).topk(1).indices if logits.ndim > 2 else logits.topk(1).indices
