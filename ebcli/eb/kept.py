"""Tensors kept for the backward pass, with their values preserved when an operation overwrites them."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ebcli.errors import EbcliError

_thread = threading.local()  # .kept: storage address -> what is kept in it


class Kept:
    """A tensor as it is now.

    Args:
        tensor: the tensor.
        signs_only: whether a copy needs only its signs, as int8.
    """

    __slots__ = ("__weakref__", "_signs_only", "_tensor", "_version")

    def __init__(self, tensor: Tensor, *, signs_only: bool = False) -> None:
        self._tensor, self._signs_only, self._version = tensor.detach(), signs_only, tensor._version
        if not tensor.is_meta:
            _registry().setdefault(tensor.untyped_storage().data_ptr(), []).append(weakref.ref(self))

    def copy(self) -> None:
        """Copy the values, which are about to be overwritten."""
        self._tensor = self._tensor.sign().to(torch.int8) if self._signs_only else self._tensor.clone()
        self._version = self._tensor._version

    def get(self, site: str = "an operation") -> Tensor:
        """The tensor; `site` names the operation that keeps it.

        Raises:
            EbcliError: an operation that the mode did not see overwrote it.
        """
        if self._tensor._version != self._version:
            raise EbcliError(
                f"a tensor that {site} needs for the backward pass was modified in place after it was read: make that "
                "operation out of place"
            )
        return self._tensor


def preserve(tensor: Tensor) -> None:
    """Copy everything that is kept in the memory of a tensor, which is about to be overwritten."""
    if not tensor.is_meta:
        for reference in _registry().pop(tensor.untyped_storage().data_ptr(), ()):
            kept = reference()
            if kept is not None:
                kept.copy()


def keep_saved() -> AbstractContextManager[object]:
    """A context in which autograd saves tensors as `Kept`, whatever other hooks (checkpointing) are active."""
    return saved_tensors_hooks(Kept, Kept.get)


def forget() -> None:
    """Forget what this thread keeps. The tensors stay valid unless they are overwritten."""
    _thread.kept = {}


def _registry() -> dict[int, list[weakref.ref[Kept]]]:
    if not hasattr(_thread, "kept"):
        _thread.kept = {}
    return _thread.kept
