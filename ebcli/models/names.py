"""Names of models and of ImageNet's classes, and doubts by name. Imports neither torch nor torchvision."""

import ast
import importlib.util
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ebcli.models.keywords import BUNDLED, CLASSIFICATION
from ebcli.models.sources import plugin_names

# @register_model() or @register_model("name"), perhaps other decorators, and a function
_REGISTRATION = re.compile(
    r"^@register_model\((?:name=)?(?:[\"'](\w+)[\"'])?\)\n(?:.*\n)*?def (\w+)", re.MULTILINE
)

# Of the family with less than 90% of its maps in the half of the picture with the object, measured on one small network
_TRANSFORMER = re.compile(r"(^|[/_-])(vit|deit3?|beit(v2)?|dinov2|eva(02)?)([._-]|$)")


def model_names(task: str = CLASSIFICATION) -> list[str]:
    """Names of the models of torchvision, the bundled one included, then those of plug-ins; each part sorted.

    timm and the Hugging Face hub have too many to list.

    Args:
        task: ``"classification"``, ``"detection"``, ``"segmentation"`` or ``"video"``.

    Examples:
        >>> import ebcli
        >>> {"efficientnet_lite0", "resnet50", "vgg16"} <= set(ebcli.model_names())
        True
        >>> ebcli.model_names("detection")[0]
        'fasterrcnn_mobilenet_v3_large_320_fpn'
    """
    names = [*torchvision_names(task)]
    if task == CLASSIFICATION:
        names += plugin_names()
    return names


@lru_cache
def torchvision_names(task: str = CLASSIFICATION) -> list[str]:
    """Names of torchvision's networks for a task, sorted; the bundled network is among the classifiers.

    They are parsed from torchvision's source code: importing it takes seconds, too long for ``--help`` or for
    completing a name. If the source code is missing (a frozen application), torchvision is imported.
    """
    is_classification = task == CLASSIFICATION  # the other tasks have sub-packages
    names = {BUNDLED} if is_classification else set()
    for file in source_files("*.py" if is_classification else f"{task}/*.py"):
        registrations = _REGISTRATION.findall(file.read_text(encoding="utf-8"))
        names |= {name or function for name, function in registrations}
    if names <= {BUNDLED}:
        from torchvision import models

        names.update(models.list_models(module=models if is_classification else getattr(models, task)))
    return sorted(names)


def source_files(pattern: str) -> list[Path]:
    """The source files of ``torchvision.models`` that match a pattern."""
    spec = importlib.util.find_spec("torchvision")  # finds a top-level package without importing it
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [
        file for folder in spec.submodule_search_locations for file in Path(folder, "models").glob(pattern)
    ]


@lru_cache
def imagenet_classes() -> Sequence[str]:
    """The class names in the order of the logits.

    They are parsed, as importing torchvision takes seconds; if its source code is missing (a frozen application), it is
    imported.
    """
    for file in source_files("_meta.py"):
        text = file.read_text(encoding="utf-8")
        match = re.search(r"^_IMAGENET_CATEGORIES = (\[[^]]*\])", text, re.MULTILINE)
        if match:
            return ast.literal_eval(match[1])
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def caveat(name: str) -> str | None:
    """A sentence about the maps of a network, by its name, if they were measured to be less faithful."""
    if not _TRANSFORMER.search(name):
        return None
    return (
        f"{name}'s maps may be wrong in part: in a small vision transformer that was measured, "
        "89% of a map was in the half of the picture with the object (see Measurements in the documentation)"
    )
