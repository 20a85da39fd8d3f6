"""Excitation Backprop: the forward pass as a list of operations of ATen, and two ways down that list."""

from ebcli.eb.backprop import excitation_backprop, layers_on_path
from ebcli.eb.check import check_rule
from ebcli.eb.custom_rules import Call, pass_through, residual_sum, rule, unregister, weighted_sum
from ebcli.eb.mode import ExcitationMode, disable, enable, excitation_mode
from ebcli.eb.products import LinearMap
from ebcli.eb.result import ExcitationResult
from ebcli.imports import load_rules

__all__ = [
    "Call", "ExcitationMode", "ExcitationResult", "LinearMap", "check_rule", "disable", "enable", "excitation_backprop",
    "excitation_mode", "layers_on_path", "pass_through", "residual_sum", "rule", "unregister", "weighted_sum",
]  # fmt: skip

load_rules()  # last, because plug-ins import the names above
