"""Whether saliency maps tell the truth: the field's measures of it, and the tests behind ``eb-benchmark``.

The measures take anybody's maps:

    from ebcli.evaluate import pointing_hit, resized
    pointing_hit(resized(saliency, (width, height)), mask)      # 1.0: its maximum lies on the object

Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebcli.evaluate.curves import perturbation_curve
    from ebcli.evaluate.metrics import (
        area_under,
        bounding_box,
        grid_hit,
        grid_score,
        intersection_over_union,
        is_difficult,
        pointing_hit,
        rank_correlation,
        resized,
        structural_similarity,
    )

_HOME = {
    "area_under": "metrics",
    "bounding_box": "metrics",
    "grid_hit": "metrics",
    "grid_score": "metrics",
    "intersection_over_union": "metrics",
    "is_difficult": "metrics",
    "perturbation_curve": "curves",
    "pointing_hit": "metrics",
    "rank_correlation": "metrics",
    "resized": "metrics",
    "structural_similarity": "metrics",
}

__all__ = [
    "area_under",
    "bounding_box",
    "grid_hit",
    "grid_score",
    "intersection_over_union",
    "is_difficult",
    "perturbation_curve",
    "pointing_hit",
    "rank_correlation",
    "resized",
    "structural_similarity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
