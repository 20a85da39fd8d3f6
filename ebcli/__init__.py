"""Excitation Backprop saliency maps for torchvision networks.

Everything is imported on first use, so that ``import ebcli`` costs nothing and leaves torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebcli.errors import (
    ConfigurationError,
    EbcliError,
    ImageError,
    LayerError,
    OutputError,
    RuleError,
    UnsupportedOpError,
)
from ebcli.imports import installed_version, lazily

if TYPE_CHECKING:
    from ebcli.drawing.api import draw_map
    from ebcli.eb import (
        ExcitationMode,
        ExcitationResult,
        LinearMap,
        check_rule,
        disable,
        enable,
        excitation_backprop,
        excitation_mode,
        pass_through,
        residual_sum,
        rule,
        unregister,
        weighted_sum,
    )
    from ebcli.models import (
        Detection,
        DetectionScores,
        LoadedModel,
        ModelSource,
        Preprocessing,
        default_layer,
        detections,
        layers,
        load_model,
        model_names,
    )

    __version__: str

_HOME = {
    "Detection": "ebcli.models",
    "DetectionScores": "ebcli.models",
    "ExcitationMode": "ebcli.eb",
    "ExcitationResult": "ebcli.eb",
    "LinearMap": "ebcli.eb",
    "LoadedModel": "ebcli.models",
    "ModelSource": "ebcli.models",
    "Preprocessing": "ebcli.models",
    "check_rule": "ebcli.eb",
    "default_layer": "ebcli.models",
    "detections": "ebcli.models",
    "disable": "ebcli.eb",
    "draw_map": "ebcli.drawing.api",
    "enable": "ebcli.eb",
    "excitation_backprop": "ebcli.eb",
    "excitation_mode": "ebcli.eb",
    "layers": "ebcli.models",
    "load_model": "ebcli.models",
    "model_names": "ebcli.models",
    "pass_through": "ebcli.eb",
    "rule": "ebcli.eb",
    "residual_sum": "ebcli.eb",
    "unregister": "ebcli.eb",
    "weighted_sum": "ebcli.eb",
}

__all__ = [
    "ConfigurationError",
    "Detection",
    "DetectionScores",
    "EbcliError",
    "ExcitationMode",
    "ExcitationResult",
    "ImageError",
    "LayerError",
    "LinearMap",
    "LoadedModel",
    "ModelSource",
    "OutputError",
    "Preprocessing",
    "RuleError",
    "UnsupportedOpError",
    "__version__",
    "check_rule",
    "default_layer",
    "detections",
    "disable",
    "draw_map",
    "enable",
    "excitation_backprop",
    "excitation_mode",
    "layers",
    "load_model",
    "model_names",
    "pass_through",
    "residual_sum",
    "rule",
    "unregister",
    "weighted_sum",
]


_get, __dir__ = lazily(__name__, _HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    value = _get(name)
    if _HOME[name] == "ebcli.eb":
        _show_in_notebooks()
    return value


def _show_in_notebooks() -> None:
    """Let notebooks display results as maps; drawing is imported on first use."""
    from ebcli.eb.result import ExcitationResult

    def maps_as_png(result: ExcitationResult) -> bytes | None:
        from ebcli.drawing.api import png

        return png(result)

    ExcitationResult._repr_png_ = maps_as_png  # type: ignore[attr-defined]
