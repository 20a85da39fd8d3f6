"""A network in evaluation mode, not compiled, and as it was found afterwards, whichever threads use it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

_lock = threading.Lock()
_users: dict[int, tuple[int, bool]] = {}  # id of a module in use -> number of users, and if it was training


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for every module until the last thread is done, which restores each one's mode.

    What `torch.compile` compiled runs as it is written. Buffers that the network writes activations into are detached
    from the graph afterwards.
    """
    modules = list(net.modules())
    with _lock:
        for module in modules:
            users, was_training = _users.get(id(module), (0, module.training))
            _users[id(module)] = users + 1, was_training
            if module.training:  # setting attributes of modules is slow
                module.training = False
    buffers = [(module, name, buffer) for module in modules for name, buffer in module._buffers.items()]
    plain = {id(buffer) for *_, buffer in buffers if buffer is not None and not buffer.requires_grad}
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
        for module, name, _ in buffers:
            buffer = getattr(module, name, None)
            if isinstance(buffer, Tensor) and buffer.grad_fn is not None:
                # in place where the tensor is the one that was there before
                setattr(module, name, buffer.detach_() if id(buffer) in plain else buffer.detach())
