"""The built-in rules, one file per family of operations. Importing this package registers them."""

from ebcli.eb.rules import activation, arithmetic, attention, choice, linear, norm, recurrent, scatter, sums

__all__ = ["activation", "arithmetic", "attention", "choice", "linear", "norm", "recurrent", "scatter", "sums"]
