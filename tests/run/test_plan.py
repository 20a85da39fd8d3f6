"""A plan is right or is refused."""

from pathlib import Path
from typing import Any

import pytest
from plans import make_plan

from ebcli.errors import ConfigurationError
from ebcli.run.plan import RunPlan


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": ()}, "no image"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"shard": (0, 4)}, "shard 0/4 does not exist"),
        ({"exclude": ("*.jpg", "")}, "pattern is empty"),
        ({"style": "blur"}, "unknown style 'blur': choose overlay, heatmap"),
        ({"signed": True, "contrastive": False}, "marginal maps have no negative values"),
        ({"signed": True, "style": "mask"}, "style mask cannot show negative values"),
        ({"style": "mask", "format": "jpg"}, "jpg lacks: choose png or webp"),
        ({"percentile": 0.0}, "percentile is 0"),
        ({"percentile": float("nan")}, "percentile is nan"),
        ({"vmin": -1.0}, "vmin is -1"),
        ({"vmin": 1.0, "signed": True}, "symmetric about 0"),
        ({"vmax": 0.0}, "vmax is 0, but it must be greater than vmin, 0"),
        ({"vmax": float("nan")}, "vmax is nan"),
        ({"vmax": float("inf")}, "vmax is inf"),
        ({"percentile": 99.0, "vmax": 2.0}, "drop one of them"),
        ({"compare_with": ("marginal",)}, "into panels: add --panel"),
        (
            {"compare_with": ("marginal",), "panel": True, "contrastive": False},
            "drop --compare-with marginal",
        ),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_plan(**{"images": ("a.jpg",), **wrong})


def test_a_crop_shows_no_whole_image_and_a_size_does() -> None:
    for values, fit in (({}, "whole"), ({"resize": 160}, "whole"), ({"crop": 160}, None)):
        plan = RunPlan.from_values(images=(Path("a.jpg"),), **values)
        assert plan.model.preprocessing.fit == fit
