"""These tests are on the rule that explains neurons step by step, except those of some modules."""

import pytest

import ebcli

BOTH_RULES = (
    "test_joint test_spelled_out test_recurrent test_spellings test_rule_choice test_both_rules test_equal_functions "
    "test_batch_axes test_half_precision test_everyday_operations"
).split()


@pytest.fixture(autouse=True)
def step_by_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] not in BOTH_RULES:
        monkeypatch.setitem(ebcli.excitation_backprop.__kwdefaults__, "joint", False)
