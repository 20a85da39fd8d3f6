"""The autograd graph: what made a tensor, and what lies between the output and a layer.

Nodes of rules have `NodeFacts`. On all others the mode notes what made them: an operation that moves values, whose
ordinary gradient is right, or one without a rule. A node without a note was made where the mode sees nothing, as in
compiled code, and has no rule either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction

from ebcli.eb.autograd import NodeFacts
from ebcli.eb.facts import Layer, is_known

_NO_RULE, _ROUTES, _WEIGHTED = "no excitation rule", "routes values", "has weights"
_ATTENTION, _AVERAGE = "attention", "average"
_MODULE_HOOK = f"{BackwardHookFunction.__name__}Backward"  # of a module's backward hooks; returns its operands
_LEAF = "AccumulateGrad"


class BackwardGraph:
    """Every node between the logits and the layers, found in a single walk.

    Attributes:
        nodes: the nodes, each once.
        weighted: the nodes that share probability by contributions.
        classifiers: the layers with weights that a walk down from the logits reaches first.
        sites: the operations without a rule, each named once.
    """

    def __init__(self, logits: Tensor) -> None:
        admit(logits)
        self.nodes = list(descend([logits.grad_fn]))
        self._readers: dict[Any, list[Any]] = {}
        for node in self.nodes:
            for parent in parents(node):
                self._readers.setdefault(parent, []).append(node)
        self.weighted = [node for node in self.nodes if contributions_of(node) is not None]
        self.classifiers = weighted_below([logits.grad_fn])
        self.sites = list(dict.fromkeys(site for node in self.nodes if (site := _site_without_rule(node))))

    def ends(self, layer: Any) -> dict[Any, list[Callable[[Tensor], Tensor]]]:
        """The nodes at which probability for a layer arrives, with the rearrangements that precede them.

        These are the layer's own node, and those that were folded into it.
        """
        trail = getattr(facts(layer), "trail", ())
        found: dict[Any, list[Callable[[Tensor], Tensor]]] = {}
        for node in self.nodes:
            if node is layer:
                found[node] = []
            elif trail and contributions_of(node) is not None and trail[-1] in facts(node).trail:  # type: ignore[union-attr]
                found[node] = Layer(node, facts(node).trail).moves_since(trail[-1])  # type: ignore[union-attr]
        return found

    def above(self, ends: Sequence[Any]) -> set[Any]:
        """The nodes whose probability can reach `ends`."""
        found, waiting = set(ends), list(ends)
        while waiting:
            new = [node for node in self._readers.get(waiting.pop(), ()) if node not in found]
            found.update(new)
            waiting += new
        return found.difference(ends)

    def explains_jointly(self, above: set[Any]) -> bool:
        """Whether the joint rule holds for a layer with these nodes between it and the logits.

        It does where activations with negative values are between the layer and the classifier. It does not where
        attention mixes cells that the classifier averages, because there the average assigns probability to places,
        which is more exact step by step (Swin). Where the classifier reads a class token, attention does.
        """
        between = above.intersection(descend(self.classifiers)).difference(self.classifiers)
        if not any(getattr(facts(node), "is_signed", False) for node in between):
            return False
        if not any(map(_is_attention, between)):
            return True
        return not any(map(_is_average, descend(self.classifiers, _is_attention)))

    def loses_nothing(self) -> bool:
        """Whether all probability certainly arrives at the layers. Needs a backward pass that kept its normalizers.

        That requires that inputs contribute to every neuron on the way, and that every operand comes from a layer
        and no operation adds values of its own, such as padding.
        """
        return all(map(_loses_nothing, self.nodes))


def facts(node: Any) -> NodeFacts | None:
    """What a rule noted on the node it made; None for all other nodes."""
    return getattr(node, "facts", None)


def contributions_of(node: Any) -> Any:
    """What explains the neurons of the operation behind `node`; None where probability is only passed on."""
    return getattr(facts(node), "contributions", None)


def parents(node: Any) -> list[Any]:
    """The nodes one step closer to the layer, without operands that were only overwritten with the value."""
    return [parent for parent, _ in _edges(node) if parent is not None]


def descend(start: Iterable[Any], stops: Callable[[Any], bool] | None = None) -> Iterator[Any]:
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
    return getattr(contributions_of(node), "weight", None) is not None or _WEIGHTED in node.metadata


def is_accounted_for(node: Any) -> bool:
    """Whether it is known what made the node."""
    if facts(node) is not None:
        return True
    name = node.name()
    return name.endswith(_LEAF) or name == _MODULE_HOOK or _ROUTES in node.metadata or _NO_RULE in node.metadata


def mark_routing(value: Tensor, operands: Iterable[Any] = (), *, lossless: bool = False) -> None:
    """Note that an operation that only moves values made `value`, and the nodes between it and known ones.

    Args:
        value: the operation's value.
        operands: the nodes of its operands, which may be unknown.
        lossless: every element comes from an operand that carries the signal.
    """
    known = set(operands)
    for node in list(descend(_own_nodes(value), lambda node: node in known or is_accounted_for(node))):
        if node not in known and not is_accounted_for(node):
            node.metadata[_ROUTES] = lossless


def mark_weighted(value: Tensor) -> None:
    """Note that a layer with weights made the value, of which its node does not tell."""
    _mark(value, _WEIGHTED)


def mark_attention(value: Tensor) -> None:
    """Note that attention made the value."""
    _mark(value, _ATTENTION)


def mark_average(value: Tensor) -> None:
    """Note that fixed, non-negative weights made the value."""
    _mark(value, _AVERAGE)


def _mark(value: Tensor, what: str) -> None:
    node: Any = value.grad_fn
    if node is not None:
        node.metadata[what] = True


def _is_attention(node: Any) -> bool:
    return _ATTENTION in node.metadata


def _is_average(node: Any) -> bool:
    return _AVERAGE in node.metadata and not _is_attention(node)


def mark_above_classifier(logits: Tensor) -> None:
    """Note which nodes probability passes on the way from the logits to the classifier."""
    for node in descend([logits.grad_fn], _has_weights):
        noted = facts(node)
        if noted is not None and not _has_weights(node):
            noted.is_above_classifier = True


def mark_without_rule(value: Tensor, site: str, refuse: Callable[[], None], operands: Iterable[Any] = ()) -> None:
    """Note that no rule covers what made `value`; the backward pass calls `refuse` there."""
    nodes = _own_nodes(value)
    for node in nodes:
        if not is_accounted_for(node):
            node.metadata[_NO_RULE] = site
            node.register_prehook(lambda _: refuse())
    mark_routing(value, operands)  # what the operation consists of


def admit(value: Tensor) -> None:
    """Account for the node of a known view, which autograd replaces when the view's base is overwritten."""
    if value._is_view() and value.grad_fn is not None and is_known(value):
        base = value._base
        mark_routing(value, [] if base is None or base.grad_fn is None else [base.grad_fn])


def leaves(node: Any) -> list[Tensor]:
    """The leaf tensors below a node."""
    return [leaf.variable for leaf in descend([node]) if leaf.name().endswith(_LEAF)]


def site_of(node: Any) -> str:
    """What to call a node of which nothing is known."""
    name = node.name().rsplit("::", 1)[-1]
    if facts(node) is None and hasattr(node, "_forward_cls"):
        return f"{name.removesuffix('Backward')}.apply"  # an autograd.Function, whose forward no function mode sees
    if "DifferentiableGraph" in name:
        return "torch.jit code"
    stem = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower() + " (called where no function mode sees it)"


def _own_nodes(value: Tensor) -> list[Any]:
    # in-place changes through a view are recorded on the view's base
    bases = [value] if value._base is None else [value, value._base]
    return [base.grad_fn for base in bases if base.grad_fn is not None]


def _site_without_rule(node: Any) -> str | None:
    if facts(node) is None and _NO_RULE in node.metadata:
        return node.metadata[_NO_RULE]
    return None if is_accounted_for(node) else site_of(node)


def _loses_nothing(node: Any) -> bool:
    contributions = contributions_of(node)
    if contributions is not None:
        z = contributions.z
        if z is None or not _is_whole(node):
            return False
        return bool(z.detach().amin() > 0) or not bool(contributions.unexplained(z.detach()))
    if facts(node) is not None or node.name().endswith(_LEAF):  # the latter is the layer
        return True
    return bool(node.metadata.get(_ROUTES)) and _is_whole(node)


def _edges(node: Any) -> Any:
    return node.next_functions[getattr(facts(node), "skipped", 0) :]


def _is_whole(node: Any) -> bool:
    """Whether every operand of `node` carries the signal."""
    return len(parents(node)) == len(_edges(node))
