"""Jointly: Eq. 4 for networks whose neurons are signed and whose linear layers follow one another.

Step by step, each neuron explains itself by its own inputs (Eq. 4 and 10). Between GELUs, SiLUs or hard swishes, most
values are sums of such neurons, projected, normalized and added to a residual stream, and no coordinate of them wins
or loses. There, all winners n are taken as one joint neuron with the response sum_n P(n) / u_n * u_n. It is linear in
whatever lies below, up to the next activated units, and so are its weights G:

    G = M^T G                                     below linear maps M
    P(n) = max(h_n G_n, 0), G = P(n) / u_n        at activated units h_n = f(u_n)
    P(i) = max(a_i G_i, 0) / sum_k max(a_k G_k, 0)    at the layer

The last line is Eq. 4 for the joint neuron. Its inputs k are the layer's elements and constants that are joined to them
above the layer, such as class and text tokens. With one winner it is Eq. 4 itself. Attention weights, gates, and the
deviations of norms are constants, as they are step by step.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebcli.eb.checkpoints import Checkpoint
from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import Messages, Paths, descend, is_learned, joins_constants, path_ops, walk
from ebcli.eb.places import ONE_MARK, Images, move_marks
from ebcli.eb.products import add_all, ratio
from ebcli.eb.rules.activations import Activation
from ebcli.eb.rules.rule import Gradients
from ebcli.eb.torch_private import tree_map_only


class Weights(NamedTuple):
    """G (K, ...) of K joint neurons, which stands for G * 2 ** exponent."""

    G: Tensor
    exponent: int


class Sums(NamedTuple):
    """Excitations (K, B) of K joint neurons by something in each image, which stand for sums * 2 ** exponent."""

    sums: Tensor
    exponent: int


LostMass = dict[str, Tensor]


class LayerShares(NamedTuple):
    """Relevance (K, ...), and the mass (K, B) that each image lost, by the names of operations."""

    relevance: Tensor
    lost: LostMass


class JointNeuron:
    """Propagates, for `walk`, the weights of joint neurons.

    The rule is homogeneous, so its activations keep the largest weight in range, by powers of two: the product of all
    would underflow in float16, or deep in a network.

    Args:
        above_classifier: the activations there.

    Attributes:
        constants: of each call of a module that is recorded once more, the excitations by constants in it.
    """

    def __init__(self, above_classifier: Container[Op] = ()) -> None:
        self._above_classifier = above_classifier
        self.constants: dict[Op, list[Sums]] = {}

    def __call__(self, op: Op, incoming: list[list[Weights]]) -> list[list[Weights]]:
        if isinstance(op.rule, Checkpoint):
            return self._through(op, op.rule, incoming)
        exponent = max(weights.exponent for of_result in incoming for weights in of_result)
        G = [_sum(of_result, exponent) for of_result in incoming]
        rule = op.rule.slopes_above_classifier if op in self._above_classifier else op.rule.slopes
        scale = _rescale if isinstance(op.rule, Activation) else Weights
        return [[] if g is None else [scale(g, exponent)] for g in _slopes(op, rule, G)]

    def _through(self, op: Op, rule: Checkpoint, incoming: list[list[Weights]]) -> list[list[Weights]]:
        """Propagate through the operations of a module."""
        with rule.recorded(op) as recorded:
            pairs = zip(recorded.results, incoming, strict=True)
            start = {value: weights for value, weights in pairs if weights}
            joins = [below for below in recorded.ops if joins_constants(below)]
            inside = JointNeuron()
            targets = [*recorded.sources, *(below.out for below in joins)]
            messages = walk(start, recorded.ops, inside, targets)
            self.constants[op] = [*chain(*inside.constants.values()), *_constant_sums(joins, messages)]
            return [messages.get(source, []) for source in recorded.sources]


def _constant_sums(joins: Sequence[Op], messages: Messages) -> Iterator[Sums]:
    """The excitations by constants in a module, of a single image."""
    for op in joins:
        if op.out in messages:
            exponent = _largest_exponent([op.out], messages)
            excitation = _excitation(op.out, messages, exponent).where(_is_constant(op), 0)
            yield Sums(excitation.flatten(1).sum(1, keepdim=True), exponent)


def _largest_exponent(values: Sequence[Value], messages: Messages) -> int:
    return max(weights.exponent for value in values for weights in messages[value])


def _slopes(op: Op, rule: Callable[..., Gradients], G: Sequence[Any]) -> Gradients:
    """What a rule answers for K joint neurons, one after another, as the weights of one alone fill a device."""
    count = next(len(g) for g in G if g is not None)
    by_neuron = [rule(op, tree_map_only(Tensor, itemgetter(k), [*G])) for k in range(count)]
    if count == 1:
        return tree_map_only(Tensor, lambda g: g[None], by_neuron[0])
    return [None if slopes[0] is None else torch.stack(slopes) for slopes in zip(*by_neuron, strict=True)]


def _rescale(G: Tensor, exponent: int) -> Weights:
    if G.is_meta or not G.numel():
        return Weights(G, exponent)
    minimum, maximum = map(float, G.aminmax())
    shift = max(-100, min(100, math.frexp(max(-minimum, maximum))[1]))  # 0 of 0, infinity and NaN
    limit = 30
    if G.dtype == torch.float16:
        limit = 4
    if abs(shift) < limit:
        return Weights(G, exponent)
    return Weights(G.mul_(2.0**-shift), exponent + shift)


def _sum(weights: Sequence[Weights], exponent: int) -> Any:
    if not weights:
        return None
    return add_all([G if e == exponent else G * 2.0 ** (e - exponent) for G, e in weights])


def joint_shares(output: Value, priors: Tensor, paths: Paths, images: Images) -> list[LayerShares]:
    """For each layer, its relevance, and the shares of constants above it.

    Args:
        output: the logits.
        priors: where probability starts, (K, ...), each shaped like the logits.
        paths: to the layers.
        images: of each element.
    """
    ops = path_ops(paths)
    joins = [op for op in ops if joins_constants(op)]
    targets = [*(path.layer for path in paths), *(op.out for op in joins)]
    neuron = JointNeuron({op for op in descend([output], is_learned) if isinstance(op.rule, Activation)})
    messages = walk({output: [Weights(priors, 0)]}, ops, neuron, targets)
    masks = {op: op.memoize(partial(_is_constant, op)) for op in joins if op.out in messages}

    shares = []
    for path in paths:
        nothing = priors.new_zeros(len(priors), *path.layer.shape)
        messages.setdefault(path.layer, [Weights(nothing, 0)])
        inside = {op: sums for op, sums in neuron.constants.items() if op in path.ops}
        with_constants = {op: masks[op] for op in path.ops if op in masks and masks[op].any()}
        shares.append(_shares(path.layer, messages, with_constants, inside, images))
    return shares


def _shares(
    layer: Value,
    messages: Messages,
    masks: Mapping[Op, Tensor],
    inside: Mapping[Op, Sequence[Sums]],
    images: Images,
) -> LayerShares:
    """The relevance of a layer, and the shares of constants.

    Args:
        layer: the layer.
        messages: what has arrived there, and where constants join.
        masks: where the results of operations are constants.
        inside: the excitations by constants in modules.
        images: of each element.
    """
    exponent = _largest_exponent([layer, *(op.out for op in masks)], messages)
    exponent = max([exponent, *(sums.exponent for sums in chain(*inside.values()))])

    def sum_up(z: Tensor, value: Value) -> Tensor:
        return torch.stack([images.sums(of_neuron, value) for of_neuron in z])

    z = _excitation(layer, messages, exponent)
    constants: LostMass = {}
    for op, mask in masks.items():
        excitation = _excitation(op.out, messages, exponent).where(mask, 0)
        constants[op.site] = constants.get(op.site, 0) + sum_up(excitation, op.out)
    for op, of_module in inside.items():
        for sums in of_module:
            constants[op.site] = constants.get(op.site, 0) + sums.sums * 2.0 ** (sums.exponent - exponent)
    total = sum_up(z, layer) + sum(constants.values())
    pairs = zip(z, total, strict=True)
    relevance = torch.stack([ratio(of_neuron, images.spread(sums, layer)) for of_neuron, sums in pairs])
    return LayerShares(
        relevance.to(layer.dtype), {site: ratio(sums, total) for site, sums in constants.items()}
    )


def _is_constant(op: Op) -> Tensor:
    """Which elements of a result come from no input that depends on the image, in a shape that broadcasts."""
    marks = [ONE_MARK.reshape([1] * value.ndim) for value in op.operands]
    (result,) = move_marks(op, marks)
    return (result == 0).to(op.out.device)


def _excitation(value: Value, messages: Messages, exponent: int) -> Tensor:
    """max(a G, 0), and 0 where G is 0: padding may be infinite."""
    a = value.tensor
    G = _sum(messages[value], exponent)
    if a.dtype in (torch.float16, torch.bfloat16):
        a, G = a.float(), G.float()
    return (a * G).where(G != 0, 0).clamp_(min=0)
