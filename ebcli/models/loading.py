"""From a name to a network that is ready to look at images."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torchvision.models
from torch import nn
from torchvision.models import WeightsEnum
from torchvision.transforms._presets import ImageClassification

import ebcli.models.efficientnet_lite  # noqa: F401, registers the bundled network with torchvision
from ebcli.errors import ConfigurationError, closest
from ebcli.models.checkpoint import UNREADABLE, classes_in, first_line, load_checkpoint, read_checkpoint
from ebcli.models.names import BUNDLED, model_names

UNTRAINED = "none"
IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class LoadedModel:
    """A network and what is needed to feed it and to read its output.

    Attributes:
        name: the name it was loaded by, such as ``"vgg16"``.
        net: images (B, 3, H, W) to logits (B, num_classes); in evaluation mode, on its device.
        transforms: the preprocessing the weights were trained with, a preset of torchvision with
            ``resize_size``, ``crop_size``, ``mean``, ``std``, ``interpolation`` and ``antialias``.
        categories: the class names in the order of the logits, or None where they are unknown.
        weights: the name of the weights, the checkpoint's path, or ``"none"``.

    Examples:
        >>> import ebcli
        >>> from PIL import Image
        >>> loaded = ebcli.load_model()
        >>> loaded.transforms(Image.open("sample_images/coffee.jpg")).shape
        torch.Size([3, 224, 224])
        >>> loaded.categories[967]
        'espresso'
    """

    name: str
    net: nn.Module
    transforms: ImageClassification
    categories: tuple[str, ...] | None
    weights: str


def load_model(
    name: str = BUNDLED,
    weights: str | os.PathLike[str] | None = "DEFAULT",
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Build a torchvision classifier, fill it with weights and put it on a device.

    Without a name it is the bundled EfficientNet-Lite0, which needs no download. ``load_model("vgg16")`` takes
    torchvision's best weights, ``load_model("resnet50", weights="finetuned.pth")`` a checkpoint of your own.

    A checkpoint file sets the number of classes; with 1000 they are taken to be ImageNet's. It gets the
    preprocessing of torchvision's default weights, or of those weights whose file name it bears. GoogLeNet
    and Inception v3 rescale their input as torchvision's weights expect. Untrained networks are the same in
    each call, and the caller's random numbers are left alone.

    Args:
        name: one of ``model_names()``.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file (``torch.save`` or
            safetensors; state dicts, with or without the usual wrappers), or ``"none"``.
        device: any device torch knows.

    Raises:
        ConfigurationError: no such model, weights or device, a checkpoint that does not fit, or a
            failed download.

    Examples:
        >>> import ebcli
        >>> ebcli.load_model().name
        'efficientnet_lite0'
        >>> net = ebcli.load_model("resnet18", weights="none").net
        >>> net.training
        False
    """
    name, where = _checked_name(name), _checked_device(device)
    enum = torchvision.models.get_model_weights(name)
    label = str(weights)
    state: dict[str, Any] | None
    if label.lower() == UNTRAINED:
        label, preset, state = UNTRAINED, enum["DEFAULT"], None
    elif (member := label.removeprefix(f"{enum.__name__}.")) in enum.__members__:
        preset = enum[member]
        label, state = preset.name, _published_state(name, preset)
    elif Path(label).is_file():
        preset = next((m for m in enum if _file_name(m) == Path(label).name), enum["DEFAULT"])
        state = read_checkpoint(Path(label))
    else:
        valid = [*enum.__members__, UNTRAINED]
        raise ConfigurationError(
            f"{label!r} is neither a file nor weights of {name}, which has {', '.join(valid)}"
            + (f": {hint}" if (hint := closest(label, valid)) else "")
        )
    net = _build(name, preset, IMAGENET_CLASSES)
    count: int | None = IMAGENET_CLASSES
    if state is not None:
        count = classes_in(state, net)
        if count not in (None, IMAGENET_CLASSES):
            net = _build(name, preset, count)
        load_checkpoint(net, state, source=f"{label} for {name}")
    # Some weights (VGG-16's IMAGENET1K_FEATURES) name no classes, for their classifier is not trained
    categories = preset.meta["categories"] if count == IMAGENET_CLASSES else None
    names = tuple(categories) if categories else None
    return LoadedModel(name, net.eval().to(where), preset.transforms(), names, label)


def _checked_name(name: str) -> str:
    valid, lower = model_names(), name.lower()  # torchvision's own lookup ignores case
    if lower not in valid:
        hint = closest(name, valid) or f"give one of torchvision's classifiers, such as vgg16, or {BUNDLED}"
        raise ConfigurationError(f"there is no model {name!r}: {hint}")
    return lower


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ConfigurationError(
            f"device {str(device)!r} cannot be used here ({first_line(error)}): 'cpu' always can"
        ) from error
    return found


def _build(name: str, preset: WeightsEnum, num_classes: int) -> nn.Module:
    """The network with random weights, made as torchvision makes it for the weights ``preset``."""
    options: dict[str, Any] = {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"transform_input": True, "aux_logits": False, "init_weights": False}
    if name.startswith("vit_"):  # has one position embedding a token
        options["image_size"] = preset.transforms().crop_size[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return torchvision.models.get_model(name, weights=None, **options)


def _published_state(name: str, preset: WeightsEnum) -> dict[str, Any]:
    """The state dict of torchvision's weights, from the cache of torch.hub or else downloaded into it."""
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
