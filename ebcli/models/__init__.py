"""Networks by name: architecture, weights, classes and layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebcli.imports import lazily

if TYPE_CHECKING:
    from ebcli.models.boxes import Candidates as Candidates
    from ebcli.models.boxes import Detection as Detection
    from ebcli.models.classes import matching_classes as matching_classes
    from ebcli.models.classes import read_class_names as read_class_names
    from ebcli.models.classes import resolve_class as resolve_class
    from ebcli.models.default_layers import default_layer as default_layer
    from ebcli.models.default_layers import layer_per_resolution as layer_per_resolution
    from ebcli.models.detection import DetectionScores as DetectionScores
    from ebcli.models.detection import detections as detections
    from ebcli.models.layer_listing import Layer as Layer
    from ebcli.models.layer_listing import layers as layers
    from ebcli.models.layer_listing import resolve_layer as resolve_layer
    from ebcli.models.loaded import LoadedModel as LoadedModel
    from ebcli.models.loading import load_model as load_model
    from ebcli.models.names import model_names as model_names
    from ebcli.models.preprocessing import Preprocessing as Preprocessing
    from ebcli.models.sources.base import ModelSource as ModelSource
    from ebcli.models.spec import ModelSpec as ModelSpec

_OFFERED = {
    "ebcli.models.boxes": "Candidates Detection",
    "ebcli.models.classes": "matching_classes read_class_names resolve_class",
    "ebcli.models.detection": "DetectionScores detections",
    "ebcli.models.default_layers": "default_layer layer_per_resolution",
    "ebcli.models.layer_listing": "Layer layers resolve_layer",
    "ebcli.models.loaded": "LoadedModel",
    "ebcli.models.loading": "load_model",
    "ebcli.models.names": "model_names",
    "ebcli.models.preprocessing": "Preprocessing",
    "ebcli.models.sources.base": "ModelSource",
    "ebcli.models.spec": "ModelSpec",
}

if not TYPE_CHECKING:  # which would take misspelt names for attributes
    __getattr__, __dir__ = lazily(__name__, _OFFERED)
