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

_OFFERED = {
    "ebcli.evaluate.curves": "perturbation_curve",
    "ebcli.evaluate.metrics": "area_under bounding_box grid_hit grid_score intersection_over_union is_difficult "
    "pointing_hit rank_correlation resized structural_similarity",
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

__getattr__, __dir__ = lazily(__name__, _OFFERED)
