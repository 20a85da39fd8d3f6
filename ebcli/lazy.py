"""Packages whose names are imported on first use, as PEP 562 has it, so that to import them costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: its name.
        homes: each name that it offers, and the module that has it.
    """
    names = sys.modules[package].__dict__

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = getattr(importlib.import_module(homes[name]), name)
        return names[name]

    return get, lambda: sorted({*names, *names["__all__"]})
