"""Packages that only some tests need."""

from __future__ import annotations

import importlib
from typing import Any

from ebcli.errors import ConfigurationError


def needed(module: str) -> Any:
    """A module of a package in the extra ``compare``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigurationError(f"this takes the package {package}: pip install 'ebcli[compare]'") from error
