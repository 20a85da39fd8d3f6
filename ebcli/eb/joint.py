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
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import Messages, Paths, descend, is_learned, joins_constants, path_ops, walk
from ebcli.eb.places import ONE_MARK, Images, move_marks
from ebcli.eb.products import add_all, ratio
from ebcli.eb.rules.activations import Activation


class Weights(NamedTuple):
    """G, which stands for G * 2 ** exponent."""

    G: Tensor
    exponent: int


LostMass = dict[str, Tensor]


class LayerShares(NamedTuple):
    """Relevance, and the mass that each image lost, by the names of operations."""

    relevance: Tensor
    lost: LostMass


class JointNeuron:
    """Propagates, for `walk`, the weights of one joint neuron.

    The rule is homogeneous, so its activations keep the largest weight in range, by powers of two: the product of all
    would underflow in float16, or deep in a network.

    Args:
        output: the logits' value.
    """

    def __init__(self, output: Value) -> None:
        self._above_classifier = {
            op for op in descend([output], is_learned) if isinstance(op.rule, Activation)
        }

    def __call__(self, op: Op, incoming: list[list[Weights]]) -> list[list[Weights]]:
        exponent = max(weights.exponent for of_result in incoming for weights in of_result)
        G = [_sum(of_result, exponent) for of_result in incoming]
        slopes = (op.rule.slopes_above_classifier if op in self._above_classifier else op.rule.slopes)(op, G)
        scale = _rescale if isinstance(op.rule, Activation) else Weights
        return [[] if g is None else [scale(g, exponent)] for g in slopes]


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


def joint_shares(output: Value, prior: Tensor, paths: Paths, images: Images) -> list[LayerShares]:
    """For each layer, its relevance, and the shares (B,) of constants above it.

    Args:
        output: the logits.
        prior: where probability starts, shaped like the logits.
        paths: to the layers.
        images: of each element.
    """
    ops = path_ops(paths)
    joins = [op for op in ops if joins_constants(op)]
    targets = [*(path.layer for path in paths), *(op.out for op in joins)]
    messages = walk({output: [Weights(prior, 0)]}, ops, JointNeuron(output), targets)
    masks = {op: op.memoize(partial(_is_constant, op)) for op in joins if op.out in messages}
    shares = []
    for path in paths:
        messages.setdefault(path.layer, [Weights(torch.zeros_like(path.layer.tensor), 0)])
        with_constants = [op for op in path.ops if op in masks and masks[op].any()]
        values = [path.layer, *(op.out for op in with_constants)]
        exponent = max(weights.exponent for value in values for weights in messages[value])
        z = _excitation(path.layer, messages, exponent)
        constants: LostMass = {}
        for op in with_constants:
            excitation = _excitation(op.out, messages, exponent).where(masks[op], 0)
            constants[op.site] = constants.get(op.site, 0) + images.sums(excitation, op.out)
        total = images.sums(z, path.layer) + sum(constants.values())
        relevance = ratio(z, images.spread(total, path.layer)).to(path.layer.dtype)
        shares.append(LayerShares(relevance, {site: ratio(sums, total) for site, sums in constants.items()}))
    return shares


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
