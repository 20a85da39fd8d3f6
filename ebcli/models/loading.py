"""From a name to a network that is ready to look at images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms._presets import ImageClassification

from ebcli.eb.capture import single_tensor
from ebcli.errors import ConfigurationError, closest
from ebcli.models.checkpoint import first_line, read_checkpoint
from ebcli.models.classes import read_class_names
from ebcli.models.names import BUNDLED
from ebcli.models.preprocessing import Preprocessing
from ebcli.models.sources import source_of
from ebcli.models.sources.base import DEFAULT, ModelSource

UNTRAINED = "none"


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
        files: what it was made of, as far as that can change under the same name: a checkpoint, a factory's file.

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
    files: tuple[Path, ...] = ()


def load_model(
    name: str = BUNDLED,
    weights: str | os.PathLike[str] | None = DEFAULT,
    device: str | torch.device = "cpu",
    *,
    classes: str | os.PathLike[str] | Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
) -> LoadedModel:
    """Build a classifier, fill it with weights and put it on a device.

    Without a name it is the bundled EfficientNet-Lite0, which needs no download. ``load_model("vgg16")`` takes
    torchvision's best weights, ``load_model("resnet50", weights="finetuned.pth")`` a checkpoint of your own,
    ``load_model("timm/convnext_tiny")`` and ``load_model("hf/microsoft/resnet-50")`` networks of timm and Hugging Face
    (``hf/my_model`` one in a directory), and ``load_model("nets.py:small", classes="labels.txt")`` what the function
    ``small`` in nets.py returns; that file is run.

    A checkpoint file sets the number of classes; a network of torchvision or timm with 1000 is taken to know
    ImageNet's. Untrained networks are the same in each call, and the caller's random numbers are left alone.

    Args:
        name: one of ``model_names()``, ``timm/NAME``, ``hf/NAME``, ``FILE.py:FACTORY`` or ``MODULE:FACTORY``.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file (``torch.save`` or
            safetensors; state dicts, with or without the usual wrappers), or ``"none"``. For a factory, both
            ``"DEFAULT"`` and ``"none"`` are what it returns.
        device: any device torch knows.
        classes: the class names in the order of the logits, or a file of them; see ``read_class_names``.
        preprocessing: what to do otherwise than the weights' own preprocessing does.

    Raises:
        ConfigurationError: no such model, weights or device, a checkpoint, class names or a preprocessing that do
            not fit, or a failed download.

    Examples:
        >>> import ebcli
        >>> ebcli.load_model().name
        'efficientnet_lite0'
        >>> net = ebcli.load_model("resnet18", weights="none").net
        >>> net.training
        False
    """
    where = _checked_device(device)
    own = _names(classes)
    changes = preprocessing or Preprocessing()
    name, source = source_of(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net, label, files = _filled(source, str(weights), name)
    net = net.eval().to(where)
    preset = changes.applied_to(source.transforms(net, label))
    count = source.num_classes(net)
    if count is None or changes.crop is not None:
        count = _tried_out(net, preset.crop_size[0], name)
    if own is not None and len(own) != count:
        raise ConfigurationError(f"there are {len(own)} class names, but {name} tells {count} classes apart")
    names = source.categories(net, label) if own is None else own
    fitting = tuple(names) if names is not None and len(names) == count else None
    return LoadedModel(name, net, preset, fitting, label, files)


def _filled(source: ModelSource, weights: str, name: str) -> tuple[nn.Module, str, tuple[Path, ...]]:
    """The network, the name of its weights, and the files that it is made of."""
    file = Path(weights)
    if weights.lower() == UNTRAINED:
        net, label, files = source.build(), UNTRAINED, source.files(UNTRAINED)
    elif (found := source.published(weights)) is not None:
        net, label, files = source.pretrained(found), found, source.files(found)
    elif file.is_file():
        net, label = source.restored(read_checkpoint(file), f"{weights} for {name}"), weights
        files = [*source.files(weights), file]
    else:
        valid = [*source.weights(), UNTRAINED]
        raise ConfigurationError(
            f"{weights!r} is neither a file nor weights of {name}, which has {', '.join(valid)}"
            + (f": {hint}" if (hint := closest(weights, valid)) else "")
        )
    return net, label, tuple(files)


def _names(classes: str | os.PathLike[str] | Sequence[str] | None) -> Sequence[str] | None:
    return read_class_names(Path(classes)) if isinstance(classes, (str, os.PathLike)) else classes


def _tried_out(net: nn.Module, side: int, name: str) -> int:
    """How many classes a network tells apart, by what it makes of a black image.

    Raises:
        ConfigurationError: it takes no such image, or returns something else than logits (B, num_classes).
    """
    parameter = next(net.parameters(), torch.empty(0))
    black = torch.zeros(1, 3, side, side, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad():
            output = net(black)
    except Exception as error:  # a network of the user's own can raise anything
        raise ConfigurationError(
            f"{name} takes no input of {side} x {side} pixels ({type(error).__name__}: {first_line(error)})"
        ) from error
    logits = single_tensor(output, f"what {name} returns")
    if logits.ndim != 2 or len(logits) != 1:
        shape = "(B, " + ", ".join(map(str, logits.shape[1:])) + ")"
        raise ConfigurationError(f"{name} returns {shape} for images (B, 3, {side}, {side}), not (B, num_classes)")
    return logits.shape[1]


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ConfigurationError(
            f"device {str(device)!r} cannot be used here ({first_line(error)}): 'cpu' always can"
        ) from error
    return found
