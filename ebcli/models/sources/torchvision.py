"""Torchvision's classifiers, and the bundled network, which is one more of them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torchvision.models
from torch import nn
from torchvision.models import ResNet50_Weights, WeightsEnum
from torchvision.transforms._presets import ImageClassification

import ebcli.models.efficientnet_lite  # noqa: F401, registers the bundled network with torchvision
from ebcli.errors import ConfigurationError, closest
from ebcli.models.checkpoint import UNREADABLE, classes_in, first_line, load_checkpoint
from ebcli.models.names import BUNDLED, torchvision_names
from ebcli.models.sources.base import ModelSource

IMAGENET: Sequence[str] = ResNet50_Weights.IMAGENET1K_V1.meta["categories"]


class Torchvision(ModelSource):
    """A network by its name in ``torchvision.models``. GoogLeNet and Inception v3 rescale their input themselves.

    A checkpoint gets the preprocessing of torchvision's default weights, or of those weights whose file name it bears.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name.lower())  # torchvision's own lookup ignores case
        valid = torchvision_names()
        if self.name not in valid:
            hint = closest(name, valid) or f"give one of torchvision's classifiers, such as vgg16, or {BUNDLED}"
            raise ConfigurationError(f"there is no model {name!r}: {hint}")
        self._enum = torchvision.models.get_model_weights(self.name)

    @classmethod
    def names(cls) -> Iterable[str]:
        return torchvision_names()

    def build(self, num_classes: int | None = None) -> nn.Module:
        return self._built(self._enum["DEFAULT"], num_classes)

    def weights(self) -> Sequence[str]:
        return list(self._enum.__members__)

    def published(self, weights: str) -> str | None:
        member = weights.removeprefix(f"{self._enum.__name__}.")
        return self._enum[member].name if member in self._enum.__members__ else None

    def pretrained(self, weights: str) -> nn.Module:
        preset = self._enum[weights]
        net = self._built(preset, None)
        load_checkpoint(net, published_state(self.name, preset), f"{weights} for {self.name}")
        return net

    def transforms(self, net: nn.Module, weights: str) -> ImageClassification:
        return self._preset(weights).transforms()

    def categories(self, net: nn.Module, weights: str) -> Sequence[str] | None:
        # some weights (VGG-16's IMAGENET1K_FEATURES) name no classes, for their classifier is not trained
        return self._preset(weights).meta["categories"]

    def num_classes(self, net: nn.Module) -> int | None:
        return classes_in(net.state_dict(), net)

    def _preset(self, weights: str) -> WeightsEnum:
        if weights in self._enum.__members__:
            return self._enum[weights]
        return next((m for m in self._enum if _file_name(m) == Path(weights).name), self._enum["DEFAULT"])

    def _built(self, preset: WeightsEnum, num_classes: int | None) -> nn.Module:
        """The network with random weights, made as torchvision makes it for the weights ``preset``."""
        options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
        if self.name in ("googlenet", "inception_v3"):
            options |= {"transform_input": True, "aux_logits": False, "init_weights": False}
        if self.name.startswith("vit_"):  # has one position embedding a token
            options["image_size"] = preset.transforms().crop_size[0]
        return torchvision.models.get_model(self.name, weights=None, **options)


def published_state(name: str, preset: WeightsEnum) -> dict[str, Any]:
    """The state dict of torchvision's weights, from the cache of torch.hub or else downloaded into it.

    Raises:
        ConfigurationError: it cannot be downloaded, or is damaged.
    """
    cached = Path(torch.hub.get_dir(), "checkpoints", _file_name(preset))

    def fetch(weights_only: bool) -> dict[str, Any]:
        # torch.hub announces downloads on stdout, which belongs to results; to a script they are no news at all
        seen = sys.stderr.isatty()
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(sys.stderr if seen else nowhere):
            return preset.get_state_dict(progress=seen, check_hash=True, map_location="cpu", weights_only=weights_only)

    try:
        return fetch(weights_only=True)
    except (OSError, http.client.HTTPException, *UNREADABLE) as error:
        if not cached.is_file():  # a download with a wrong hash leaves no file either
            raise ConfigurationError(
                f"weights {preset.name} of {name} could not be downloaded from {preset.url} "
                f"({_reason(error)}): put that file into {cached.parent}, or pass --weights FILE, or "
                "--weights none for an untrained network, or leave out --model for the bundled network, "
                "which needs no download"
            ) from error
        if not _has_published_hash(cached):
            raise ConfigurationError(
                f"the downloaded weights {cached} are damaged ({first_line(error)}): "
                "delete that file, and it is downloaded again"
            ) from error
    # Some of torchvision's oldest files are in a format that weights_only=True refuses. This one is whole and
    # torchvision's own, so it is as much to be trusted as torchvision's code.
    return fetch(weights_only=False)


def _reason(error: BaseException) -> str:
    return first_line(error).removeprefix("<urlopen error ").removesuffix(">")


def _file_name(preset: WeightsEnum) -> str:
    return Path(urlparse(preset.url).path).name


def _has_published_hash(file: Path) -> bool:
    """Whether a file's SHA-256 begins with the digits in its name, such as ``vgg16-397923af.pth``."""
    digits = re.search(r"-([0-9a-f]{8,})\.", file.name)
    return digits is not None and hashlib.sha256(file.read_bytes()).hexdigest().startswith(digits[1])
