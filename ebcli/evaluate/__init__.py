"""Measuring the faithfulness of saliency maps: metrics, and the tests behind ``eb-saliency benchmark``.

The metrics accept maps of any method:

    from ebcli.evaluate import pointing_hit, resized
    pointing_hit(resized(saliency, (width, height)), mask)      # 1.0 if the maximum lies on the object

Everything is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebcli.imports import lazily

if TYPE_CHECKING:
    from ebcli.evaluate.curves import perturbation_curve as perturbation_curve
    from ebcli.evaluate.metrics import area_under as area_under
    from ebcli.evaluate.metrics import bounding_box as bounding_box
    from ebcli.evaluate.metrics import grid_hit as grid_hit
    from ebcli.evaluate.metrics import grid_score as grid_score
    from ebcli.evaluate.metrics import intersection_over_union as intersection_over_union
    from ebcli.evaluate.metrics import is_difficult as is_difficult
    from ebcli.evaluate.metrics import pointing_hit as pointing_hit
    from ebcli.evaluate.metrics import rank_correlation as rank_correlation
    from ebcli.evaluate.metrics import resized as resized
    from ebcli.evaluate.metrics import structural_similarity as structural_similarity

_OFFERED = {
    "ebcli.evaluate.curves": "perturbation_curve",
    "ebcli.evaluate.metrics": "area_under bounding_box grid_hit grid_score intersection_over_union is_difficult "
    "pointing_hit rank_correlation resized structural_similarity",
}

if not TYPE_CHECKING:  # which would take misspelt names for attributes
    __getattr__, __dir__ = lazily(__name__, _OFFERED)
