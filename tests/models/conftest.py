"""These tests are on the rule that explains neurons step by step; tests/eb/test_joint.py is on the other one."""

import pytest

from ebcli.eb.graph import BackwardGraph


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackwardGraph, "explains_jointly", lambda *_: False)
