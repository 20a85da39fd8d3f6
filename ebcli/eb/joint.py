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

import torch
from torch import Tensor

from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import Path, Places, descend, is_constant, is_learned, joins_constants, latest_first, walk
from ebcli.eb.products import added, ratio
from ebcli.eb.rules.activations import Activation

Weights = tuple[Tensor, int]  # G and an exponent: G stands for G * 2 ** exponent
Found = tuple[Tensor, dict[str, Tensor]]  # relevance, and the mass that each image lost, by the names of operations


class Joint:
    """An answer for `walk`: the weights of one joint neuron.

    The rule is homogeneous, so its activations keep the largest weight in range, by powers of two: the product of all
    would underflow in float16, or deep in a network.

    Args:
        output: the logits' value.
    """

    def __init__(self, output: Value) -> None:
        self._above = {op for op in descend([output], is_learned) if isinstance(op.rule, Activation)}

    def __call__(self, op: Op, arrived: list[list[Weights]]) -> list[list[Weights]]:
        exponent = max(e for weights in arrived for _, e in weights)
        G = [_sum(weights, exponent) if weights else None for weights in arrived]
        slopes = op.rule.slopes_above_classifier(op, G) if op in self._above else op.rule.slopes(op, G)
        scales = isinstance(op.rule, Activation)
        return [[] if g is None else [_scaled(g, exponent) if scales else (g, exponent)] for g in slopes]


def _scaled(G: Tensor, exponent: int) -> Weights:
    if G.is_meta or not G.numel():
        return G, exponent
    least, most = map(float, G.aminmax())
    shift = max(-100, min(100, math.frexp(max(-least, most))[1]))  # 0 of 0, infinity and NaN
    in_range = 4 if G.dtype == torch.float16 else 30
    return (G, exponent) if abs(shift) < in_range else (G.mul_(2.0**-shift), exponent + shift)


def _sum(weights: Sequence[Weights], exponent: int) -> Tensor:
    return added([G if e == exponent else G * 2.0 ** (e - exponent) for G, e in weights])


def explained(output: Value, prior: Tensor, paths: Sequence[Path], images: Places) -> list[Found]:
    """For each layer, its relevance, and the shares (B,) of constants above it.

    Args:
        output: the logits.
        prior: where probability starts, shaped like the logits.
        paths: to the layers.
        images: of each element.
    """
    ops = latest_first(op for path in paths for op in path.ops)
    joins = [op for op in ops if joins_constants(op)]
    wanted = [*(path.layer for path in paths), *(op.out for op in joins)]
    arrived = walk({output: [(prior, 0)]}, ops, Joint(output), wanted)
    masks = {op: op.once(partial(is_constant, op, op.out)) for op in joins if op.out in arrived}
    found: list[Found] = []
    for path in paths:
        arrived.setdefault(path.layer, [(torch.zeros_like(path.layer.tensor), 0)])
        others = [op for op in path.ops if op in masks and masks[op].any()]
        exponent = max(e for value in (path.layer, *(op.out for op in others)) for _, e in arrived[value])
        z = _excitation(path.layer, _sum(arrived[path.layer], exponent))
        constants: dict[str, Tensor] = {}
        for op in others:
            excitation = _excitation(op.out, _sum(arrived[op.out], exponent)).where(masks[op], 0)
            constants[op.site] = constants.get(op.site, 0) + images.sums(excitation, op.out)
        total = images.sums(z, path.layer) + sum(constants.values())
        P = ratio(z, images.spread(total, path.layer)).to(path.layer.dtype)
        found.append((P, {site: ratio(of, total) for site, of in constants.items()}))
    return found


def _excitation(value: Value, G: Tensor) -> Tensor:
    """max(a G, 0), and 0 where G is 0: padding may be infinite."""
    a = value.tensor
    if a.dtype in (torch.float16, torch.bfloat16):
        a, G = a.float(), G.float()
    return (a * G).where(G != 0, 0).clamp_(min=0)
