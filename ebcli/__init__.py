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

_OFFERED = {
    "ebcli.drawing.api": "draw_map",
    "ebcli.eb": "ExcitationMode ExcitationResult LinearMap check_rule disable enable excitation_backprop "
    "excitation_mode pass_through residual_sum rule unregister weighted_sum",
    "ebcli.models": "Detection DetectionScores LoadedModel ModelSource Preprocessing default_layer detections layers "
    "load_model model_names",
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

_get, __dir__ = lazily(__name__, _OFFERED)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    value = _get(name)
    if name in _OFFERED["ebcli.eb"].split():
        _show_in_notebooks()
    return value


def _show_in_notebooks() -> None:
    """Let notebooks display results as maps; drawing is imported on first use."""
    from ebcli.eb.result import ExcitationResult

    def maps_as_png(result: ExcitationResult) -> bytes | None:
        from ebcli.drawing.api import png

        return png(result)

    ExcitationResult._repr_png_ = maps_as_png  # type: ignore[attr-defined]
