"""The specification of a model checks itself, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebcli.errors import ConfigurationError
from ebcli.models import ModelSpec


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "the model's name must not be empty"),
        ({"weights": ""}, "the model's weights must not be empty"),
        ({"scores": "odds"}, "unknown scores 'odds': choose softmax, sigmoid, raw"),
        ({"class_names": Path("nowhere.txt")}, "the file of class names 'nowhere.txt' does not exist"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ModelSpec(**settings)  # type: ignore[arg-type]
