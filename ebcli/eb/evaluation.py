"""A network in evaluation mode, and as it was found afterwards, whichever threads use it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

_lock = threading.Lock()
_users: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = weakref.WeakKeyDictionary()  # and if it was training


@contextmanager
def as_found(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for every module until the last thread is done, which restores each one's mode.

    Buffers that the network writes activations into are detached from the graph afterwards.
    """
    modules = list(net.modules())
    with _lock:
        for module in modules:
            users, was_training = _users.get(module, (0, module.training))
            _users[module] = users + 1, was_training
            module.training = False
    plain = {id(buffer) for buffer in net.buffers() if not buffer.requires_grad}
    names = [(module, name) for module in modules for name, _ in module.named_buffers(recurse=False)]
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                users, was_training = _users.pop(module)
                if users > 1:
                    _users[module] = users - 1, was_training
                else:
                    module.training = was_training
        for module, name in names:
            buffer = getattr(module, name, None)
            if isinstance(buffer, Tensor) and buffer.grad_fn is not None:
                # in place where the tensor is the one that was there before
                setattr(module, name, buffer.detach_() if id(buffer) in plain else buffer.detach())
