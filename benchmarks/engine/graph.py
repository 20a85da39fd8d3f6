"""What the rest of the package takes from a module of this name."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.engine.mode import nodes_below


def descend(start: Iterable[Any], stops: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """The nodes of autograd at and below some others."""
    for node in start:
        yield from nodes_below(node, stops)
