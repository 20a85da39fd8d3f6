"""Packages that only some things need, in this package's extras."""

from __future__ import annotations

import importlib
from typing import Any

from ebcli.errors import ConfigurationError


def needed(module: str, package: str | None = None) -> Any:
    """A module of a package in an extra.

    Args:
        module: what to import.
        package: what to install for it; None if that has the name of the module's root.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        raise ConfigurationError(f"this takes the package {name}: pip install {name}") from error
