# The names that the package offers, for type checkers; the table in __init__.py has the same

from ebcli.evaluate.faithfulness import perturbation_curve as perturbation_curve
from ebcli.evaluate.metrics import area_under as area_under
from ebcli.evaluate.metrics import best_threshold_iou as best_threshold_iou
from ebcli.evaluate.metrics import bootstrap_interval as bootstrap_interval
from ebcli.evaluate.metrics import bounding_box as bounding_box
from ebcli.evaluate.metrics import equal_area as equal_area
from ebcli.evaluate.metrics import grid_hit as grid_hit
from ebcli.evaluate.metrics import grid_score as grid_score
from ebcli.evaluate.metrics import intersection_over_union as intersection_over_union
from ebcli.evaluate.metrics import is_difficult as is_difficult
from ebcli.evaluate.metrics import pointing_hit as pointing_hit
from ebcli.evaluate.metrics import rank_correlation as rank_correlation
from ebcli.evaluate.metrics import resized as resized
from ebcli.evaluate.metrics import structural_similarity as structural_similarity
