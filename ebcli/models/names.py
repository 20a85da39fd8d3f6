"""The names of the available networks, found without importing torch or torchvision."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ebcli.models.sources import plugin_names

BUNDLED = "efficientnet_lite0"
ALL, INPUT = "all", "input"  # accepted in place of a layer's name


def model_names() -> list[str]:
    """The names of networks that can be told, sorted: those of torchvision and the bundled one, then plug-ins' own.

    Those of timm and of the hub of Hugging Face are too many.

    Examples:
        >>> import ebcli
        >>> {"efficientnet_lite0", "resnet50", "vgg16"} <= set(ebcli.model_names())
        True
    """
    return [*torchvision_names(), *plugin_names()]


@lru_cache
def torchvision_names() -> list[str]:
    """The names of torchvision's classifiers and of the bundled network, sorted.

    They are read from torchvision's source, for importing it takes seconds, too long for ``--help``, for
    completing a name or for refusing a wrong one. Where that source is not to be had (a frozen
    application), torchvision is imported after all.
    """
    spec = importlib.util.find_spec("torchvision")  # finds a top-level package without importing it
    folders = (spec.submodule_search_locations if spec else None) or []
    # Detection, segmentation, video and quantized networks live in sub-packages, classifiers do not
    files = [file for folder in folders for file in Path(folder, "models").glob("*.py")]
    found = {name for file in files for name in _registered(file)}
    if not found:
        from torchvision import models

        found.update(models.list_models(module=models))
    return sorted({*found, BUNDLED})


def _registered(file: Path) -> Iterator[str]:
    """The names that a source file registers with ``@register_model()`` or ``@register_model("name")``."""
    source = file.read_text(encoding="utf-8")
    if "@register_model" not in source:
        return
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "register_model":
                given = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
                yield ast.literal_eval(given[0]) if given else function.name
