"""Packages that only some things need, in this package's extras."""

from __future__ import annotations

import importlib
from typing import Any

from ebcli.errors import ConfigurationError


def needed(module: str, extra: str = "compare") -> Any:
    """A module of a package in an extra.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigurationError(f"this takes the package {package}: pip install 'ebcli[{extra}]'") from error
