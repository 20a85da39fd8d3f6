"""Attention rollout (Abnar and Zuidema, 2020): how much of each token reaches another one through all attention.

In each block, a token becomes itself plus a mixture of all tokens, by weights A that are averaged over heads. So

    rollout = (A_n + I) / 2 ... (A_2 + I) / 2 (A_1 + I) / 2

The map has the rows of the tokens that the classifier reads: the class token (and the distillation token, if it has a
classifier of its own, or an equal part in it), or else all cells, if they are pooled.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.eb.cells import InputGrid, Tokens
from ebcli.eb.forward import Forward, LayerChoice, recorded
from ebcli.eb.inputs import Inputs
from ebcli.eb.lrp import Neuron, RelevanceRule
from ebcli.eb.operations import Op
from ebcli.eb.paths import Path, descend, walk
from ebcli.eb.rules.layers import AttentionProduct
from ebcli.errors import ConfigurationError
from ebcli.heads import HeadChoice


class Rollout(NamedTuple):
    """The rollout of an image's tokens.

    Attributes:
        maps: (B, *grid), how much of each cell's token is in the tokens that the classifier reads.
        num_scores: K, of the scores.
        special_tokens: how many tokens are no cells.
    """

    maps: Tensor
    num_scores: int
    special_tokens: int


def attention_rollout(
    net: Module,
    inputs: Inputs,
    targets: Callable[[Tensor], Tensor],
    layers: Sequence[LayerChoice],
    *,
    head: HeadChoice = None,
) -> Rollout:
    """The rollout of attention up to the last of some layers.

    Args:
        net: the network.
        inputs: (B, ...).
        targets: from logits to priors (B, K, ...).
        layers: their names. The input, or a layer below all blocks, stands for all blocks.
        head: the head, if there are several.

    Raises:
        ConfigurationError: the network has no attention, or not among all tokens of the picture.
        LayerError: as `ebcli.excitation_backprop`.
    """
    with recorded(net, inputs, [None, *layers], head, names_all=True) as forward:
        num_scores = targets(forward.logits).shape[1]
        blocks = Blocks(forward)
        rows = blocks.rollout(_blocks_asked(blocks, forward))[:, blocks.tokens_read()].mean(1)
        cells = rows[:, list(blocks.tokens.cells)]
        maps = cells.unflatten(1, blocks.tokens.grid).to(forward.logits.dtype)
        return Rollout(maps, num_scores, blocks.tokens.total - cells.shape[1])


def _blocks_asked(blocks: "Blocks", forward: Forward) -> Sequence[Op]:
    """The attention below the last of the layers; all of it if that is the input, or lies below all blocks."""
    values = [path.layer for path in forward.paths]
    below = {*descend([max(values, key=lambda value: value.made_at)])}
    return [op for op in blocks.attention if op in below] or blocks.attention


class Blocks:
    """The blocks of a network whose attention is among all tokens of the picture.

    Args:
        forward: the forward pass.

    Attributes:
        attention: the operation of each block that weighs tokens, earliest first.
        tokens: the cells among the tokens.

    Raises:
        ConfigurationError: the network has no such blocks, or other attention below them.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        ops = [op for op in reversed(descend([forward.output])) if isinstance(op.rule, AttentionProduct)]
        if not ops:
            raise ConfigurationError("attention rollout needs attention, and this network has none")
        while len(ops) > 1 and _num_queries(ops[-1]) != _num_tokens(ops[-1]):
            ops.pop()  # it pools the tokens, as a class token does that comes last
        self.attention = ops
        grid = InputGrid(forward.tape.ops, forward.sources[None])
        of_blocks = [_tokens_attending(op, grid) for op in ops]
        for op, tokens in zip(ops, of_blocks, strict=True):
            if tokens is None or tokens != of_blocks[0]:
                raise ConfigurationError(
                    f"attention rollout needs every token to attend to all tokens of one grid: {op.site} does not, as "
                    "in windows or to pooled tokens, so choose another method"
                )
            self.tokens = tokens

    def rollout(self, attention: Sequence[Op]) -> Tensor:
        """How much of each token is in each other one after some of the blocks, (B, tokens, tokens)."""
        device = self._forward.logits.device
        identity = torch.eye(self.tokens.total, device=device)
        total = identity.expand(len(self._forward.logits), -1, -1)
        for op in attention:
            weights = self._mean_over_heads(op) + identity
            weights = weights / weights.sum(-1, keepdim=True)
            total = weights @ total.to(weights.dtype)
        return total

    def tokens_read(self) -> Tensor:
        """The tokens that the classifier reads: those that are no cells, or else all cells."""
        output = self._forward.output
        last = self.attention[-1]
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
        start = {output: [Neuron(noise.to(output.device, output.dtype))]}
        messages = walk(start, Path(output, last.out).ops, RelevanceRule(output), [last.out])
        is_read = torch.zeros(self.tokens.total, dtype=torch.bool, device=output.device)
        for neuron in messages.get(last.out, ()):
            is_read |= neuron.G.movedim(last.rule.query_axis, 0).flatten(1).any(1)
        cells = torch.tensor(self.tokens.cells, device=output.device)
        is_read[cells] = False
        special = is_read.nonzero().flatten()
        if len(special):
            return special
        return cells

    def _mean_over_heads(self, op: Op) -> Tensor:
        """The attention weights, (B, queries, keys)."""
        value = op.operand
        identity = torch.eye(self.tokens.total, dtype=value.dtype, device=value.device)
        weights = op.rule.linear(op).exact(identity.expand(*value.shape[:-2], -1, -1))
        if op.rule.query_axis == -1:
            weights = weights.mT
        numbers = self._forward.images.numbers(op.out)
        if numbers is None:
            raise ConfigurationError(f"{op.site} mixes the images of a batch: pass one image")
        images = numbers.expand(*weights.shape[:-2], 1, 1).flatten().to(value.device)
        heads = weights.reshape(-1, self.tokens.total, self.tokens.total).to(
            torch.promote_types(value.dtype, torch.float32)
        )
        sums = heads.new_zeros(len(self._forward.logits), self.tokens.total, self.tokens.total).index_add(
            0, images, heads
        )
        return sums * (len(sums) / len(heads))


def _tokens_attending(op: Op, grid: InputGrid) -> Tokens | None:
    """The tokens that attend to one another; None if not each of them attends to all tokens of a grid."""
    if _num_queries(op) != _num_tokens(op) or not op.rule.has_no_negatives:
        return None
    return grid.tokens_of(op.operand, op.operand.ndim + op.rule.query_axis)


def _num_queries(op: Op) -> int:
    return int(op.out.shape[op.rule.query_axis])


def _num_tokens(op: Op) -> int:
    return int(op.operand.shape[op.rule.query_axis])
