"""Layer-wise relevance propagation: the gamma rule in layers with weights, and what is linear around them.

A neuron y = sum_k a_k w_k + b passes its relevance R to its inputs by their contributions, of which those with the sign
s of the neuron count 1 + gamma times (Montavon et al., 2019, section 10.2.3; for inputs of both signs, Andeol et al.,
2021):

    R_k = (a_k w_k + gamma s max(s a_k w_k, 0)) / (y + gamma s (sum_j max(s a_j w_j, 0) + max(s b, 0))) R

What is sent down is not R but G = R / y, so that nothing is divided by values near zero, and the rules are

    G_k = R_k / a_k                           below layers with weights
    G = M^T G                                 below sums, averages, and what else is linear: by contributions (LRP-0)
    G_u = h / u G                             at activations h = f(u), which pass relevance through
    R = a G                                   at the layer

Attention weights and the deviations of norms are constants (Ali et al., 2022), so queries and keys get nothing. In a
product of two signals, the gate is a constant, too, and the signal gets all relevance (Arras et al., 2017): attention
is such a product, and so is it for Excitation Backprop. AttnLRP (Achtibat et al., 2024) gives half of it to each.

A scale or a batch norm behind a layer is one neuron with it, whose weights have the scale in them. Behind anything
else, such as the sum that a pre-activation block reads, it is a linear map of its own, and its shift takes a share as
a bias does.

Relevance starts at the score: the output, weighted by the prior. Where a softmax or another activation is behind the
classifier, it starts before that. So a map sums to the score, but for what biases and constants such as class tokens
take, and negative values speak against the class whichever sign the score has.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ebcli.eb.arguments import check_relevance, priors
from ebcli.eb.forward import Forward, LayerCells, LayerChoice, recorded
from ebcli.eb.inputs import Inputs
from ebcli.eb.mode import UnsupportedPolicy, refuse
from ebcli.eb.operations import Op, Value
from ebcli.eb.paths import Path, descend, is_learned, path_ops, walk, without_rule
from ebcli.eb.products import LinearMap, add_all, ratio
from ebcli.eb.rules.activations import Activation, Scale
from ebcli.eb.rules.moves import Move, Winner
from ebcli.heads import HeadChoice

GAMMA = 0.25


class LayerRelevance(NamedTuple):
    """Relevance at a layer.

    Attributes:
        cells: where the layer's output holds the cells of its map.
        relevance: (B, K, ...), like the layer's output, whose images are on axis 0.
    """

    cells: LayerCells
    relevance: Tensor


class Neuron(NamedTuple):
    """What arrives at a value.

    Attributes:
        G: of the neuron, the relevance over the response.
        response: y = c a + d, of an affine map behind the layer that made the value a; None: the value itself.
        factor: c.
    """

    G: Tensor
    response: Tensor | None = None
    factor: Any = 1

    def relevance(self, value: Value) -> Tensor:
        """R, which is 0 where G is: padding may be infinite."""
        response = value.tensor if self.response is None else self.response
        return (response * self.G).where(self.G != 0, 0)


def relevance_propagation(
    net: Module,
    inputs: Inputs,
    targets: Callable[[Tensor], Tensor],
    layers: Sequence[LayerChoice],
    *,
    head: HeadChoice = None,
    unsupported: UnsupportedPolicy = "error",
) -> list[LayerRelevance]:
    """The relevance of scores at each of some layers, from one forward pass and a backward pass for each score.

    Args:
        net: the network.
        inputs: (B, ...).
        targets: from logits to the priors (B, K, num_classes, ...), which weigh the output in each score.
        layers: their names; None for the input.
        head: the head, if there are several.
        unsupported: ``"gradient"`` uses gradients for operations without a rule.

    Raises:
        LayerError, ConfigurationError, UnsupportedOpError: as `ebcli.excitation_backprop`.
        NonFiniteError: the logits or the relevance are not finite.
    """
    with recorded(net, inputs, layers, head) as forward:
        by_score, _ = priors(targets(forward.logits), forward.logits)
        refuse([site for path in forward.paths for site in without_rule(path.ops)], unsupported)
        of_scores = [_backward(forward, prior) for prior in by_score]
        return [_stack(forward, path, parts) for path, *parts in zip(forward.paths, *of_scores, strict=True)]


def _backward(forward: Forward, prior: Tensor) -> list[Tensor]:
    """The relevance of one score at each layer, shaped like the layer's output."""
    values = [path.layer for path in forward.paths]
    start = {forward.output: [Neuron(prior)]}
    messages = walk(start, path_ops([*forward.paths]), RelevanceRule(forward.output), values)
    relevance = []
    for value in values:
        total = torch.zeros_like(value.tensor)
        for neuron in messages.get(value, ()):
            total = total + neuron.relevance(value)
        relevance.append(total)
    return relevance


def _stack(forward: Forward, path: Path, of_scores: Sequence[Tensor]) -> LayerRelevance:
    cells = forward.cells_of(path)
    relevance = torch.stack([of_score.movedim(cells.image_axis or 0, 0) for of_score in of_scores], 1)
    check_relevance(relevance)
    return LayerRelevance(cells, relevance)


class RelevanceRule:
    """Propagates, for `walk`, the relevance of neurons over their response.

    Args:
        output: the logits' value.
        gamma: how much more the contributions with the sign of a neuron count.
    """

    def __init__(self, output: Value, gamma: float = GAMMA) -> None:
        self._gamma = gamma
        self._above_classifier = {
            op for op in descend([output], is_learned) if isinstance(op.rule, Activation)
        }

    def __call__(self, op: Op, incoming: list[list[Neuron]]) -> list[list[Neuron]]:
        if is_learned(op) and not op.rule.averages(op):
            parts = [self._below_layer(op, neuron) for neuron in _combined(incoming[0])]
            return [[Neuron(add_all(parts))]]
        if _is_one_with_layer(op):
            return [[_scaled(op, neuron) for neuron in _combined(incoming[0])]]
        if _keeps_neurons(op):
            return self._moved(op, incoming)
        return self._linear(op, incoming)

    def _linear(self, op: Op, incoming: list[list[Neuron]]) -> list[list[Neuron]]:
        """G = M^T G, or h / u G."""
        G = [add_all([n.G * n.factor for n in neurons]) if neurons else None for neurons in incoming]
        slopes = op.rule.slopes
        if op in self._above_classifier:
            slopes = op.rule.slopes_above_classifier
        elif isinstance(op.rule, Activation):
            slopes = op.rule.slopes_of_relevance
        return [[] if g is None else [Neuron(g)] for g in slopes(op, G)]

    def _moved(self, op: Op, incoming: list[list[Neuron]]) -> list[list[Neuron]]:
        """The same neurons, at the places where their elements come from."""
        outgoing: list[list[Neuron]] = [[] for _ in op.operands]
        values = [[neuron for neuron in neurons if neuron.response is None] for neurons in incoming]
        if any(values):
            outgoing = self._linear(op, values)
        for position, neurons in enumerate(incoming):
            for neuron in neurons:
                if neuron.response is not None:
                    for of_operand, moved in zip(outgoing, _pull_back(op, position, neuron), strict=True):
                        of_operand.append(moved)
        return outgoing

    def _below_layer(self, op: Op, neuron: Neuron) -> Tensor:
        """G of the inputs of neurons y = c (W a + b) + d, with contributions c W a and the bias c b + d."""
        layer = op.rule.linear(op)
        weights = _SignedWeights(layer, op.operand, has_negatives=not op.operand.facts.nonnegative)
        positive, negative = op.memoize(weights.contributions)
        y = op.out.tensor if neuron.response is None else neuron.response
        c = torch.as_tensor(neuron.factor).to(y)
        is_turned = y.sign() * c.sign() < 0  # the response has not the sign of W a + b
        bias = y - c * (positive - negative)
        same_sign = c.abs() * torch.where(is_turned, negative, positive) + (y.sign() * bias).clamp(min=0)
        Q = c.abs() * neuron.G * ratio(y, y.abs() + self._gamma * same_sign)
        by_sign = Q.where(~is_turned, 0), Q.where(is_turned, 0)
        G_positive, G_negative = ((1 + self._gamma) * by_sign[s] - by_sign[1 - s] for s in (0, 1))
        return weights.transposed(G_positive, G_negative)


def _combined(neurons: Sequence[Neuron]) -> list[Neuron]:
    """Neurons, of which those whose response is the value are added up."""
    results = [neuron for neuron in neurons if neuron.response is not None]
    G = [neuron.G for neuron in neurons if neuron.response is None]
    if G:
        results.append(Neuron(add_all(G)))
    return results


def _is_one_with_layer(op: Op) -> bool:
    """Whether it is a scale or a batch norm behind a layer."""
    return isinstance(op.rule, Scale) and op.signal.facts.is_open and op.out.shape == op.operand.shape


def _scaled(op: Op, neuron: Neuron) -> Neuron:
    response = op.out.tensor if neuron.response is None else neuron.response
    return Neuron(neuron.G, response, op.rule.factor(op) * neuron.factor)


def _keeps_neurons(op: Op) -> bool:
    """Whether it moves elements of responses, and makes no copies of them."""
    if not isinstance(op.rule, Move) or isinstance(op.rule, Winner):
        return False
    return sum(value.numel for value in op.operands) >= sum(value.numel for value in op.outs)


def _pull_back(op: Op, position: int, neuron: Neuron) -> list[Neuron]:
    """What arrives at each operand of a neuron at one of the results."""
    out = op.outs[position]

    def move(part: Any) -> Sequence[Any]:
        of_results: list[Tensor | None] = [None] * len(op.outs)
        of_results[position] = torch.as_tensor(part, dtype=out.dtype, device=out.device).expand(out.shape)
        moved: Sequence[Any] = op.rule.slopes(op, of_results)
        return moved

    return [Neuron(*parts) for parts in zip(*map(move, neuron), strict=True)]


class _SignedWeights:
    """W = W+ - W-, of a layer.

    Args:
        linear: the layer.
        signal: what it reads.
        has_negatives: the signal may be negative.
    """

    def __init__(self, linear: LinearMap, signal: Value, *, has_negatives: bool) -> None:
        self._linear = linear
        self._signal = signal
        self._has_negatives = has_negatives
        weight = linear.weight
        self._halves = [linear]
        if weight is not None:
            splits = weight.clamp(min=0), (-weight).clamp(min=0)
            self._halves = [LinearMap(linear.apply, split, back=linear.back) for split in splits]

    def contributions(self) -> tuple[Any, Any]:
        """The sums of the positive contributions a_k w_k to each neuron, and of the negative ones, without sign."""
        a = self._signal.tensor
        sizes = [a.clamp(min=0), (-a).clamp(min=0)]
        if not self._has_negatives:
            sizes = [a]
        positive: Any = 0
        negative: Any = 0
        for index, size in enumerate(sizes):
            products = [half.exact(size) for half in self._halves]
            positive = positive + sum(products[index::2])
            negative = negative + sum(products[1 - index :: 2])
        return positive, negative

    def transposed(self, G_positive: Tensor, G_negative: Tensor) -> Tensor:
        """W+^T of the first and W-^T of the second for inputs above 0, minus the other way round for those below."""
        a = self._signal.tensor
        above = self._sum(G_positive, G_negative)
        if not self._has_negatives:
            return above
        return above.where(a >= 0, -self._sum(G_negative, G_positive))

    def _sum(self, *G: Tensor) -> Tensor:
        parts = [half.transposed(g, self._signal.tensor) for half, g in zip(self._halves, G, strict=False)]
        total: Tensor = add_all(parts)
        return total
