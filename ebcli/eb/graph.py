"""Questions about the autograd graph: what made a tensor, and what lies between it and the layer below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.nn.modules._functions import BackwardHookFunction

from ebcli.eb.autograd import Excitation, PassThrough

# Ordinary gradients of operations that move values about without changing them, by the stem of the node's name.
# Only such nodes are looked through when asking whether a tensor can hold anything below zero.
_ROUTING_NODES = frozenset(
    """Alias AsStrided Cat Chunk Clone Contiguous Copy Diagonal Expand Flip Gather Index IndexSelect Movedim
    Narrow Permute PixelShuffle PixelUnshuffle Repeat Reshape ReshapeAlias Roll Select Slice Split
    SplitWithSizes Squeeze Stack SwapDims T ToCopy Transpose Unbind Unfold Unsqueeze UnsafeSplit UnsafeView View
    MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D Max Amax""".split()
)


def is_made_by(node: Any, function: type[Function]) -> bool:
    """Whether `function`'s forward made the tensor whose ``grad_fn`` is `node`."""
    return isinstance(node, function._backward_cls)


def parents(node: Any) -> list[Any]:
    """The nodes one step further down, towards the layer; what was only overwritten with the value is none."""
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
    """The node that made the values of `tensor`, looking through views and the like; None for a leaf."""
    node = tensor.grad_fn
    while node is not None and _stem(node) in _ROUTING_NODES and len(parents(node)) == 1:
        node = parents(node)[0]
    return node


def is_nonnegative(tensor: Tensor) -> bool:
    """Whether it is certain, from what made it, that `tensor` holds nothing below zero."""

    def certain(node: Any) -> bool:
        return getattr(node, "nonnegative", False)

    def is_opaque(node: Any) -> bool:
        return certain(node) or _stem(node) not in _ROUTING_NODES or not _is_whole(node)

    nodes = list(descend([tensor.grad_fn], is_opaque))
    return bool(nodes) and all(certain(node) for node in nodes if is_opaque(node))


def is_folded_into(node: Any, layer: Any) -> bool:
    """Whether `node` is the layer's own, or that of a batch norm or ReLU that hands down in the layer's stead."""
    lineage = getattr(layer, "lineage", None)
    return node is layer or (lineage is not None and getattr(node, "lineage", ())[: len(lineage)] == lineage)


def weighted_below(nodes: Iterable[Any]) -> list[Any]:
    """The layers with weights that are reached first on the way down from `nodes`."""
    return [node for node in descend(nodes, _has_weights) if _has_weights(node)]


def loses_nothing(root: Tensor) -> bool:
    """Whether it is certain, after a pass down from `root` with sums kept, that all probability arrives at the layer.

    That is so if every neuron on the way was explained, and no operation has an operand that does not come from
    the layer, or a value of its own, such as a mask's or a padding's.
    """
    for node in descend([root.grad_fn]):
        if is_made_by(node, Excitation):
            z = node.contributions.z
            certain = z is not None and _is_whole(node) and not bool(node.contributions.unexplained(z.detach()))
        elif is_made_by(node, PassThrough) or node.name().endswith("AccumulateGrad"):  # the latter is the layer
            certain = True
        else:
            certain = _stem(node) in _ROUTING_NODES and _is_whole(node)
        if not certain:
            return False
    return True


def mark_unexplained(values: Iterable[Tensor], site: str, refuse: Callable[[], None]) -> None:
    """Note on the nodes of `values` that no rule stands behind them; `refuse` is called on the way down."""
    for value in values:
        # what was changed in place through a view is recorded on the view's base
        node: Any = value.grad_fn if value._base is None else value._base.grad_fn or value.grad_fn
        if node is not None and _UNEXPLAINED not in node.metadata:
            node.metadata[_UNEXPLAINED] = site
            node.register_prehook(lambda _: refuse())


def unexplained(root: Tensor) -> list[str]:
    """The operations between `root` and the layer that no rule explains, each named once."""
    sites = []
    for node in descend([root.grad_fn]):
        if _UNEXPLAINED in node.metadata:
            sites.append(node.metadata[_UNEXPLAINED])
        elif isinstance(node, BackwardCFunction) and not any(is_made_by(node, known) for known in _KNOWN):
            # an autograd.Function of the user's own, whose forward no function mode gets to see
            sites.append(f"{type(node).__name__.removesuffix('Backward')}.apply")
    return list(dict.fromkeys(sites))


_UNEXPLAINED = "no excitation rule"
# the last hands its operands on as they are, for the sake of hooks that modules have on the backward pass
_KNOWN = (PassThrough, Excitation, BackwardHookFunction)


def _edges(node: Any) -> Any:
    return node.next_functions[getattr(node, "others", 0) :]


def _is_whole(node: Any) -> bool:
    """Whether all of what `node` has read carries the signal."""
    return len(parents(node)) == len(_edges(node))


def _has_weights(node: Any) -> bool:
    return is_made_by(node, Excitation) and getattr(node.contributions, "weight", None) is not None


def _stem(node: Any) -> str:
    return node.name().rpartition("Backward")[0]
