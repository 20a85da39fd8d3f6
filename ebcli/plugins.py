"""What other packages add to this one, through entry points. Imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

T = TypeVar("T")

MODELS, RULES = "ebcli.models", "ebcli.rules"


def plugins(group: str) -> list[EntryPoint]:
    """What installed packages offer under a group's name, in the order of their names; nothing is imported."""
    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def loaded(point: EntryPoint, use: Callable[[Any], T] = lambda it: it) -> T | None:
    """What is made by ``use`` of what an entry point names; None, with a warning, if that fails."""
    try:
        return use(point.load())
    except Exception as error:  # a plug-in can be broken in any way, and everything else must go on
        package = point.dist.name if point.dist else point.module
        reason = " ".join(str(error).split())
        warnings.warn(
            f"the plug-in {point.name!r} of the package {package} is left out, for {point.value} fails "
            f"({type(error).__name__}: {reason})",
            stacklevel=2,
        )
        return None


def load_rules() -> None:
    """Import the modules of plug-ins that register excitation rules."""
    for point in plugins(RULES):
        loaded(point)
