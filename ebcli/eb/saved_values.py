"""Tensors saved for the backward pass, with their values preserved when an operation overwrites them."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ebcli.errors import EbcliError

_thread = threading.local()  # .saved: storage address -> what is saved of it


class Saved:
    """A tensor as it is now.

    Args:
        tensor: the tensor.
        operation: what needs it, for messages.
        signs_only: whether a copy needs only its signs, as int8.
    """

    __slots__ = ("__weakref__", "_operation", "_signs_only", "_tensor", "_version")

    def __init__(self, tensor: Tensor, operation: str = "an operation", *, signs_only: bool = False) -> None:
        self._tensor, self._signs_only, self._version = tensor.detach(), signs_only, tensor._version
        self._operation = operation
        if not tensor.is_meta:
            _registry().setdefault(tensor.untyped_storage().data_ptr(), []).append(weakref.ref(self))

    def copy(self) -> None:
        """Copy the values, which are about to be overwritten."""
        self._tensor = self._tensor.sign().to(torch.int8) if self._signs_only else self._tensor.clone()
        self._version = self._tensor._version

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            EbcliError: an operation that the mode did not see overwrote it.
        """
        if self._tensor._version != self._version:
            raise EbcliError(
                f"a tensor that {self._operation} needs for the backward pass was modified in place after it was read: "
                "make that operation out of place"
            )
        return self._tensor


def preserve(tensor: Tensor) -> None:
    """Copy everything that is saved of the memory of a tensor, which is about to be overwritten."""
    if not tensor.is_meta:
        for reference in _registry().pop(tensor.untyped_storage().data_ptr(), ()):
            saved = reference()
            if saved is not None:
                saved.copy()


def keep_saved() -> AbstractContextManager[object]:
    """A context in which autograd saves tensors as `Saved`, whatever other hooks (checkpointing) are active."""
    return saved_tensors_hooks(Saved, Saved.get)


def forget() -> None:
    """Forget what this thread saved. The tensors stay valid unless they are overwritten."""
    _thread.saved = {}


def _registry() -> dict[int, list[weakref.ref[Saved]]]:
    if not hasattr(_thread, "saved"):
        _thread.saved = {}
    return _thread.saved
