"""The built-in rules, a short file for each family of operations. Importing this package registers them."""

from ebcli.eb.rules import activation, arithmetic, attention, linear, norm, pooling

__all__ = ["activation", "arithmetic", "attention", "linear", "norm", "pooling"]
