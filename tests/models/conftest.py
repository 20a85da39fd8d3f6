"""These tests are on the rule that explains neurons step by step; tests/eb/test_joint.py is on the other one."""

import pytest

import ebcli


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ebcli.excitation_backprop.__kwdefaults__, "joint", False)
