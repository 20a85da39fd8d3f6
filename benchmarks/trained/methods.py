"""The maps that are compared: Excitation Backprop in three forms, and others at the same layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

import ebcli

from .attn_lrp import AttnLRP

JOINT, STEPWISE = "joint", "step by step"
_EXCITATION = ("contrastive", "against the other", "against the others", "marginal", "untrained")
Maps = dict[str | None, Tensor]  # by layer, None for the input: (B, K, H, W), a map for each of K classes


def excitation(
    net: nn.Module, images: Tensor, labels: Tensor, layers: Sequence[str | None]
) -> dict[str, Maps]:
    """Contrastive EB as it is by default, step by step and jointly; marginal EB; and target minus other class."""

    def maps(contrastive: bool, joint: bool | None = None) -> Maps:
        results = ebcli.excitation_backprop(net, images, labels, list(layers), contrastive, joint=joint)
        return {result.layer: result.maps for result in results}

    marginal = maps(contrastive=False)
    # the same as against=, which takes the same classes for all pictures
    normalized = {layer: found / found.sum((2, 3), keepdim=True) for layer, found in marginal.items()}
    return {
        "contrastive": maps(contrastive=True),
        STEPWISE: maps(contrastive=True, joint=False),
        JOINT: maps(contrastive=True, joint=True),
        "against the other": {layer: found - found.flip(1) for layer, found in normalized.items()},
        "marginal": marginal,
    }


def masses_and_rules(
    net: nn.Module, images: Tensor, labels: Tensor, layers: Sequence[str | None]
) -> dict[str | None, tuple[float, str]]:
    """For each layer, the mean mass of the marginal maps, and the rule that the network decides on."""
    results = ebcli.excitation_backprop(net, images, labels, list(layers))
    return {result.layer: (float(result.mass.mean()), rule_of(result)) for result in results}


def rule_of(result: ebcli.ExcitationResult) -> str:
    """The rule of a map, by the name of the method that always takes it."""
    return JOINT if result.joint else STEPWISE


def rule_for(method: str, decided: str) -> str:
    """The rule of a method's maps, given the one that was decided on; empty for methods that have none."""
    if method in (JOINT, STEPWISE):
        return method
    return decided if method in _EXCITATION else ""


def gradients(
    net: nn.Module, images: Tensor, labels: Tensor, grids: dict[str | None, Sequence[int]]
) -> dict[str, Maps]:
    """Grad-CAM, LayerCAM and gradient x activation at each layer; `grids` has the layers' rows and columns."""
    reached, slopes = slopes_at(net, images, labels, list(grids), nullcontext())
    found: dict[str, Maps] = {name: {} for name in _COMBINED}
    for layer, (rows, columns) in grids.items():
        value = channels_first(reached[layer], rows, columns)[:, None]
        slope = torch.stack([channels_first(by_class, rows, columns) for by_class in slopes[layer]], 1)
        for name, combined in _COMBINED.items():
            found[name][layer] = combined(value, slope)
    return found


def attn_lrp(net: nn.Module, images: Tensor, labels: Tensor, grids: dict[str | None, Sequence[int]]) -> Maps:
    """AttnLRP's relevance at each layer."""
    reached, slopes = slopes_at(net, images, labels, list(grids), AttnLRP())
    maps: Maps = {}
    for layer, grid in grids.items():
        value = channels_first(reached[layer], *grid)
        maps[layer] = torch.stack([(value * channels_first(s, *grid)).sum(1) for s in slopes[layer]], 1)
    return maps


_COMBINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Grad-CAM": lambda a, g: (a * g.mean((3, 4), keepdim=True)).sum(2),
    "LayerCAM": lambda a, g: (a * g.clamp(min=0)).sum(2),
    "gradient x activation": lambda a, g: (a * g).sum(2),
}


def slopes_at(
    net: nn.Module,
    images: Tensor,
    labels: Tensor,
    layers: Sequence[str | None],
    mode: AbstractContextManager[object],
) -> tuple[dict[str | None, Tensor], dict[str | None, list[Tensor]]]:
    """The layers' outputs, and for each column of labels the slopes that autograd brings there."""
    reached: dict[str | None, Tensor] = {}
    modules = dict(net.named_modules())

    def keep(layer: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            reached[layer] = output
            return output.clone()  # what follows may overwrite it

        return hook

    handles = [modules[layer].register_forward_hook(keep(layer)) for layer in layers if layer is not None]
    try:
        with torch.enable_grad(), mode:
            reached[None] = images.detach().clone().requires_grad_()
            logits = net(reached[None])
    finally:
        for handle in handles:
            handle.remove()
    wanted = [reached[layer] for layer in layers]
    columns = [
        torch.autograd.grad(logits.gather(1, column[:, None]).sum(), wanted, retain_graph=True)
        for column in labels.T
    ]
    slopes = {layer: [column[i] for column in columns] for i, layer in enumerate(layers)}
    return {layer: value.detach() for layer, value in reached.items()}, slopes


def channels_first(value: Tensor, rows: int, columns: int) -> Tensor:
    """A layer's output as (B, C, H, W): from that, from (B, H, W, C), or from tokens (B, n + H W, C)."""
    if value.ndim == 3:
        return value[:, value.shape[1] - rows * columns :].mT.unflatten(2, (rows, columns))
    return value if tuple(value.shape[2:]) == (rows, columns) else value.permute(0, 3, 1, 2)
