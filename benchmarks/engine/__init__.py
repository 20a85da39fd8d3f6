"""The next engine of ``ebcli.eb``, beside it until it is lighter: the forward pass as a list of operations of ATen.

``EBCLI_ENGINE=benchmarks.engine .ci/check tests tests/eb`` runs the engine's tests with it.
"""

from benchmarks.engine.backprop import excitation_backprop, layers_on_path
from benchmarks.engine.check import check_rule
from benchmarks.engine.mode import ExcitationMode, disable, enable, excitation_mode
from benchmarks.engine.own_rules import Call, pass_through, residual_sum, rule, unregister, weighted_sum
from benchmarks.engine.products import LinearMap
from benchmarks.engine.result import ExcitationResult
from ebcli.imports import load_rules

__all__ = [
    "Call",
    "ExcitationMode",
    "ExcitationResult",
    "LinearMap",
    "check_rule",
    "disable",
    "enable",
    "excitation_backprop",
    "excitation_mode",
    "layers_on_path",
    "pass_through",
    "residual_sum",
    "rule",
    "unregister",
    "weighted_sum",
]

load_rules()  # last, because plug-ins import the names above
