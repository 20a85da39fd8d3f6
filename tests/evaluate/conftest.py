"""What the tests of eb-benchmark share."""

from __future__ import annotations

import pytest
from colours import load_colours


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is one that knows colours."""
    monkeypatch.setattr("ebcli.evaluate.subject.load_model", load_colours)
