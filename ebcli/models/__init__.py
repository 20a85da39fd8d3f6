"""Networks by name: architecture, weights, classes and layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebcli.imports import lazily

if TYPE_CHECKING:
    from ebcli.models.classes import read_class_names as read_class_names
    from ebcli.models.classes import resolve_class as resolve_class
    from ebcli.models.detection import Detection as Detection
    from ebcli.models.detection import DetectionScores as DetectionScores
    from ebcli.models.detection import detections as detections
    from ebcli.models.layer_listing import Layer as Layer
    from ebcli.models.layer_listing import default_layer as default_layer
    from ebcli.models.layer_listing import layer_per_resolution as layer_per_resolution
    from ebcli.models.layer_listing import layers as layers
    from ebcli.models.layer_listing import resolve_layer as resolve_layer
    from ebcli.models.loaded import LoadedModel as LoadedModel
    from ebcli.models.loading import load_model as load_model
    from ebcli.models.names import model_names as model_names
    from ebcli.models.preprocessing import Preprocessing as Preprocessing
    from ebcli.models.sources.base import ModelSource as ModelSource
    from ebcli.models.spec import ModelSpec as ModelSpec

_NAMES = {
    "classes": "read_class_names resolve_class",
    "detection": "Detection DetectionScores detections",
    "layer_listing": "Layer default_layer layer_per_resolution layers resolve_layer",
    "loaded": "LoadedModel",
    "loading": "load_model",
    "names": "model_names",
    "preprocessing": "Preprocessing",
    "sources.base": "ModelSource",
    "spec": "ModelSpec",
}
_HOME = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOME)
__getattr__, __dir__ = lazily(__name__, _HOME)
