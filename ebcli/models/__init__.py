"""Networks by name: architecture, weights, classes and layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from ebcli.imports import lazily

# type checkers read the same names in __init__.pyi
__getattr__, __dir__ = lazily(
    __name__,
    {
        "ebcli.models.classes": "matching_classes read_class_names resolve_class",
        "ebcli.models.detection": "Candidates Detection DetectionScores detections",
        "ebcli.models.loaded": "LoadedModel",
        "ebcli.models.loading": "load_model",
        "ebcli.models.names": "model_names",
        "ebcli.models.network_layers": "Layer default_layer layer_per_resolution layers resolve_layer",
        "ebcli.models.sources.base": "ModelSource",
        "ebcli.models.spec": "ModelSpec Preprocessing",
    },
)
