"""The network's part of a run: batches of images in, maps out."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import functional

from ebcli.drawing.explanation import Explanation, LayerMaps
from ebcli.eb import ExcitationResult, excitation_backprop
from ebcli.errors import ConfigurationError, LayerError
from ebcli.files.naming import slug
from ebcli.models import (
    LoadedModel,
    Preprocessing,
    default_layer,
    layer_per_resolution,
    load_model,
    resolve_class,
    resolve_layer,
)
from ebcli.models.device import default_batch_size, device_named
from ebcli.models.names import ALL, INPUT
from ebcli.run.plan import RunPlan


class Explainer:
    """A network that is ready to explain images.

    The network always gets whole batches, the last one filled up: then an image's maps are the same to the bit
    whatever other images it meets there.

    Args:
        plan: names the network, the layers and the classes.

    Raises:
        ConfigurationError: model, weights, layer, class or device do not exist or do not fit.
        UnsupportedOpError: the network has operations that no rule explains.

    Attributes:
        loaded: the network.
        layers: the layers' names.
        device: the device's name.
        num_classes: how many it tells apart.
        classes: the classes that all images get maps for; None for each image's most likely ones.
        batch_size: how many images it gets at a time; halved where memory does not suffice.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.device = device_named(plan.device)
        self.loaded = load_model(
            plan.model,
            plan.weights,
            self.device,
            classes=plan.classes,
            preprocessing=Preprocessing(plan.resize, plan.crop, plan.mean, plan.std),
        )
        # with the channels innermost, most convolutions and poolings are quicker, on processors and on GPUs
        self._dtype = getattr(torch, plan.dtype)
        self.loaded.net.to(self._dtype).to(memory_format=torch.channels_last)
        self.layers = _layers(plan, self.loaded)
        self._plan = plan
        self.batch_size = plan.batch_size or default_batch_size(self.device)
        self.num_classes = self._probe()
        self.classes = _classes(plan, self.loaded, self.num_classes) if plan.targets else None
        if not plan.targets and plan.top_k > self.num_classes:
            raise ConfigurationError(
                f"top-k is {plan.top_k}, but {self.loaded.name} has only {self.num_classes} classes"
            )

    def category(self, index: int) -> str | None:
        """A class's name, where the weights tell."""
        return self.loaded.categories[index] if self.loaded.categories else None

    def explain(self, images: Sequence[NDArray[np.uint8]]) -> list[Explanation]:
        """The maps of images (crop, crop, 3), any number of them.

        Raises:
            ConfigurationError: there is not enough memory for even one.
        """
        found: list[Explanation] = []
        while len(found) < len(images):
            batch = images[len(found) : len(found) + self.batch_size]
            explained = self._within_memory(batch)
            if explained is not None:
                found += explained
            elif self.batch_size == 1:
                raise ConfigurationError(f"{self.device} has not enough memory for one image: try another --device")
            else:
                self.batch_size //= 2
                warnings.warn(
                    f"not enough memory on {self.device}: going on with batches of {self.batch_size}", stacklevel=2
                )
        return found

    def _within_memory(self, images: Sequence[NDArray[np.uint8]]) -> list[Explanation] | None:
        """The maps of at most a batch of images; None if that takes too much memory.

        Here and not in the caller, so that the failed attempt's tensors are gone before the next one.
        """
        try:
            return self._explain(images)
        except (torch.OutOfMemoryError, MemoryError):
            pass
        except RuntimeError as error:  # the processor's allocator and some devices have no class of their own
            if not any(
                words in str(error).lower() for words in ("out of memory", "not enough memory", "can't allocate")
            ):
                raise
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return None

    def _explain(self, images: Sequence[NDArray[np.uint8]]) -> list[Explanation]:
        start = time.perf_counter()
        filled = [*images, *[images[-1]] * (self.batch_size - len(images))]
        chosen: list[Tensor] = []

        def choose(logits: Tensor) -> Tensor:
            if self.classes is None:
                chosen.append(logits.topk(self._plan.top_k).indices)
            else:
                chosen.append(torch.tensor([self.classes] * len(logits), device=logits.device))
            return chosen[0]

        inputs = self._inputs(np.stack(filled))
        results = self._backprop(inputs, choose, self._plan.contrastive)
        if self._plan.with_marginal:
            marginal = self._backprop(inputs, chosen[0], contrastive=False)
        scores = results[0].logits.softmax(-1).gather(1, chosen[0]).tolist()
        classes = chosen[0].tolist()
        layers = [
            _by_image(name, result, self._plan.raw, marginal[i] if self._plan.with_marginal else None)
            for i, (name, result) in enumerate(zip(self.layers, results, strict=True))
        ]
        seconds = (time.perf_counter() - start) / len(images)
        return [
            Explanation(
                classes[i], scores[i], [self.category(k) for k in classes[i]], tuple(at[i] for at in layers), seconds
            )
            for i in range(len(images))
        ]

    def _inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Pixels (B, H, W, 3) as the rest of the preset makes them: (B, 3, H, W), normalised."""
        preset = self.loaded.transforms
        images = functional.convert_image_dtype(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())
        return functional.normalize(images, preset.mean, preset.std).to(self.device, self._dtype)

    def _backprop(
        self, inputs: Tensor, targets: Tensor | Callable[[Tensor], Tensor], contrastive: bool
    ) -> tuple[ExcitationResult, ...]:
        return excitation_backprop(
            self.loaded.net,
            inputs,
            targets,
            layer=[None if layer == INPUT else layer for layer in self.layers],
            contrastive=contrastive,
            unsupported="gradient" if self._plan.allow_unsupported else "error",
            explain_losses=self._plan.explain_losses,
        )

    def _probe(self) -> int:
        """Explain a grey image, for errors to come before any work; the number of classes."""
        side = self.loaded.transforms.crop_size[0]
        grey = torch.zeros(1, 3, side, side, device=self.device, dtype=self._dtype)

        def first(logits: Tensor) -> Tensor:
            return torch.zeros(1, 1, dtype=torch.long, device=logits.device)

        results = self._backprop(grey, first, self._plan.contrastive)
        try:
            for result in results:
                len(result.maps)
        except LayerError as error:
            raise LayerError(f"{error}, such as {default_layer(self.loaded)!r}") from error
        return results[0].logits.shape[1]


def _by_image(name: str, result: ExcitationResult, raw: bool, marginal: ExcitationResult | None) -> list[LayerMaps]:
    """A batch's maps at one layer, image by image."""
    mass = result.mass.tolist()
    losses = {site: lost.tolist() for site, lost in (result.losses or {}).items()}
    maps = result.maps.float().cpu().numpy()
    relevance = result.relevance.float().cpu().numpy() if raw else None
    beside = None if marginal is None else marginal.maps.float().cpu().numpy()
    return [
        # copies, lest one image's map keep the whole batch in memory
        LayerMaps(
            name,
            mass[i],
            maps[i].copy(),
            None if result.losses is None else {site: lost[i] for site, lost in losses.items()},
            None if relevance is None else relevance[i].copy(),
            None if beside is None else beside[i].copy(),
        )
        for i in range(len(maps))
    ]


def _layers(plan: RunPlan, loaded: LoadedModel) -> tuple[str, ...]:
    found: list[str] = []
    for name in plan.layers or (default_layer(loaded),):
        if name == ALL:
            found += [*layer_per_resolution(loaded), INPUT]
        else:
            found.append(name if name == INPUT else resolve_layer(loaded, name))
    found = list(dict.fromkeys(found))
    alike = Counter(map(slug, found))
    if not plan.panel and len(alike) < len(found):
        names = [repr(name) for name in found if alike[slug(name)] > 1]
        raise ConfigurationError(f"the layers {' and '.join(names)} look alike in file names: run them one by one")
    return tuple(found)


def _classes(plan: RunPlan, loaded: LoadedModel, num_classes: int) -> list[int]:
    found = (resolve_class(loaded.categories, target, num_classes) for target in plan.targets)
    return list(dict.fromkeys(found))  # an index and a name may mean the same class
