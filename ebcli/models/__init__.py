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

_HOME = {
    "Detection": "ebcli.models.detection",
    "DetectionScores": "ebcli.models.detection",
    "Layer": "ebcli.models.layer_listing",
    "LoadedModel": "ebcli.models.loaded",
    "ModelSource": "ebcli.models.sources.base",
    "ModelSpec": "ebcli.models.spec",
    "Preprocessing": "ebcli.models.preprocessing",
    "default_layer": "ebcli.models.layer_listing",
    "detections": "ebcli.models.detection",
    "layers": "ebcli.models.layer_listing",
    "load_model": "ebcli.models.loading",
    "model_names": "ebcli.models.names",
    "read_class_names": "ebcli.models.classes",
    "resolve_class": "ebcli.models.classes",
    "resolve_layer": "ebcli.models.layer_listing",
    "layer_per_resolution": "ebcli.models.layer_listing",
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


__getattr__, __dir__ = lazily(__name__, _HOME)
