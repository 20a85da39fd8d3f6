"""Measuring the faithfulness of saliency maps: metrics, and the tests behind ``eb-benchmark``.

The metrics accept maps of any method:

    from ebcli.evaluate import pointing_hit, resized
    pointing_hit(resized(saliency, (width, height)), mask)      # 1.0 if the maximum lies on the object

Everything is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebcli.imports import lazily

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
    "area_under": "ebcli.evaluate.metrics",
    "bounding_box": "ebcli.evaluate.metrics",
    "grid_hit": "ebcli.evaluate.metrics",
    "grid_score": "ebcli.evaluate.metrics",
    "intersection_over_union": "ebcli.evaluate.metrics",
    "is_difficult": "ebcli.evaluate.metrics",
    "perturbation_curve": "ebcli.evaluate.curves",
    "pointing_hit": "ebcli.evaluate.metrics",
    "rank_correlation": "ebcli.evaluate.metrics",
    "resized": "ebcli.evaluate.metrics",
    "structural_similarity": "ebcli.evaluate.metrics",
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


__getattr__, __dir__ = lazily(__name__, _HOME)
