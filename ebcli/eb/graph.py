"""The autograd graph: what made a tensor, and what lies between the output and a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn.modules._functions import BackwardHookFunction

from ebcli.eb.autograd import NodeFacts

# Operations that move values without changing them, by the stem of their node's name. Only these nodes are looked
# through to find out whether a tensor can hold negative values.
_ROUTING_NODES = frozenset(
    """Alias AsStrided Cat Chunk Clone Contiguous Copy Diagonal Expand Flip Gather Index IndexSelect Movedim
    Narrow Permute PixelShuffle PixelUnshuffle Repeat Reshape ReshapeAlias Roll Select Slice Split
    SplitWithSizes Squeeze Stack SwapDims T ToCopy Transpose Unbind Unfold Unsqueeze UnsafeSplit UnsafeView View
    MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D Max Amax""".split()
)
_NO_RULE = "no excitation rule"
_MODULE_HOOK = f"{BackwardHookFunction.__name__}Backward"  # returns its operands unchanged


class BackwardGraph:
    """Every node between the logits and the layers, found in a single walk.

    Attributes:
        nodes: the nodes, each once.
        weighted: the nodes that share probability by contributions.
        classifiers: the layers with weights that a walk down from the logits reaches first.
        sites: the operations without a rule, each named once.
    """

    def __init__(self, logits: Tensor) -> None:
        self.nodes = list(descend([logits.grad_fn]))
        self._readers: dict[Any, list[Any]] = {}
        for node in self.nodes:
            for parent in parents(node):
                self._readers.setdefault(parent, []).append(node)
        self.weighted = [node for node in self.nodes if contributions_of(node) is not None]
        self.classifiers = weighted_below([logits.grad_fn])
        self.sites = list(dict.fromkeys(site for node in self.nodes if (site := _site_without_rule(node))))

    def ends(self, layer: Any) -> list[Any]:
        """The nodes at which probability for a layer arrives: its own, and whatever was folded into the layer."""
        lineage = getattr(facts(layer), "lineage", ())

        def is_folded(node: Any) -> bool:
            return bool(lineage) and getattr(facts(node), "lineage", ())[: len(lineage)] == lineage

        return [node for node in self.nodes if node is layer or is_folded(node)]

    def above(self, ends: Sequence[Any]) -> set[Any]:
        """The nodes whose probability can reach `ends`."""
        found, waiting = set(ends), list(ends)
        while waiting:
            new = [node for node in self._readers.get(waiting.pop(), ()) if node not in found]
            found.update(new)
            waiting += new
        return found.difference(ends)

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


def origin(tensor: Tensor) -> Any:
    """The node that computed the values of `tensor`, looking through views and the like; None for a leaf."""
    node = tensor.grad_fn
    while node is not None and _stem(node) in _ROUTING_NODES and len(parents(node)) == 1:
        node = parents(node)[0]
    return node


def is_nonnegative(tensor: Tensor) -> bool:
    """Whether the way `tensor` was made guarantees that it holds no negative values."""

    def certain(node: Any) -> bool:
        return getattr(facts(node), "nonnegative", False)

    def is_opaque(node: Any) -> bool:
        return certain(node) or _stem(node) not in _ROUTING_NODES or not _is_whole(node)

    nodes = list(descend([tensor.grad_fn], is_opaque))
    return bool(nodes) and all(certain(node) for node in nodes if is_opaque(node))


def gate(tensor: Tensor) -> int:
    """How clearly `tensor` is meant to be a factor, see `pass_through`."""
    return getattr(facts(origin(tensor)), "gate", 0)


def weighted_below(nodes: Iterable[Any]) -> list[Any]:
    """The layers with weights that are reached first on the way down from `nodes`."""

    def has_weights(node: Any) -> bool:
        return getattr(contributions_of(node), "weight", None) is not None

    return [node for node in descend(nodes, has_weights) if has_weights(node)]


def mark_without_rule(values: Iterable[Tensor], site: str, refuse: Callable[[], None]) -> None:
    """Note on the nodes of `values` that no rule covers them; the backward pass calls `refuse` there."""
    for value in values:
        # in-place changes through a view are recorded on the view's base
        node: Any = value.grad_fn if value._base is None else value._base.grad_fn or value.grad_fn
        if node is not None and _NO_RULE not in node.metadata:
            node.metadata[_NO_RULE] = site
            node.register_prehook(lambda _: refuse())


def _site_without_rule(node: Any) -> str | None:
    if _NO_RULE in node.metadata:
        return node.metadata[_NO_RULE]
    name = node.name()
    if isinstance(node, BackwardCFunction) and facts(node) is None and name != _MODULE_HOOK:
        # an autograd.Function of the user's, whose forward no function mode sees
        return f"{name.removesuffix('Backward')}.apply"
    return None


def _loses_nothing(node: Any) -> bool:
    contributions = contributions_of(node)
    if contributions is not None:
        z = contributions.z
        return z is not None and _is_whole(node) and not bool(contributions.unexplained(z.detach()))
    if facts(node) is not None or node.name().endswith("AccumulateGrad"):  # the latter is the layer
        return True
    return _stem(node) in _ROUTING_NODES and _is_whole(node)


def _edges(node: Any) -> Any:
    return node.next_functions[getattr(facts(node), "skipped", 0) :]


def _is_whole(node: Any) -> bool:
    """Whether every operand of `node` carries the signal."""
    return len(parents(node)) == len(_edges(node))


def _stem(node: Any) -> str:
    return node.name().rpartition("Backward")[0]
