"""The built-in rules, a short file for each family of operations. Importing this package registers them."""

from ebcli.eb.rules import activation, arithmetic, linear, norm, pooling

__all__ = ["activation", "arithmetic", "linear", "norm", "pooling"]
