"""Measuring the faithfulness of saliency maps: metrics, and the tests behind ``eb-saliency benchmark``.

The metrics accept maps of any method:

    from ebcli.evaluate import pointing_hit, resized
    pointing_hit(resized(saliency, (width, height)), mask)      # 1.0 if the maximum lies on the object

Everything is imported on first use.
"""

from ebcli.imports import lazily

# type checkers read the same names in __init__.pyi
__getattr__, __dir__ = lazily(
    __name__,
    {
        "ebcli.evaluate.faithfulness": "perturbation_curve",
        "ebcli.evaluate.metrics": "area_under best_threshold_iou bootstrap_interval bounding_box equal_area grid_hit "
        "grid_score intersection_over_union is_difficult pointing_hit rank_correlation resized structural_similarity",
    },
)
