"""These tests are on the rule that explains neurons step by step, except those of some modules."""

import engines
import pytest

import ebcli

# what the next engine does, and this one does not
collect_ignore = (
    []
    if engines.NEXT
    else [
        "test_equal_functions.py",
        "test_batch_axes.py",
        "test_half_precision.py",
        "test_everyday_operations.py",
        "test_contrastive_mass.py",
    ]
)

BOTH_RULES = [
    "test_joint",
    "test_spelled_out",
    "test_recurrent",
    "test_spellings",
    "test_rule_choice",
    "test_both_rules",
    "test_equal_functions",
    "test_batch_axes",
    "test_half_precision",
    "test_everyday_operations",
]


@pytest.fixture(autouse=True)
def step_by_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] not in BOTH_RULES:
        monkeypatch.setitem(ebcli.excitation_backprop.__kwdefaults__, "joint", False)
