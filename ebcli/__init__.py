"""Saliency maps by Excitation Backprop for PyTorch networks.

Everything is imported on first use, so that ``import ebcli`` costs nothing and leaves torch alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebcli.imports import installed_version, lazily

if TYPE_CHECKING:
    from ebcli import captum as captum
    from ebcli.drawing.api import draw_map as draw_map
    from ebcli.eb import ExcitationMode as ExcitationMode
    from ebcli.eb import ExcitationResult as ExcitationResult
    from ebcli.eb import LinearMap as LinearMap
    from ebcli.eb import check_rule as check_rule
    from ebcli.eb import disable as disable
    from ebcli.eb import enable as enable
    from ebcli.eb import excitation_backprop as excitation_backprop
    from ebcli.eb import excitation_mode as excitation_mode
    from ebcli.eb import pass_through as pass_through
    from ebcli.eb import residual_sum as residual_sum
    from ebcli.eb import rule as rule
    from ebcli.eb import unregister as unregister
    from ebcli.eb import weighted_sum as weighted_sum
    from ebcli.errors import ConfigurationError as ConfigurationError
    from ebcli.errors import EbcliError as EbcliError
    from ebcli.errors import ImageError as ImageError
    from ebcli.errors import LayerError as LayerError
    from ebcli.errors import NonFiniteError as NonFiniteError
    from ebcli.errors import OutputError as OutputError
    from ebcli.errors import RuleError as RuleError
    from ebcli.errors import UnsupportedOpError as UnsupportedOpError
    from ebcli.models import Candidates as Candidates
    from ebcli.models import Detection as Detection
    from ebcli.models import DetectionScores as DetectionScores
    from ebcli.models import LoadedModel as LoadedModel
    from ebcli.models import ModelSource as ModelSource
    from ebcli.models import Preprocessing as Preprocessing
    from ebcli.models import default_layer as default_layer
    from ebcli.models import detections as detections
    from ebcli.models import layers as layers
    from ebcli.models import load_model as load_model
    from ebcli.models import model_names as model_names
    from ebcli.run.explain import explain as explain
    from ebcli.run.quantus import quantus_explain as quantus_explain
    from ebcli.run.saliency import Saliency as Saliency
    from ebcli.run.watch import Watch as Watch

    __version__: str

_OFFERED = {
    "ebcli.drawing.api": "draw_map",
    "ebcli.eb": "ExcitationMode ExcitationResult LinearMap check_rule disable enable excitation_backprop "
    "excitation_mode pass_through residual_sum rule unregister weighted_sum",
    "ebcli.errors": "ConfigurationError EbcliError ImageError LayerError NonFiniteError OutputError RuleError "
    "UnsupportedOpError",
    "ebcli.models": "Candidates Detection DetectionScores LoadedModel ModelSource Preprocessing default_layer "
    "detections layers load_model model_names",
    "ebcli.run.explain": "explain",
    "ebcli.run.quantus": "quantus_explain",
    "ebcli.run.saliency": "Saliency",
    "ebcli.run.watch": "Watch",
}

_get, __dir__ = lazily(__name__, _OFFERED, "__version__")


if not TYPE_CHECKING:  # which would take misspelt names for attributes

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return installed_version()
        if name == "captum":  # a module, which needs the package
            return import_module("ebcli.captum")
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
