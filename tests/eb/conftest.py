"""These tests are on the rule that explains neurons step by step; test_joint.py is on the other one, and
test_spelled_out.py on both."""

import pytest

from ebcli.eb.graph import BackwardGraph


@pytest.fixture(autouse=True)
def step_by_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] not in ("test_joint", "test_spelled_out"):
        monkeypatch.setattr(BackwardGraph, "explains_jointly", lambda *_: False)
