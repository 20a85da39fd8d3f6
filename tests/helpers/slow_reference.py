"""Excitation Backprop of a network of :mod:`fuzz`, node by node from its description and the definition alone.

For every neuron n the contributions of its inputs are written out as a matrix z_ni = a_i w_ni, and

    P(i | n) = max(s_n z_ni, 0) / sum_k max(s_n z_nk, 0)          (Zhang et al. 2016, Eq. 4)

with s_n the sign of n's response, or +1 for the units of the classifier and -1 for their duals (Eq. 6 to 8). A batch
norm, or a constant added, belongs to the layer whose values it gets: its output is that layer's response, and
the signs of its scale turn that layer's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Arrived:
    """Probability that has come down to a node.

    Attributes:
        P: shaped like the node's value.
        sign: of the responses further up that stand for the node's own; None where these are the node's own.
        turn: +1 or -1, by which its weights are multiplied on the way to that response.
    """

    P: Tensor
    sign: Tensor | None = None
    turn: Tensor | None = None


class SlowReference:
    """Relevance at every node of a description, for a prior.

    Attributes:
        P: node -> its share of probability, shaped like its value.
        lost: what arrived at neurons that nothing explains, over the whole batch.
        constant: what went to constants, over the whole batch.
    """

    def __init__(self, description: Any, prior: Tensor, *, contrastive: bool = False) -> None:
        self.nodes, self.contrastive, self._given = description.nodes, contrastive, (description, prior)
        self.values = description.values
        self.P: dict[int, Tensor] = {}
        self.lost = self.constant = 0.0
        self.classifiers = self._classifiers()
        arrived: dict[int, list[Arrived]] = {len(self.nodes) - 1: [Arrived(prior)]}
        for i in range(len(self.nodes) - 1, -1, -1):
            self.P[i] = sum((part.P for part in arrived.get(i, [])), torch.zeros_like(self.values[i]))
            for part in self.parts(arrived.pop(i, [])):
                for operand, share in self.hand_down(i, part):
                    arrived.setdefault(operand, []).append(share)

    def marginal(self) -> SlowReference:
        """The same without the duals."""
        return SlowReference(*self._given)

    def parts(self, arrived: list[Arrived]) -> list[Arrived]:
        """What has arrived at a node, in parts that are handed down one by one."""
        return arrived

    def on_path(self) -> list[int]:
        """The nodes that probability can reach, in order."""
        return self._below([len(self.nodes) - 1])

    def below_classifier(self) -> list[int]:
        """Those of them that are below the classifier."""
        return self._below([k for i in self.classifiers for k in self._signals(i)])

    def _below(self, waiting: list[int]) -> list[int]:
        reached = set()
        while waiting:
            i = waiting.pop()
            if i not in reached:
                reached.add(i)
                waiting += self._signals(i)
        return sorted(reached)

    def _signals(self, i: int) -> tuple[int, ...]:
        node = self.nodes[i]
        if node.kind == "gated":
            return node.inputs[:1]
        if node.kind in ("attend", "sdpa"):
            return node.inputs[-1:]
        return node.inputs

    def _classifiers(self) -> set[int]:
        found, waiting = set(), [len(self.nodes) - 1]
        while waiting:
            i = waiting.pop()
            if self.nodes[i].kind in ("weighted", "multi_head"):
                found.add(i)
            else:
                waiting += self._signals(i)
        return found

    def hand_down(self, i: int, part: Arrived) -> list[tuple[int, Arrived]]:
        node = self.nodes[i]
        if node.kind == "input":
            return []
        found = getattr(self, f"_{node.kind}")(i, part, *(self.values[k] for k in node.inputs))
        pairs = zip(self._signals(i), found if isinstance(found, tuple) else (found,), strict=True)
        return [(k, share if isinstance(share, Arrived) else Arrived(share)) for k, share in pairs]

    # rules

    def _explained(self, z: Tensor, sign: Tensor, P: Tensor) -> Tensor:
        """z (..., inputs) for neurons (...): the inputs' shares of P, (..., inputs)."""
        wanted = (sign[..., None] * z).clamp(min=0)
        total = wanted.sum(-1)
        self.lost += float(P[total == 0].sum())
        return wanted * (P / torch.where(total == 0, 1.0, total))[..., None]

    def _by_weights(
        self, i: int, part: Arrived, a: Tensor, W: Tensor, *, is_classifier: bool = False
    ) -> Tensor:
        """W (out, in) for each row of `a`; the response is the node's value unless something above stands for it."""
        response = self.values[i].sign() if part.sign is None else part.sign
        z = W * a.reshape(len(a), 1, -1)  # (rows, out, in)
        if part.turn is not None:
            z = z * part.turn.reshape(len(a), -1, 1)
        P, sign = part.P.reshape(len(a), -1), response.reshape(len(a), -1)
        if is_classifier:
            share = self._explained(z, torch.ones_like(sign), P)
            if self.contrastive:
                share = share - self._explained(z, -torch.ones_like(sign), P)
        else:
            share = self._explained(z, sign, P)
        return share.sum(1).reshape(a.shape)

    def _matrix(self, linear: Any, a: Tensor) -> Tensor:
        """W (out, in) of a linear map of one row, read off unit vectors."""
        units = torch.eye(a[0].numel(), dtype=a.dtype).reshape(-1, *a.shape[1:])
        return linear(units).reshape(len(units), -1).T

    def _weighted(self, i: int, part: Arrived, a: Tensor) -> Tensor:
        W = self._matrix(self.nodes[i].facts["linear"], a)
        return self._by_weights(i, part, a, W, is_classifier=i in self.classifiers)

    def _average(self, i: int, part: Arrived, a: Tensor) -> Tensor:
        return self._by_weights(i, Arrived(part.P), a, self._matrix(self.nodes[i].facts["linear"], a))

    def _sum(self, i: int, part: Arrived, *terms: Tensor) -> tuple[Tensor, ...]:
        scales = self.nodes[i].facts["scales"]
        z = torch.stack([scale * term for scale, term in zip(scales, terms, strict=True)], -1)
        return self._explained(z, z.sum(-1).sign(), part.P).unbind(-1)

    def _pass(self, i: int, part: Arrived, a: Tensor) -> Tensor:
        return part.P

    def _scale(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        return self._affine(i, part, self.nodes[i].facts["c"].sign())

    def _shift(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        return self._affine(i, part, torch.tensor(float(self.nodes[i].facts["sign"])))

    def _batch_norm(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        gamma = self.nodes[i].facts["gamma"]
        return self._affine(i, part, gamma.sign().reshape(-1, *[1] * (a.ndim - 2)))

    def _affine(self, i: int, part: Arrived, turn: Tensor) -> Arrived:
        """y = c a + b: what explains y are the contributions to a, turned with c."""
        y = self.values[i]
        turn = turn.double().expand_as(y)
        return Arrived(
            part.P,
            y.sign() if part.sign is None else part.sign,
            turn if part.turn is None else part.turn * turn,
        )

    def _move(self, i: int, part: Arrived, *operands: Tensor) -> tuple[Arrived, ...]:
        """Every element of the value is one of an operand's, or a constant (-1)."""
        facts, sizes = self.nodes[i].facts, [operand.numel() for operand in operands]
        places, start = [], 0
        for operand in operands:
            places.append(torch.arange(start, start + operand.numel()).reshape(operand.shape))
            start += operand.numel()
        places = facts["move"](*places).flatten()
        known = places >= 0
        self.constant += float(part.P.flatten()[~known].sum())

        def brought(values: Tensor | None, by: str) -> list[Any]:
            if values is None:
                return [None] * len(operands)
            flat = torch.zeros(start, dtype=torch.float64)
            if by == "sum":
                flat.index_add_(0, places[known], values.flatten()[known])
            else:
                flat[places[known]] = values.flatten()[known]
            return [piece.reshape(o.shape) for piece, o in zip(flat.split(sizes), operands, strict=True)]

        keeps = facts.get("folds")
        columns = (
            brought(part.P, "sum"),
            brought(part.sign if keeps else None, ""),
            brought(part.turn if keeps else None, ""),
        )
        return tuple(Arrived(*column) for column in zip(*columns, strict=True))

    def _max_pool(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        _, winners = self.nodes[i].facts["pool"](a)

        def brought(values: Tensor | None) -> Any:
            """Each winner's sum."""
            if values is None:
                return None
            sums = torch.zeros_like(a).flatten(2)
            return sums.scatter_add(2, winners.flatten(2), values.flatten(2)).reshape(a.shape)

        sign, turn = (
            None if values is None else values.sign() for values in map(brought, (part.sign, part.turn))
        )
        return Arrived(brought(part.P), sign, turn)

    def _amax(self, i: int, part: Arrived, a: Tensor) -> Arrived:
        dims = self.nodes[i].facts["dims"]
        wins = (a == a.amax(dims, keepdim=True)).double()
        shape = a.amax(dims, keepdim=True).shape
        P = wins * part.P.reshape(shape) / wins.sum(dims, keepdim=True)
        return Arrived(
            P, *(v if v is None else v.reshape(shape).expand_as(a) for v in (part.sign, part.turn))
        )

    def _maximum(self, i: int, part: Arrived, a: Tensor, b: Tensor) -> tuple[Arrived, ...]:
        first = torch.where(a == b, 0.5, (a > b).double())
        return tuple(Arrived(part.P * share, part.sign, part.turn) for share in (first, 1 - first))

    def _gated(self, i: int, part: Arrived, a: Tensor, gate: Tensor) -> Tensor:
        return part.P.sum_to_size(a.shape)

    # attention: the weights (..., N, M) are those of each neuron, the values (..., M, D) its inputs

    def _attended(self, out: Tensor, P: Tensor, weights: Tensor, v: Tensor) -> Tensor:
        z = weights[..., :, None, :] * v.mT[..., None, :, :]  # (..., N, D, M)
        return self._explained(z, out.sign(), P).sum(-3).mT

    def _attend(self, i: int, part: Arrived, weights: Tensor, v: Tensor) -> Tensor:
        return self._attended(self.values[i], part.P, weights, v)

    def _sdpa(self, i: int, part: Arrived, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        mask = self.nodes[i].facts.get("mask")
        weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        return self._attended(self.values[i], part.P, weights, v)

    def _multi_head(self, i: int, part: Arrived, x: Tensor) -> Tensor:
        module = self.nodes[i].facts["module"]
        with torch.no_grad():
            heads = [
                F.linear(x, W, b).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
                for W, b in zip(module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True)
            ]
            q, k, v = heads
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            mixed = weights @ v
            joined = mixed.transpose(1, 2).flatten(2)
            rows = joined.flatten(0, 1)
            response = F.linear(rows, module.out_proj.weight, module.out_proj.bias)
        top = i in self.classifiers
        P = self._rows(part.P.flatten(0, 1), response.sign(), rows, module.out_proj.weight.detach(), top)
        P = P.reshape(joined.shape).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        P = self._attended(mixed, P, weights, v).transpose(1, 2).flatten(2).flatten(0, 1)
        v = v.transpose(1, 2).flatten(2).flatten(0, 1)
        return self._rows(
            P, v.sign(), x.flatten(0, 1), module.in_proj_weight.detach().chunk(3)[2], False
        ).reshape(x.shape)

    def _rows(self, P: Tensor, sign: Tensor, a: Tensor, W: Tensor, is_classifier: bool) -> Tensor:
        z = W * a[:, None]
        if not is_classifier:
            return self._explained(z, sign, P).sum(1)
        share = self._explained(z, torch.ones_like(sign), P).sum(1)
        return share - self._explained(z, -torch.ones_like(sign), P).sum(1) if self.contrastive else share
