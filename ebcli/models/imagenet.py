"""The names of ImageNet's 1000 classes, from torchvision's source code. Imports neither torch nor torchvision."""

import ast
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path


def source_files(pattern: str) -> list[Path]:
    """The source files of ``torchvision.models`` that match a pattern."""
    spec = importlib.util.find_spec("torchvision")  # finds a top-level package without importing it
    folders = (spec.submodule_search_locations if spec else None) or []
    return [file for folder in folders for file in Path(folder, "models").glob(pattern)]


@lru_cache
def imagenet_classes() -> Sequence[str]:
    """The class names in the order of the logits.

    They are parsed, as importing torchvision takes seconds; if its source code is missing (a frozen application), it is
    imported.
    """
    for file in source_files("_meta.py"):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_IMAGENET_CATEGORIES":
                names: list[str] = ast.literal_eval(statement.value)
                return names
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
