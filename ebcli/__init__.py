"""Saliency maps by Excitation Backprop for PyTorch networks.

Everything is imported on first use, so that ``import ebcli`` costs nothing and leaves torch alone.
"""

import sys
from importlib import import_module
from typing import Any

from ebcli.imports import installed_version, lazily

_get, __dir__ = lazily(__name__, "__version__")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name == "captum":  # a module, which needs the package
        return import_module("ebcli.captum")
    value = _get(name)
    if engine := sys.modules.get("ebcli.eb.result"):  # notebooks display results as maps, which needs drawing
        engine.ExcitationResult._repr_png_ = lambda result: import_module("ebcli.drawing.api").png(result)
    return value
