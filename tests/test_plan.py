"""A plan is right or is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ebcli.errors import ConfigurationError
from ebcli.plan import RunPlan


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": ()}, "no image"),
        ({"top_k": 0}, "top-k is 0"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"shard": (0, 4)}, "no shard 0/4"),
        ({"shard": (5, 4)}, "no shard 5/4"),
        ({"exclude": ("*.jpg", "")}, "pattern is empty"),
        ({"format": "bmp"}, "png, jpg, webp"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunPlan(**{"images": (Path("a.jpg"),), **wrong})


def test_a_plan_cannot_change_under_way() -> None:
    plan = RunPlan((Path("a.jpg"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.top_k = 2  # type: ignore[misc]
