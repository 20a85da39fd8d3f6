"""What a rule answers, and the rules of operations that only move values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ebcli.eb.facts import AFFINE, MOVED, Facts, inherited
from ebcli.eb.operations import Op, Value, flat
from ebcli.eb.products import gradients


class How(NamedTuple):
    """How the probability of a value is to be explained.

    Attributes:
        signs: of the responses that are explained, where they are not those of the value itself: a norm with a negative
            scale turns them, a ReLU makes all of them +1. A tensor has them as its own signs.
        above_classifier: the classifier is still below, whose responses count as positive (Eq. 6).
        spares_zeros: no probability is where the value is 0.
    """

    signs: int | Tensor | None = None
    above_classifier: bool = False
    spares_zeros: bool = False


Share = tuple[Tensor, How] | None
Arrived = Sequence[Any]  # a tensor for each result, None where nothing arrives


class Rule:
    """Values only move: probability and slope follow the gradient, and so do the signs of responses.

    Attributes:
        joins: constants may be among the elements of the results.
        needs_numbers: its gradient, or its shares, depend on the numbers of its inputs.
    """

    joins = needs_numbers = False

    def operands(self, op: Op) -> list[Value]:
        """The values that probability passes to, and not only past, as past gates, queries and keys."""
        return [value for value in op.inputs if value.is_floating]

    def keeps(self, op: Op) -> Sequence[Value]:
        """The values whose numbers are needed; others are computed again."""
        return [value for value in op.inputs if self.needs_numbers or not value.is_floating]

    def learn(self, op: Op) -> None:
        """Note what is known of the results."""
        facts = inherited(op)
        self.describe(op, facts)
        for out in op.outs:
            out.facts = facts

    def describe(self, op: Op, facts: Facts) -> None:
        """Change what the results inherit to what is known of them."""
        if len(op.inputs) == 1 and not self.joins:
            # a norm behind a maximum is one of the winners
            facts.is_open = op.signal.facts.is_open and not self.needs_numbers
            facts.is_softmax = op.signal.facts.is_softmax
            if op.name in _COPIES:
                facts.elementwise = AFFINE
            elif type(self) is Rule and not any(isinstance(a, Tensor) for a in flat(op.args)):
                facts.elementwise = MOVED

    def shares(self, op: Op, P: Arrived, how: How) -> list[Share]:
        """Each operand's share of the probability of the results (Eq. 4).

        Args:
            op: the operation.
            P: of each result, in the result's shape; None where nothing arrives.
            how: of all of it.
        """
        moved = self.back(op, P)
        if not isinstance(how.signs, Tensor):
            return [None if p is None else (p, how) for p in moved]
        turned = self.back(op, [None if p is None else how.signs.expand(p.shape) for p in P])
        return [None if p is None else (p, how._replace(signs=s)) for p, s in zip(moved, turned, strict=True)]

    def slopes(self, op: Op, G: Arrived) -> list[Tensor | None]:
        """M^T G: the operands' weights in the joint neuron, in which the results have the weights G."""
        return self.back(op, G)

    def back(self, op: Op, arrived: Arrived) -> list[Tensor | None]:
        """The gradient."""
        if op.name in _ORDERED:
            return [arrived[0].reshape(op.signal.shape).to(op.signal.dtype)]
        leaves = [value.leaf(with_numbers=self.needs_numbers) for value in op.inputs if value.is_floating]
        return [*gradients(op.of, leaves, arrived)]


_COPIES = frozenset(["clone", "alias", "detach", "_to_copy", "same", "lift_fresh", "contiguous"])

# What shows all elements in their order, so that its gradient needs no autograd
_ORDERED = frozenset("view _unsafe_view unsqueeze squeeze alias same detach clone _to_copy".split())


class Join(Rule):
    """Values move to places beside constants, such as a class token or the zeros of padding."""

    joins = True

    def describe(self, op: Op, facts: Facts) -> None:
        arguments = *op.args, *op.kwargs.values()
        facts.nonnegative &= not any(isinstance(a, Tensor) and a.is_floating_point() for a in flat(arguments))
        if op.name in ("where", "masked_fill", "constant_pad_nd"):
            facts.nonnegative &= all(a >= 0 for a in arguments if isinstance(a, (int, float)))


class Winner(Rule):
    """A maximum, sorting, max pooling: the winner takes all."""

    needs_numbers = True


class Missing(Winner):
    """An operation without a rule, of which only the ordinary gradient is known."""

    def describe(self, op: Op, facts: Facts) -> None:
        facts.nonnegative = False


class Ends(Missing):
    """Probability ends: the result depends on the operands only as on gates, queries and keys."""

    def operands(self, op: Op) -> list[Value]:
        return []


ENDS, MISSING = Ends(), Missing()
