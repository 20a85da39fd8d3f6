"""What the table of rules consists of: an entry for each operation, and what a rule answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from ebcli.eb.facts import Facts, inherit
from ebcli.eb.operations import AnyFunction, Dims, Op, Values
from ebcli.eb.places import Marks, Places


class BackwardContext(NamedTuple):
    """How the probability of a value is to be explained.

    Attributes:
        signs: of the responses that are explained, where they are not those of the value itself: a norm with a negative
            scale turns them, a ReLU makes all of them +1. A tensor has them as its own signs.
        above_classifier: the classifier is still below, whose responses count as positive (Eq. 6).
        skips_zeros: no probability is where the value is 0.
        norm: gives the factor and the shift of a batch norm that is directly above.
    """

    signs: int | Tensor | None = None
    above_classifier: bool = False
    skips_zeros: bool = False
    norm: Callable[[], tuple[Tensor, Tensor]] | None = None


Share = tuple[Tensor, BackwardContext] | None
Shares = list[Share]
Gradients = list[Tensor | None]
Incoming = Sequence[Any]  # a tensor for each result, None where nothing arrives


class Entry(ABC):
    """What the table has for an operation.

    Attributes:
        reads_only_shape: the result depends on the shape and the type of the operands alone, so it is a constant.
        expands_responses: the response of a layer becomes the neurons that broadcasting makes of it.
    """

    reads_only_shape = False
    expands_responses = False

    @abstractmethod
    def choose(self, op: Op) -> "RecordingRule | Decomposition":
        """The rule of an operation, or what it is explained as."""


@dataclass(frozen=True)
class Choice(Entry):
    """An entry whose rule depends on the operation's arguments."""

    function: Callable[[Op], "Rule | Decomposition"]
    expands_responses: bool = False

    def choose(self, op: Op) -> "Rule | Decomposition":
        return self.function(op)


class RecordingRule(Entry):
    """What is needed to record an operation: what is known of its results, and where their elements come from.

    Attributes:
        joins: constants may be among the elements of the results.
        reads_memory: it reads elements where they lie in memory.
        keeps_order: the axes of space stay in their order, and so do the elements along each of them.
    """

    keeps_order = True
    joins = False
    reads_memory = False

    def choose(self, op: Op) -> Self:
        return self

    def operands(self, op: Op) -> Values:
        """The values that probability passes to, and not only past, as past gates, queries and keys."""
        return op.floating

    def needs(self, op: Op) -> Values:
        """The values whose numbers are needed; others are computed again."""
        return op.inputs

    @abstractmethod
    def learn(self, op: Op) -> None:
        """Note what is known of the results."""

    @abstractmethod
    def places(self, op: Op, places: Places) -> Marks:
        """The marks of the results."""

    def touched_axes(self, op: Op) -> Dims | None:
        """The axes of the operands along which elements move; None if they are unknown."""
        return None


class Rule(RecordingRule):
    """How an operation passes probability and weights to its operands, and what is known of its results."""

    def learn(self, op: Op) -> None:
        facts = inherit(op)
        self.describe(op, facts)
        for out in op.outs:
            out.facts = facts

    @abstractmethod
    def describe(self, op: Op, facts: Facts) -> None:
        """Change what the results inherit to what is known of them."""

    @abstractmethod
    def shares(self, op: Op, P: Incoming, context: BackwardContext) -> Shares:
        """Each operand's share of the probability of the results (Eq. 4).

        Args:
            op: the operation.
            P: of each result, in the result's shape; None where nothing arrives.
            context: of all of it.
        """

    @abstractmethod
    def slopes(self, op: Op, G: Incoming) -> Gradients:
        """M^T G: the operands' weights in the joint neuron, in which the results have the weights G."""


class Decomposition(Entry):
    """The operation is explained as others that equal it up to rounding.

    Args:
        function: of the operation's arguments, made of other operations.
        is_gate: the first result is made to rescale, so in a product it is the gate.
    """

    def __init__(self, function: AnyFunction, *, is_gate: bool = False) -> None:
        self.function = function
        self.is_gate = is_gate

    def choose(self, op: Op) -> "Decomposition":
        return self


Table = dict[str, Entry]  # operations by name, several to a key
