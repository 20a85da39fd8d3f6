"""Networks by name: building them, their weights, their classes and their layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebcli.models.classes import resolve_class
    from ebcli.models.layer_listing import Layer, default_layer, layers, resolve_layer, sweep
    from ebcli.models.loading import LoadedModel, load_model
    from ebcli.models.names import model_names

_HOME = {
    "Layer": "layer_listing",
    "LoadedModel": "loading",
    "default_layer": "layer_listing",
    "layers": "layer_listing",
    "load_model": "loading",
    "model_names": "names",
    "resolve_class": "classes",
    "resolve_layer": "layer_listing",
    "sweep": "layer_listing",
}

__all__ = [
    "Layer",
    "LoadedModel",
    "default_layer",
    "layers",
    "load_model",
    "model_names",
    "resolve_class",
    "resolve_layer",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
