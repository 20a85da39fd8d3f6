"""The model under test: a network with the methods and layers to compare."""

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ebcli.errors import ConfigurationError, LayerError
from ebcli.evaluate.data_sets import LabeledImages
from ebcli.models import ModelSpec, default_layer, load_model, resolve_layer
from ebcli.models import layers as model_layers
from ebcli.models.device import resolve_device
from ebcli.models.keywords import CLASSIFICATION, CROP, INPUT, LAYERLESS
from ebcli.models.loaded import network_settings
from ebcli.models.methods import IMPLEMENTED, class_scores
from ebcli.models.probe import probe

NO_LAYER = "-"

NamedMaps = tuple[str, str, NDArray[np.float32]]  # method, layer, and signed maps (K, h, w)


class ModelUnderTest:
    """A network with the methods and layers to compare.

    Args:
        spec: the network.
        layers: layer names, or ``"input"``; empty for the network's default layer.
        methods: names from ``METHODS``.
        device: as for ``load_model``, or ``"auto"``.

    Raises:
        ConfigurationError: the network, a layer or the device does not exist, or a method does not apply to a layer.

    Attributes:
        loaded: the network as loaded.
        net: the network, made fully convolutional if necessary.
        num_classes: number of classes.
        settings: everything that results depend on.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: Sequence[str] = (),
        methods: Sequence[str] = ("contrastive",),
        device: str = "auto",
    ) -> None:
        device = resolve_device(device)
        self.loaded = load_model(device=device, **vars(spec))
        if self.loaded.task != CLASSIFICATION:
            raise ConfigurationError(f"{spec.name} is for {self.loaded.task}, but benchmarks are for classifiers")
        self.num_classes = self.loaded.num_classes
        self.net = fully_convolutional(self.loaded.net).requires_grad_(False)
        self.device = torch.device(device)
        spatial = {layer.name for layer in model_layers(self.loaded) if layer.stride is not None}
        for name in layers:
            if name != INPUT and resolve_layer(self.loaded, name) not in spatial:
                raise LayerError(
                    f"layer {name!r} of {self.loaded.name} has no map: eb-saliency layers lists those that do"
                )
        self._layers = list(dict.fromkeys(layers)) or [default_layer(self.loaded)]
        self._methods = list(dict.fromkeys(methods))
        self.settings = network_settings(self.loaded) | {"layers": self._layers, "methods": self._methods}
        self.probe(*self.loaded.transforms.shape)

    def probe(self, height: int, width: int) -> None:
        """Explain a blank image of that size, so that misfits are reported before any work starts.

        Raises:
            ConfigurationError: the network does not accept such images, or a method does not apply to a layer.
        """
        spec = replace(self.loaded.transforms, size=(height, width))
        probe(self.loaded.name, self.net, spec, lambda blank: list(self.explain(blank, [0], "probe")))

    def inputs(self, image: Image.Image, side: int | None = None) -> Tensor:
        """Preprocess an RGB image: its center crop, normalized, (1, 3, side, side).

        Args:
            image: the image.
            side: side of the crop; None for the preprocessing's own. The crop covers the same part of the image.
        """
        spec = self.loaded.transforms
        if side is not None:
            resize = tuple(round(length * side / spec.shape[0]) for length in spec.resize or ())
            spec = replace(spec, size=(side, side), resize=resize)
        return spec(image)[None].to(self.device)

    def whole(self, image: Image.Image, side: int) -> Tensor:
        """Preprocess a whole RGB image: its shorter side resized to ``side``, normalized, (1, 3, H, W)."""
        spec = replace(self.loaded.transforms, size=None, resize=(side,), fit=CROP)
        return spec(image)[None].to(self.device)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Scores (B, num_classes), by default softmax probabilities; see ``LoadedModel.scores``."""
        parts = inputs.split(1 if self.loaded.one_by_one else len(inputs))
        with torch.no_grad():
            return self.loaded.to_scores(torch.cat([class_scores(self.net(part)) for part in parts]))

    def question(self, images: LabeledImages, key: str) -> tuple[Tensor, int]:
        """The input (1, 3, H, W) for an image, and the image's class; without labels, the most likely one."""
        inputs = self.inputs(images.read(key))
        return inputs, int(self.probabilities(inputs).argmax()) if images.labels is None else images.labels[key]

    def explain(self, inputs: Tensor, classes: Sequence[int], seed: str, net: Any = None) -> Iterator[NamedMaps]:
        """Each method's maps at each layer.

        Args:
            inputs: one image, (1, 3, H, W).
            classes: K class indices.
            seed: random seed.
            net: another network of the same architecture to use instead.
        """
        targets = torch.tensor([classes], device=self.device)
        for method in self._methods:
            for layer in [NO_LAYER] if method in LAYERLESS else self._layers:
                with torch.random.fork_rng(devices=[]):
                    torch.default_generator.manual_seed(zlib.crc32(os.fsencode(seed)))
                    maps = IMPLEMENTED[method](net or self.net, inputs, targets, None if layer == INPUT else layer)
                yield method, layer, maps.float().cpu().numpy()


def fully_convolutional(net: nn.Module) -> nn.Module:
    """Make a network accept images of any size without pooling them to a fixed size.

    The linear layers of VGG and AlexNet become convolutions over the grid of features, so that larger images get
    logits per position, as Zhang et al. ran VGG (section 4.1). Other networks are returned unchanged: most of them
    average over the whole image. Modules keep their names.

    Args:
        net: a network of torchvision; the result shares its weights.
    """
    features, pool, classifier = (getattr(net, name, None) for name in ("features", "avgpool", "classifier"))
    if not (isinstance(pool, nn.AdaptiveAvgPool2d) and isinstance(classifier, nn.Sequential) and features):
        return net
    size: Any = pool.output_size if isinstance(pool.output_size, tuple) else (pool.output_size,) * 2
    if size == (1, 1):
        return net
    layers = list(classifier)
    for i, module in enumerate(classifier):
        if isinstance(module, nn.Linear):
            channels = module.in_features // (size[0] * size[1])
            with torch.device("meta"):
                convolution = nn.Conv2d(channels, module.out_features, size)
            convolution.weight = nn.Parameter(module.weight.detach().unflatten(1, (channels, *size)))
            convolution.bias = module.bias
            layers[i], size = convolution, (1, 1)
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Sequential(*layers))).eval()
