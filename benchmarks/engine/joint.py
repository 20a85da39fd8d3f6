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

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.engine.paths import Path, descend, is_constant, is_learned, joins_constants, walk
from benchmarks.engine.places import Places
from benchmarks.engine.products import ratio
from benchmarks.engine.record import Op, Value
from benchmarks.engine.rules.activations import Activation

Weights = tuple[Tensor, int]  # G and an exponent: G stands for G * 2 ** exponent


class Joint:
    """An answer for `walk`: the weights of one joint neuron.

    The rule is homogeneous, so weights may be scaled: in float16, and deep in a network, their product underflows.

    Args:
        output: the logits' value.
        scales: keep the largest weight near 1, by powers of two.
    """

    def __init__(self, output: Value, *, scales: bool = False) -> None:
        self._above = {op for op in descend([output], is_learned) if isinstance(op.rule, Activation)}
        self._scales = scales

    def __call__(self, op: Op, arrived: list[list[Weights]]) -> list[list[Weights]]:
        exponent = max(e for weights in arrived for _, e in weights)
        G = [_sum(weights, exponent) if weights else None for weights in arrived]
        slopes = op.rule.slopes_above_classifier(op, G) if op in self._above else op.rule.slopes(op, G)
        return [[] if g is None else [self._scaled(g, exponent)] for g in slopes]

    def _scaled(self, G: Tensor, exponent: int) -> Weights:
        if not self._scales or not G.numel():
            return G, exponent
        largest = float(G.abs().amax())
        if largest == 0 or not math.isfinite(largest):
            return G, exponent
        shift = math.frexp(largest)[1]
        return torch.ldexp(G, torch.tensor(-shift, device=G.device)) if G.dtype != torch.float16 else (
            G.float() * 2.0**-shift
        ).half(), exponent + shift


def _sum(weights: Sequence[Weights], exponent: int) -> Tensor:
    terms = [G if e == exponent else G * 2.0 ** (e - exponent) for G, e in weights]
    return sum(terms[1:], terms[0])


def explained(
    output: Value, prior: Tensor, paths: Sequence[Path], images: Places, *, scales: bool | None = None
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """For each layer, its relevance, and the shares (B,) of constants above it.

    Args:
        output: the logits.
        prior: where probability starts, shaped like the logits.
        paths: to the layers.
        images: of each element.
        scales: see `Joint`; None if weights would be lost otherwise.
    """
    if scales is None:
        if prior.dtype != torch.float16:
            found = explained(output, prior, paths, images, scales=False)
            if all(bool((P != 0).flatten().any()) and bool(P.isfinite().all()) for P, _ in found if P.numel()):
                return found
        return explained(output, prior, paths, images, scales=True)
    ops = dict.fromkeys(op for path in paths for op in path.ops)
    joins = {op.out: op for op in ops if joins_constants(op)}
    wanted = [*(path.layer for path in paths), *joins]
    arrived = walk({output: [(prior, 0)]}, wanted, Joint(output, scales=scales), ops)
    masks = {op: op.once(partial(is_constant, op, out)) for out, op in joins.items() if out in arrived}
    found = []
    for path in paths:
        if path.layer not in arrived:
            found.append((torch.zeros_like(path.layer.tensor), {}))
            continue
        above = set(path.ops)
        others = {op: op.out for op in masks if op in above and masks[op].any()}
        exponent = max(e for value in (path.layer, *others.values()) for _, e in arrived[value])
        z = _excitation(path.layer, _sum(arrived[path.layer], exponent))
        constants: dict[str, Tensor] = {}
        for op, out in others.items():
            of = images.sums(_excitation(out, _sum(arrived[out], exponent)).where(masks[op], 0), out)
            constants[op.site] = constants.get(op.site, 0) + of
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
