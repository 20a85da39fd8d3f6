"""The next engine of ``ebcli.eb``, beside it until it is lighter: the forward pass as a list of operations of ATen.

``EBCLI_ENGINE=benchmarks.engine .ci/check tests tests/eb`` runs the engine's tests with it.
"""

from benchmarks.engine.backprop import excitation_backprop as excitation_backprop
from benchmarks.engine.backprop import layers_on_path as layers_on_path
from benchmarks.engine.check import check_rule as check_rule
from benchmarks.engine.mode import ExcitationMode as ExcitationMode
from benchmarks.engine.mode import disable as disable
from benchmarks.engine.mode import enable as enable
from benchmarks.engine.mode import excitation_mode as excitation_mode
from benchmarks.engine.own_rules import Call as Call
from benchmarks.engine.own_rules import pass_through as pass_through
from benchmarks.engine.own_rules import residual_sum as residual_sum
from benchmarks.engine.own_rules import rule as rule
from benchmarks.engine.own_rules import unregister as unregister
from benchmarks.engine.own_rules import weighted_sum as weighted_sum
from benchmarks.engine.products import LinearMap as LinearMap
from benchmarks.engine.result import ExcitationResult as ExcitationResult
from ebcli.imports import load_rules

load_rules()  # last, because plug-ins import the names above
