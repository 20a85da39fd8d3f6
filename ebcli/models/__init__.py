"""Networks by name: architecture, weights, classes and layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebcli.imports import lazily

if TYPE_CHECKING:
    from ebcli.models.classes import read_class_names, resolve_class
    from ebcli.models.detection import Detection, DetectionScores, detections
    from ebcli.models.layer_listing import Layer, default_layer, layer_per_resolution, layers, resolve_layer
    from ebcli.models.loaded import LoadedModel
    from ebcli.models.loading import load_model
    from ebcli.models.names import model_names
    from ebcli.models.preprocessing import Preprocessing
    from ebcli.models.sources.base import ModelSource
    from ebcli.models.spec import ModelSpec

_OFFERED = {
    "ebcli.models.classes": "read_class_names resolve_class",
    "ebcli.models.detection": "Detection DetectionScores detections",
    "ebcli.models.layer_listing": "Layer default_layer layer_per_resolution layers resolve_layer",
    "ebcli.models.loaded": "LoadedModel",
    "ebcli.models.loading": "load_model",
    "ebcli.models.names": "model_names",
    "ebcli.models.preprocessing": "Preprocessing",
    "ebcli.models.sources.base": "ModelSource",
    "ebcli.models.spec": "ModelSpec",
}

__all__ = [
    "Detection",
    "DetectionScores",
    "Layer",
    "LoadedModel",
    "ModelSource",
    "ModelSpec",
    "Preprocessing",
    "default_layer",
    "detections",
    "layer_per_resolution",
    "layers",
    "load_model",
    "model_names",
    "read_class_names",
    "resolve_class",
    "resolve_layer",
]

__getattr__, __dir__ = lazily(__name__, _OFFERED)
