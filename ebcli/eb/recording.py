"""What a forward pass records: steps that can answer for both rules, and which explanation asks them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor


class Walk(Protocol):
    """What runs a backward pass; see `ebcli.eb.stepwise` and `ebcli.eb.joint`."""

    def answer(self, step: Step, arrived: Tensor, signals: tuple[Tensor, ...]) -> list[Tensor]:
        """What each of a step's signals gets."""

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, shared by the backward passes of one explanation."""


class Recording:
    """What all nodes of one forward pass share.

    Args:
        walk: the explanation whose backward pass runs.
        answering: a context in which the mode answers the operations of a rule, too.
    """

    def __init__(self, walk: Walk, answering: Callable[[], AbstractContextManager[None]]) -> None:
        self.walk, self.answering = walk, answering

    @contextmanager
    def walked_by(self, walk: Walk) -> Iterator[None]:
        """Backward passes in this context are those of `walk`."""
        before, self.walk = self.walk, walk
        try:
            yield
        finally:
            self.walk = before


class Step(ABC):
    """One operation on the way from the output to a layer.

    Attributes:
        recording: of the forward pass.
        operation: its name and its module's, for messages.
        keeps_zero: where its signals are zero, so is its value.
    """

    recording: Recording
    operation = ""
    keeps_zero = False

    @abstractmethod
    def shares(self, P: Tensor, walk: Walk, *signals: Tensor) -> list[Tensor]:
        """Each signal's share of the probability P of the value (Eq. 4)."""

    @abstractmethod
    def slopes(self, G: Tensor, walk: Walk, *signals: Tensor) -> list[Tensor]:
        """The weights of the signals in the joint neuron, whose weights of the value are G."""
