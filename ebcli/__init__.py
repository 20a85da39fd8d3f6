"""Saliency maps by Excitation Backprop for PyTorch networks.

Everything is imported on first use, so that ``import ebcli`` costs nothing and leaves torch alone.
"""

from importlib import import_module
from typing import Any

from ebcli.imports import installed_version, lazily

# type checkers read the same names in __init__.pyi
_get, __dir__ = lazily(
    __name__,
    {
        "ebcli.drawing.api": "draw_map",
        "ebcli.eb": "ExcitationMode ExcitationResult LinearMap check_rule disable enable excitation_backprop "
        "excitation_mode pass_through residual_sum rule unregister weighted_sum",
        "ebcli.errors": "ConfigurationError EbcliError ImageError LayerError NonFiniteError OutputError RuleError "
        "UnsupportedOpError",
        "ebcli.methods.call": "MethodCall MethodMaps",
        "ebcli.methods.table": "method",
        "ebcli.models": "Candidates Detection DetectionScores LoadedModel ModelSource Preprocessing default_layer "
        "detections layers load_model model_names",
        "ebcli.run.ask": "Answer ask",
        "ebcli.run.explain": "explain quantus_explain",
        "ebcli.run.saliency": "Saliency",
        "ebcli.run.watch": "Watch",
    },
    "__version__",
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name == "captum":  # a module, which needs the package
        return import_module("ebcli.captum")
    return _get(name)
