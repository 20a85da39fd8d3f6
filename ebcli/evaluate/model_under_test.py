"""What a test examines: a network with the methods and layers whose maps are to be judged."""

from __future__ import annotations

import copy
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional

from ebcli.errors import ConfigurationError, LayerError
from ebcli.evaluate.methods import IMPLEMENTED, class_scores
from ebcli.evaluate.names import LAYERLESS
from ebcli.models import LoadedModel, Preprocessing, default_layer, load_model, resolve_layer
from ebcli.models import layers as model_layers
from ebcli.models.checkpoint import first_line
from ebcli.models.device import device_named
from ebcli.models.fingerprint import network_settings
from ebcli.models.names import INPUT

NO_LAYER = "-"

Map = tuple[str, str, NDArray[np.float32]]  # the method's name, the layer's, and (K, h, w), signed


class ModelUnderTest:
    """A network under test.

    Args:
        model, weights, device, classes, preprocessing: as for ``load_model``; the device may also be ``"auto"``.
        layers: their names, or ``"input"``; empty for the network's default layer.
        methods: names among ``METHODS``.

    Raises:
        ConfigurationError: one of them does not exist or does not fit.

    Attributes:
        loaded: the network as it was loaded.
        net: the network, made fully convolutional where it was not.
        num_classes: how many it tells apart.
        settings: what results depend on.
    """

    def __init__(
        self,
        model: str,
        weights: str,
        layers: Sequence[str],
        methods: Sequence[str],
        device: str = "auto",
        *,
        classes: Path | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        device = device_named(device)
        self.loaded = load_model(model, weights, device, classes=classes, preprocessing=preprocessing)
        self.net = fully_convolutional(self.loaded.net).requires_grad_(False)
        self.device = torch.device(device)
        self._layers = _checked(self.loaded, layers) or [default_layer(self.loaded)]
        self._methods = list(dict.fromkeys(methods))
        self.settings: dict[str, Any] = {
            **network_settings(self.loaded),
            "layers": self._layers,
            "methods": self._methods,
        }
        side = self.loaded.transforms.crop_size[0]
        self.num_classes = self.probe(side, side)

    def probe(self, height: int, width: int) -> int:
        """Explain a blank image of that size, for errors to come before any work; the number of classes.

        Raises:
            ConfigurationError: the network takes no such image, or a method does not fit a layer.
        """
        blank = torch.zeros(1, 3, height, width, device=self.device)
        try:
            for _ in self.explain(blank, [0], "probe"):
                pass
            with torch.no_grad():
                return class_scores(self.net(blank)).shape[1]
        except (RuntimeError, AssertionError) as error:
            raise ConfigurationError(
                f"{self.loaded.name} takes no image of {height} x {width} pixels: {first_line(error)}"
            ) from error

    def inputs(self, image: Image.Image, side: int | None = None) -> Tensor:
        """What the weights' preprocessing makes of an image (RGB), (1, 3, side, side): its centre, normalised.

        Args:
            image: the photo.
            side: None for the preprocessing's own; with another one it shows as much of the photo.
        """
        preset = copy.copy(self.loaded.transforms)
        if side is not None:
            preset.resize_size = [round(preset.resize_size[0] * side / preset.crop_size[0])]
            preset.crop_size = [side]
        return preset(image)[None].to(self.device)

    def whole(self, image: Image.Image, side: int) -> Tensor:
        """All of an image (RGB), its shorter side resized to ``side``, (1, 3, H, W), normalised."""
        preset = self.loaded.transforms
        small = functional.to_tensor(functional.resize(image, [side], preset.interpolation))
        return functional.normalize(small, preset.mean, preset.std)[None].to(self.device)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """The classes' softmax probabilities, (B, num_classes)."""
        with torch.no_grad():
            return class_scores(self.net(inputs)).softmax(1)

    def explain(self, inputs: Tensor, classes: Sequence[int], seed: str, net: nn.Module | None = None) -> Iterator[Map]:
        """Each method's maps at each layer.

        Args:
            inputs: (1, 3, H, W).
            classes: K of them.
            seed: decides on what is random.
            net: another network of the same architecture.
        """
        targets = torch.tensor([classes], device=self.device)
        for method in self._methods:
            for layer in [NO_LAYER] if method in LAYERLESS else self._layers:
                with torch.random.fork_rng(devices=[]):
                    torch.default_generator.manual_seed(zlib.crc32(os.fsencode(seed)))
                    maps = IMPLEMENTED[method](net or self.net, inputs, targets, None if layer == INPUT else layer)
                yield method, layer, maps.float().cpu().numpy()


def fully_convolutional(net: nn.Module) -> nn.Module:
    """A network that takes images of any size without pooling them to a fixed one.

    The classifiers of VGG and AlexNet are written as convolutions over the pooled grid, so that there is an answer
    for each place of a larger image, as Zhang et al. ran VGG (section 4.1). Other networks are returned as they
    are: most average over the whole image. Modules keep their names.

    Args:
        net: a network of torchvision; the result shares its weights.
    """
    features, pool, classifier = (getattr(net, name, None) for name in ("features", "avgpool", "classifier"))
    if not (isinstance(pool, nn.AdaptiveAvgPool2d) and isinstance(classifier, nn.Sequential) and features):
        return net
    size: Any = pool.output_size if isinstance(pool.output_size, tuple) else (pool.output_size,) * 2
    if size == (1, 1):
        return net
    layers: list[nn.Module] = []
    for module in classifier:
        if isinstance(module, nn.Linear):
            channels = module.in_features // (size[0] * size[1])
            with torch.device("meta"):
                convolution = nn.Conv2d(channels, module.out_features, size)
            convolution.weight = nn.Parameter(module.weight.detach().unflatten(1, (channels, *size)))
            convolution.bias = module.bias
            layers.append(convolution)
            size = (1, 1)
        else:
            layers.append(module)
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Sequential(*layers))).eval()


def _checked(loaded: LoadedModel, names: Sequence[str]) -> list[str]:
    spatial = {layer.name for layer in model_layers(loaded) if layer.stride is not None}
    for name in names:
        if name != INPUT and resolve_layer(loaded, name) not in spatial:
            raise LayerError(f"layer {name!r} of {loaded.name} has no map: eb-saliency --list-layers tells which have")
    return list(dict.fromkeys(names))
