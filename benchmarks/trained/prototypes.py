"""Joint Excitation Backprop: a prototype of Eq. 4 for networks whose layers read signed values.

Zhang et al. 2016 (Eq. 4 and 10) hand probability from each winning neuron n to its inputs i by itself:

    P(i) = sum_n P(n) max(a_i w_in, 0) / sum_k max(a_k w_kn, 0)

Where linear maps follow one another without a rectifier (linear bottlenecks, residual streams, LayerNorm, values and
output projection of attention), their outputs are not neurons: no coordinate of them wins or loses. Here all winners
are taken as one joint neuron, sum_n q_n y_n with q_n = P(n) / y_n, whose weights on whatever lies below are exact:

    G = M^T q                          below linear maps M between one layer of rectified units and the next
    P(n) = max(h_n G_n, 0)             at rectified units h_n = f(y_n); then q_n = P(n) / y_n
    P(i) = max(a_i G_i, 0) / sum_k max(a_k G_k, 0)    at the layer that is asked for

With one winner, this is Eq. 4 itself. Attention weights, gates and the standard deviations of LayerNorm are constants.
The class's unit starts with G = w_c and its dual with G = -w_c. Each walks down by itself, in a backward pass that
costs what a gradient does, and the maps, which both sum to 1, are subtracted at the layer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .attn_lrp import layer_norm
from .methods import Maps, channels_first


class Unit(Function):
    """A rectified unit h = f(y): its share of the joint neuron, if it excites it, goes on to y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(h, torch.where(y == 0, 0, h / y))
        return h.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        h, kept = ctx.saved_tensors
        return torch.where(h * slope > 0, slope * kept, 0), None


class Excitatory(Function):
    """Inputs as neurons of their own: those that inhibit the joint neuron lose."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return torch.where(a * slope > 0, slope, 0)


class JointExcitation(TorchFunctionMode):
    """Where it is on, autograd carries the weights G of the joint neuron.

    Args:
        classifier: the weight of the classifier, where its inputs are to be neurons, whatever made them, as in the
            paper's contrast (Eq. 6 to 8); None leaves them to what made them.
    """

    def __init__(self, classifier: Tensor | None = None) -> None:
        super().__init__()
        self._classifier = classifier

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and args[1] is self._classifier:
            return func(Excitatory.apply(args[0]), *args[1:], **kwargs)
        if func in _CONSTANT:
            return func(*args, **kwargs).detach()
        if func in _RECTIFIERS:
            y, *rest = args
            h = func(y.detach().clone(), *rest, **kwargs)
            return Unit.apply(y, h) if y.requires_grad else h
        if func is F.layer_norm:
            return layer_norm(func, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            return _attention(func, *args, **kwargs)
        return func(*args, **kwargs)


_CONSTANT = {F.sigmoid, torch.sigmoid, F.hardsigmoid, F.softmax, torch.softmax, Tensor.softmax}
_RECTIFIERS = {F.relu, torch.relu, F.relu_, torch.relu_, F.relu6, F.hardtanh, F.gelu, F.silu, F.hardswish}


def _attention(func: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """multi_head_attention_forward with its attention weights as constants; (L, B, E) to (L, B, E)."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    query, key, value = (
        F.linear(given[name], weight, bias).unflatten(2, (given["num_heads"], -1)).permute(1, 2, 0, 3)
        for name, weight, bias in zip(
            ("query", "key", "value"), given["in_proj_weight"].chunk(3), given["in_proj_bias"].chunk(3), strict=True
        )
    )  # (B, heads, L, E / heads)
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).detach().softmax(-1)
    mixed = (weights @ value).permute(2, 0, 1, 3).flatten(2)
    return F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"]), None


def joint_excitation(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    grids: dict[str | None, Sequence[int]],
    *,
    classifier: Tensor | None = None,
) -> dict[str, Maps]:
    """Marginal and contrastive joint EB, and target minus other class, at each layer, for labels (B, 2).

    Args:
        net: in evaluation mode.
        images: (B, 3, H, W).
        labels: (B, 2), the classes to ask for.
        grids: the layers' rows and columns.
        classifier: as in `JointExcitation`.
    """
    reached: dict[str | None, Tensor] = {}
    modules = dict(net.named_modules())

    def keep(layer: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            reached[layer] = output
            return output.clone()

        return hook

    handles = [modules[layer].register_forward_hook(keep(layer)) for layer in grids if layer is not None]
    try:
        with torch.enable_grad(), JointExcitation(classifier):
            reached[None] = images.detach().clone().requires_grad_()
            logits = net(reached[None])
    finally:
        for handle in handles:
            handle.remove()

    def down(start: Tensor) -> dict[str | None, Tensor]:
        slopes = torch.autograd.grad(logits, [reached[layer] for layer in grids], start, retain_graph=True)
        maps = {}
        for (layer, grid), slope in zip(grids.items(), slopes, strict=True):
            shares = channels_first(reached[layer].detach() * slope, *grid).clamp(min=0).sum(1)
            total = shares.sum((1, 2), keepdim=True)
            maps[layer] = shares / total.where(total > 0, 1)
        return maps

    units = [F.one_hot(column, logits.shape[1]).to(logits) for column in labels.T]
    targets, duals = [down(unit) for unit in units], [down(-unit) for unit in units]
    marginal = {layer: torch.stack([maps[layer] for maps in targets], 1) for layer in grids}
    return {
        "joint marginal": marginal,
        "joint contrastive": {
            layer: marginal[layer] - torch.stack([maps[layer] for maps in duals], 1) for layer in grids
        },
        "joint against the other": {layer: maps - maps.flip(1) for layer, maps in marginal.items()},
    }
