"""A network in evaluation mode, not compiled, and as it was found afterwards, whichever threads use it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

_lock = threading.Lock()
_users: dict[int, tuple[int, bool]] = {}  # id of a module in use -> number of users, and if it was training


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for every module until the last thread is done, which restores each one's mode.

    What `torch.compile` compiled runs as it is written.
    """
    modules = list(net.modules())
    with _lock:
        for module in modules:
            users, was_training = _users.get(id(module), (0, module.training))
            _users[id(module)] = users + 1, was_training
            if module.training:  # setting attributes of modules is slow
                module.training = False
    try:
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        with _lock:
            for module in modules:
                users, was_training = _users.pop(id(module))
                if users > 1:
                    _users[id(module)] = users - 1, was_training
                elif was_training:
                    module.training = True
