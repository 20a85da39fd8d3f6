"""The autograd graph: what made a tensor, and what lies between the output and a layer.

The nodes of rules have steps. On all others the mode notes what made them: an operation that moves values, whose
ordinary gradient is right, or one without a rule. A node without a note was made where the mode sees nothing, as in
compiled code, and has no rule either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction

from ebcli.eb.facts import facts_about, is_known, node_facts, step_of
from ebcli.eb.neurons import WeightedSum
from ebcli.eb.recording import Step
from ebcli.eb.steps import Activation, ResidualSum

_MODULE_HOOK = f"{BackwardHookFunction.__name__}Backward"  # of a module's backward hooks; returns its operands
_LEAF = "AccumulateGrad"

Back = Callable[..., Tensor]


class BackwardGraph:
    """Every node between the logits and the layers, found in a single walk.

    Attributes:
        nodes: the nodes, each once.
        classifiers: the layers with weights that a walk down from the logits reaches first.
        without_rule: the operations without a rule, each named once.
    """

    def __init__(self, logits: Tensor) -> None:
        admit(logits)
        self.nodes = list(descend([logits.grad_fn]))
        self._readers: dict[Any, list[Any]] = {node: [] for node in self.nodes}
        self._by_layer: dict[Any, list[Any]] = {}
        for node in self.nodes:
            for parent in parents(node):
                self._readers[parent].append(node)
            if isinstance(step := step_of(node), WeightedSum):
                self._by_layer.setdefault(step.layer, []).append(node)
        self.classifiers = weighted_below([logits.grad_fn])
        self.without_rule = list(dict.fromkeys(name for node in self.nodes if (name := _without_rule(node))))

    def ends(self, layer: Any) -> dict[Any, Back | None]:
        """The nodes at which something arrives for a layer, and how it gets from there to the layer's own value.

        These are the layer's own node, and those that were folded into it.
        """
        own, trail = getattr(step_of(layer), "layer", None), getattr(step_of(layer), "trail", ())
        found: dict[Any, Back | None] = {layer: None} if layer in self._readers else {}
        for node in self._by_layer.get(own, ()):
            step: WeightedSum = node.step
            if node is not layer and step.trail[: len(trail)] == trail:
                found[node] = partial(step.back_to, trail[-1] if trail else None)
        return found

    def above(self, ends: Iterable[Any]) -> set[Any]:
        """The nodes from which something can arrive at `ends`."""
        found, waiting = set(ends), list(ends)
        while waiting:
            new = [node for node in self._readers[waiting.pop()] if node not in found]
            found.update(new)
            waiting += new
        return found.difference(ends)

    def explains_jointly(self, above: set[Any]) -> bool:
        """Whether the joint rule holds for a layer with these nodes between it and the logits.

        It does where activations with values of both signs are between the layer and the classifier. It does not where
        attention mixes cells that the classifier averages, because there the average assigns probability to places,
        which is more exact step by step (Swin). Where the classifier reads a class token, attention does.
        """
        below = set(descend(self.classifiers)).difference(self.classifiers)
        between = above.intersection(below)
        units = (step_of(node) for node in between)
        if not any(isinstance(unit, Activation) and unit.is_signed for unit in units):
            return False
        mixing = {node for node in between if node_facts(node).is_attention}
        if not mixing:
            return True
        # averages that a walk from the classifier reaches before any attention, and that read what attention mixed
        averages = [
            node
            for node in descend(self.classifiers, mixing.__contains__)
            if node_facts(node).is_average and node in between and node not in mixing
        ]
        return mixing.isdisjoint(descend(averages))

    def loses_nothing(self, normalizers: dict[Any, Any]) -> bool:
        """Whether all probability certainly arrives at the layers, given the normalizers of a backward pass.

        That requires that inputs contribute to every neuron on the way, and that every operand comes from a layer
        and no operation adds values of its own, such as padding.
        """
        return all(_loses_nothing(node, normalizers) for node in self.nodes)


def neurons_of(node: Any) -> Any:
    """The step of a node that shares probability by contributions; None where probability is only passed on."""
    step: Step | None = getattr(node, "step", None)
    return step if isinstance(step, (WeightedSum, ResidualSum)) else None


def parents(node: Any) -> list[Any]:
    """The nodes one step closer to the layer, without operands that were only overwritten with the value."""
    return [parent for parent, _ in _edges(node) if parent is not None]


def descend(start: Iterable[Any], stops: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """Every node at and below `start`, each once; nothing below a node for which `stops` holds."""
    waiting, seen = [node for node in start if node is not None], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if stops is None or not stops(node):
            waiting.extend(parents(node))


def weighted_below(nodes: Iterable[Any]) -> list[Any]:
    """The layers with weights that are reached first on the way down from `nodes`."""
    return [node for node in descend(nodes, _has_weights) if _has_weights(node)]


def _has_weights(node: Any) -> bool:
    step = step_of(node)
    return isinstance(step, WeightedSum) and step.linear.weight is not None


def units_above_classifier(logits: Tensor) -> list[Activation]:
    """The activations that are passed on the way from the logits to the classifier."""
    return [step for node in descend([logits.grad_fn], _has_weights) if isinstance(step := step_of(node), Activation)]


def is_accounted_for(node: Any) -> bool:
    """Whether it is known what made the node."""
    if step_of(node) is not None or node_facts(node).is_accounted_for:
        return True
    name = node.name()
    return name.endswith(_LEAF) or name == _MODULE_HOOK


def mark_routing(value: Tensor, operands: Iterable[Any] = (), *, lossless: bool = False) -> None:
    """Note that an operation that only moves values made `value`, and the nodes between it and known ones.

    Args:
        value: the operation's value.
        operands: the nodes of its operands, which may be unknown.
        lossless: every element comes from an operand that carries the signal.
    """
    known = set(operands)
    for node in list(descend(own_nodes(value), lambda node: node in known or is_accounted_for(node))):
        if node not in known and not is_accounted_for(node):
            facts = facts_about(node)
            facts.routes, facts.is_lossless = True, lossless


def mark_without_rule(value: Tensor, operation: str, refuse: Callable[[], None], operands: Iterable[Any] = ()) -> None:
    """Note that no rule covers what made `value`; the backward pass calls `refuse` there."""
    unknown = [node for node in own_nodes(value) if not is_accounted_for(node)]
    mark_routing(value, operands)  # what the operation consists of
    for node in unknown:
        facts_about(node).without_rule = operation
        node.register_prehook(lambda _: refuse())


def admit(value: Tensor) -> None:
    """Account for the node of a known view, which autograd replaces when the view's base is overwritten."""
    if value._is_view() and value.grad_fn is not None and is_known(value):
        base = value._base
        mark_routing(value, [] if base is None or base.grad_fn is None else [base.grad_fn])


def leaves(node: Any) -> list[Tensor]:
    """The leaf tensors below a node."""
    return [leaf.variable for leaf in descend([node]) if leaf.name().endswith(_LEAF)]


def name_of_node(node: Any) -> str:
    """What to call a node of which nothing is known."""
    name = node.name().rsplit("::", 1)[-1]
    if step_of(node) is None and hasattr(node, "_forward_cls"):
        return f"{name.removesuffix('Backward')}.apply"  # an autograd.Function, whose forward no function mode sees
    if "DifferentiableGraph" in name:
        return "torch.jit code"
    stem = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower() + " (called where no function mode sees it)"


def own_nodes(value: Tensor) -> list[Any]:
    """The nodes of a tensor and, if it is a view, of its base."""
    # in-place changes through a view are recorded on the view's base
    bases: Sequence[Tensor] = [value] if value._base is None else [value, value._base]
    return [base.grad_fn for base in bases if base.grad_fn is not None]


def _without_rule(node: Any) -> str | None:
    if is_accounted_for(node):
        return node_facts(node).without_rule if step_of(node) is None else None
    return name_of_node(node)


def _loses_nothing(node: Any, normalizers: dict[Any, Any]) -> bool:
    step = step_of(node)
    if isinstance(step, (WeightedSum, ResidualSum)):
        if step not in normalizers or not _is_whole(node):
            return False
        z = normalizers[step][1]
        return not z.numel() or bool(z.detach().amin() > 0) or not step.loses(z.detach())
    if step is not None or node.name().endswith(_LEAF):  # the latter is the layer
        return True
    return node_facts(node).is_lossless and _is_whole(node)


def _edges(node: Any) -> Any:
    return node.next_functions[getattr(node, "skipped", 0) :]


def _is_whole(node: Any) -> bool:
    """Whether every operand of `node` carries the signal."""
    return len(parents(node)) == len(_edges(node))
