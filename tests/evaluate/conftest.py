"""What the tests of eb-benchmark share."""

from __future__ import annotations

import pytest
from color_net import load_colours


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is one that knows colours."""
    monkeypatch.setattr("ebcli.evaluate.model_under_test.load_model", load_colours)
