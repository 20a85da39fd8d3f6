"""Model sources: each one is a class in a module of this package, or in a plug-in.

A model name starts with the prefix of its source, as in ``timm/resnet18``; torchvision has none, and factories contain
a colon. Importing this package does not import torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ebcli.errors import ConfigurationError, closest
from ebcli.imports import MODELS, guard_user_code, load_plugin, name_in_errors, plugins
from ebcli.models.keywords import BUNDLED

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ebcli.models.sources.base import ModelSource


_PREFIXES = {
    "open_clip": "open_clip:OpenClip",
    "clip": "huggingface:Clip",
    "timm": "timm:Timm",
    "hf": "huggingface:HuggingFace",
    "ultralytics": "ultralytics:Ultralytics",
}
_WITH_TEXTS = {"clip", "open_clip"}  # known before they are imported
_FILES = {".onnx": "onnx:Onnx", ".pt2": "exported:Exported"}
_KERAS = {".keras", ".h5", ".hdf5"}
_FACTORY = re.compile(r"(.*\.py|[\w.]+):\w+")


def source_of(name: str) -> tuple[str, ModelSource]:
    """Find the source of a model; return the name in the source's spelling, and the source.

    Raises:
        ConfigurationError: there is no such model, or its source cannot be imported.
    """
    prefix, slash, local_name = name.partition("/")
    points = {point.name: point for point in plugins(MODELS)}
    points |= {source_prefix: _built_in(target) for source_prefix, target in _PREFIXES.items()}
    if prefix not in points:
        refuse_keras(name)
    target = _target_of(name)
    if target:
        point = _built_in(target)
        local_name = name
    elif prefix not in points and name.endswith((".pt", ".pth", ".torchscript")):
        raise ConfigurationError(
            f"{name} is no model: export a network of TorchScript with torch.export to a .pt2 file, "
            "or name the network of a checkpoint with --model and pass the file to --weights"
        )
    elif not slash:
        point = _built_in("torchvision:Torchvision")
        local_name = name
    elif prefix in points:
        point = points[prefix]
    else:
        *prefixes, last = (f"{source_prefix}/NAME" for source_prefix in sorted(points))
        hint = closest(prefix, points) or f"use {', '.join(prefixes)} or {last}"
        raise ConfigurationError(f"unknown model source {prefix!r}: {hint}")
    source_class = load_plugin(point)
    if source_class is None:
        problem = f"the plug-in for {name!r} cannot be imported"
        raise ConfigurationError(f"{problem}: repair or uninstall that package")
    with guard_user_code(name), name_in_errors(name):
        source: ModelSource = source_class(local_name)
        return name.removesuffix(local_name) + source.name, source


def _target_of(name: str) -> str | None:
    """The source of a file, a factory or the bundled network; None for other names."""
    if _FACTORY.fullmatch(name):
        return "factories:Factory"
    if name.endswith(".py"):
        raise ConfigurationError(
            f"{name} is a file: add the function that returns the network, as in {name}:FUNCTION"
        )
    if name.lower() == BUNDLED:
        return "bundled:Bundled"
    return _FILES.get(Path(name).suffix.lower())


def _built_in(target: str) -> EntryPoint:
    from importlib.metadata import EntryPoint  # imports all that reads e-mail, which --help can do without

    return EntryPoint(target.partition(":")[0], f"{__name__}.{target}", MODELS)


def is_network_file(name: str) -> bool:
    """Whether a model is a file that has the network itself."""
    return Path(name).suffix.lower() in _FILES


def refuse_keras(name: str) -> None:
    """Raise ConfigurationError if a model or its weights are a file of Keras."""
    if Path(name).suffix.lower() in _KERAS:
        raise ConfigurationError(
            f"{name} is a file of Keras, but networks of PyTorch are explained: convert the network to ONNX, for "
            "example with tf2onnx, and name the .onnx file with --model"
        )


def takes_texts(name: str) -> bool:
    """Whether a model compares images with texts, so that its classes are whatever the user describes."""
    prefix = name.partition("/")[0]
    return prefix in _WITH_TEXTS or (prefix == "hf" and source_of(name)[1].takes_texts())


def answers_questions(name: str) -> bool:
    """Whether a model is a vision-language model, which says something about a photo."""
    if not name.startswith("hf/"):
        return False
    from ebcli.models.sources.vision_language import VisionLanguage  # which imports torch

    return VisionLanguage.is_name(name)


def plugin_names() -> list[str]:
    """Names of the models that plug-ins list, sorted; plug-ins that cannot be imported are skipped."""
    names = []
    for point in plugins(MODELS):
        if point.name not in _PREFIXES:
            local_names = load_plugin(point, lambda source: list(source.names())) or ()
            names += [f"{point.name}/{name}" for name in local_names]
    return sorted(names)
