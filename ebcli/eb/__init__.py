"""Excitation Backprop for PyTorch networks. Knows nothing of files, the command line or torchvision."""

from ebcli.eb.backprop import ExcitationResult, excitation_backprop
from ebcli.eb.building import pass_through, shared, weighted_sum
from ebcli.eb.check import check_rule
from ebcli.eb.mode import ExcitationMode, disable, enable, excitation_mode
from ebcli.eb.registry import Call, rule, unregister
from ebcli.eb.weighted import LinearMap

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
    "pass_through",
    "rule",
    "shared",
    "unregister",
    "weighted_sum",
]
