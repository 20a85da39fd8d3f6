"""Hooks that see one thread's forward passes, so that threads can share a network."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import nn


class Reached(Exception):  # noqa: N818 - no error
    """What a hook was for was seen, so the rest of the forward pass is not needed."""


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., Any], *, before: bool = False) -> Iterator[None]:
    """Call a hook in this thread's forward passes through some modules.

    Args:
        modules: the modules.
        hook: gets the module, its operands and its output; what it returns replaces the output.
        before: it gets the module and its operands, before it is called.
    """
    thread = get_ident()

    def own(*seen: Any) -> Any:
        return hook(*seen) if get_ident() == thread else None

    with ExitStack() as hooks:
        for module in modules:
            register = module.register_forward_pre_hook if before else module.register_forward_hook
            hooks.callback(register(own).remove)
        yield
