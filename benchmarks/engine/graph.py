"""The graph of autograd."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def descend(start: Iterable[Any], stops: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """The nodes at and below some others, each once; nothing below those at which it stops."""
    waiting, seen = list(start), {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if not stops(node):
                waiting += [parent for parent, _ in node.next_functions]
