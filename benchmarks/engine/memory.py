"""Memory that views share: from what fills it to what a view shows, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Geometry = tuple[torch.Size, tuple[int, ...], int]


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def geometry_of(tensor: Tensor) -> Geometry:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


@dataclass(frozen=True)
class Read:
    """From a value that fills some memory to what a view of it shows.

    Attributes:
        layout: of the value.
        view: of the view.
        size: of the memory.
    """

    layout: Geometry
    view: Geometry
    size: int

    def __call__(self, a: Tensor) -> Tensor:
        return self._memory(a).as_strided(*self.view).clone()

    def back(self, P: Tensor) -> tuple[Tensor, ...]:
        """The gradients."""
        memory = P.new_zeros(self.size)
        memory.as_strided(*self.view).copy_(P)
        return (memory.as_strided(*self.layout),)

    def _memory(self, a: Tensor) -> Tensor:
        memory = a.new_zeros(self.size)
        memory.as_strided(*self.layout).copy_(a)
        return memory


class Write(Read):
    """From a value that fills some memory, and a view of it that is overwritten, to the memory."""

    def __call__(self, a: Tensor, part: Tensor) -> Tensor:  # type: ignore[override]
        memory = self._memory(a)
        memory.as_strided(*self.view).copy_(part)
        return memory

    def back(self, P: Tensor) -> tuple[Tensor, ...]:
        memory = P.clone()
        part = memory.as_strided(*self.view).clone()
        memory.as_strided(*self.view).zero_()
        return memory.as_strided(*self.layout), part
