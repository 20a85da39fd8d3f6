"""Excitation Backprop: the forward pass as a list of operations of ATen, and two ways down that list."""

from ebcli.eb.backprop import excitation_backprop as excitation_backprop
from ebcli.eb.backprop import layers_on_path as layers_on_path
from ebcli.eb.check import check_rule as check_rule
from ebcli.eb.mode import ExcitationMode as ExcitationMode
from ebcli.eb.mode import disable as disable
from ebcli.eb.mode import enable as enable
from ebcli.eb.mode import excitation_mode as excitation_mode
from ebcli.eb.own_rules import Call as Call
from ebcli.eb.own_rules import pass_through as pass_through
from ebcli.eb.own_rules import residual_sum as residual_sum
from ebcli.eb.own_rules import rule as rule
from ebcli.eb.own_rules import unregister as unregister
from ebcli.eb.own_rules import weighted_sum as weighted_sum
from ebcli.eb.products import LinearMap as LinearMap
from ebcli.eb.result import ExcitationResult as ExcitationResult
from ebcli.imports import load_rules

load_rules()  # last, because plug-ins import the names above
