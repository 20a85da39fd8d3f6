"""excitation_backprop(): a forward pass, a prior over the classes, and one way down to a layer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.eb import graph
from ebcli.eb.building import mark_bypass
from ebcli.eb.functions import Excitation, PassThrough, quiet
from ebcli.eb.mode import ExcitationMode, Unsupported
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError, LayerError, closest
from ebcli.maps import saliency_map


@dataclass(frozen=True)
class ExcitationResult:
    """What :func:`excitation_backprop` found, for B images; with K targets for each, K follows B in every shape.

    Attributes:
        relevance: the layer's share of probability, shaped like its output: (B, ...) or (B, K, ...). Never
            negative if marginal; signed if contrastive.
        mass: (B,) or (B, K), what the marginal map sums to: 1 less what neurons active only through their bias
            have swallowed.
        logits: (B, num_classes), the network's output; (B, num_classes, H, W) with a class for each pixel.
        contrastive: whether `relevance` is contrastive.
        layer: the layer's name; None for the input.
        losses: where `explain_losses` asked for it, (B,) or (B, K) for each operation that has swallowed something,
            by its name and module: what arrived at neurons that no input of the right sign explains. What `mass` and
            these leave of 1 went past the layer, to constants or by another way.
    """

    relevance: Tensor
    mass: Tensor
    logits: Tensor
    contrastive: bool
    layer: str | None
    input_shape: tuple[int, ...]
    layer_shape: tuple[int, ...]
    losses: dict[str, Tensor] | None = None

    @property
    def maps(self) -> Tensor:
        """Relevance summed over channels, unclamped: (B, H, W) or (B, K, H, W).

        Raises:
            LayerError: the layer's output has no spatial extent.
        """
        lead = self.relevance.ndim - len(self.layer_shape) + 1
        flat = self.relevance.reshape(-1, *self.layer_shape[1:])
        maps = saliency_map(flat, self.input_shape, layer=self.layer)
        return maps.reshape(*self.relevance.shape[:lead], *maps.shape[1:])


def excitation_backprop(
    net: nn.Module,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: str | nn.Module | None = None,
    contrastive: bool = False,
    *,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    explain_losses: bool = False,
) -> ExcitationResult:
    """Excitation Backprop (Zhang et al., ECCV 2016) from classes down to a layer.

    Marginal EB (Eq. 4, 10) hands the probability on the target down through contributions of the sign of the
    response they explain. Contrastive EB (Eq. 6 to 8) subtracts, at the layer below the classifier, what goes
    to the target's dual, a unit with negated weights, and hands the difference down in the same pass.

    The network runs in evaluation mode and is left as it was found. It runs plainly up to the layer.

    Args:
        net: the network; its output is (B, num_classes), or a tuple or dict whose first tensor is. With a class for
            each pixel, as in segmentation, it is (B, num_classes, H, W).
        inputs: (B, ...), preprocessed as the network expects.
        targets: a class index for all, (B,) or (B, K) class indices, or a prior of any floating type, shaped like
            the output; or a function from logits to one of these.
        layer: a module of `net` or its name in ``net.named_modules()``; None stands for the input.
        contrastive: subtract the dual's map.
        where: for an output (B, num_classes, H, W), the pixel (row, column) or the mask of weights (H, W) or
            (B, H, W) to explain; None for all pixels alike.
        unsupported: ``"gradient"`` uses ordinary gradients, with a warning, where an operation has no rule.
        explain_losses: find out which operations have swallowed how much, at the cost of memory and another pass.

    Raises:
        LayerError: the layer does not exist, is not called exactly once, has no single tensor for an output, or
            nothing goes from it to the output.
        ConfigurationError: the targets do not fit the logits.
        UnsupportedOpError: operations between the layer and the output have no rule.

    Example:
        >>> net = torch.nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> result = excitation_backprop(net, torch.rand(2, 3, 8, 8), [[1, 2], [3, 4]], layer="1")
        >>> result.relevance.shape, result.maps.shape, result.mass.shape
        (torch.Size([2, 2, 8, 6, 6]), torch.Size([2, 2, 6, 6]), torch.Size([2, 2]))
    """
    if not isinstance(inputs, Tensor):
        raise ConfigurationError(f"the inputs are a {type(inputs).__name__}, but a tensor (B, ...) is needed")
    with torch.inference_mode(False), torch.no_grad():
        if inputs.is_inference():
            inputs = inputs.clone()  # autograd may not save tensors made in inference mode
        with _evaluation(net), ExcitationMode(net, unsupported=unsupported) as mode, _Capture(net, layer) as capture:
            output = net(capture.enter(inputs))
        logits = _single_tensor(output, "the network's output")
        leaf = capture.leaf()
        if logits.grad_fn is None:
            raise LayerError(
                f"nothing goes from {capture.label} to the network's output, or it is cut on the way by detach() or "
                "torch.no_grad() in the network: choose a layer above that"
            )
        sites = graph.unexplained(logits)
        if sites:
            mode.refuse(sites)
        mode.settled = True
        wanted = targets(logits.detach()) if callable(targets) else targets
        prior, single = priors(wanted, logits.detach(), where)
        losses = _losses(logits, prior) if explain_losses else None
        relevance, mass = _descend(logits, leaf, prior, contrastive, capture.label)
    relevance = relevance.transpose(0, 1)
    return ExcitationResult(
        relevance=relevance[:, 0] if single else relevance,
        mass=mass[0] if single else mass.mT,
        logits=logits.detach(),
        contrastive=contrastive,
        layer=capture.name,
        input_shape=tuple(inputs.shape),
        layer_shape=tuple(leaf.shape),
        losses=losses and {site: lost[0] if single else lost.mT for site, lost in losses.items()},
    )


def _losses(logits: Tensor, prior: Tensor) -> dict[str, Tensor]:
    """By operation, (K, B): the probability that arrives, from a prior (K, B, ...), at neurons nothing explains."""
    nodes = [node for node in graph.descend([logits.grad_fn]) if graph.is_made_by(node, Excitation)]
    edges = [torch.autograd.graph.GradientEdge(node, 0) for node in nodes]
    arrived = torch.autograd.grad(
        logits, edges, prior, retain_graph=True, allow_unused=True, is_grads_batched=True, materialize_grads=False
    )
    losses: dict[str, Tensor] = {}
    for node, P in zip(nodes, arrived, strict=True):
        if P is not None:  # a layer that something is folded into is not on the way down
            _, z = node.contributions.sum_up(*node.saved_tensors)
            lost = P.where(z == 0, 0).flatten(2).sum(2)
            losses[node.site] = losses.get(node.site, 0) + lost
    return {site: lost for site, lost in losses.items() if lost.any()}


def _descend(logits: Tensor, leaf: Tensor, prior: Tensor, contrastive: bool, label: str) -> tuple[Tensor, Tensor]:
    """Relevance (K, B, ...) at `leaf` and the marginal mass (K, B), for a prior (K, B, num_classes, ...)."""
    layers = [node for node in graph.descend([logits.grad_fn]) if graph.is_made_by(node, Excitation)]
    top = graph.weighted_below([logits.grad_fn]) if contrastive else []
    if contrastive and not top:
        raise LayerError(
            f"{label} is not below the classifier, so there is nothing to contrast: choose one nearer the input"
        )
    for node in top:
        node.contributions.dual = node.contributions.of_dual()
    if contrastive or len(prior) > 1:
        with quiet():
            for node in layers:
                if len(prior) > 1 or not node.contributions.is_prepared_in_passing:
                    node.contributions.prepare(*node.saved_tensors)
            for node in top:
                node.contributions.dual.prepare(*node.saved_tensors)
    relevance = _down(logits, leaf, prior)
    if not contrastive:
        return relevance, _mass(relevance)
    if graph.loses_nothing(logits):
        return relevance, _mass(prior)
    for node in top:
        node.contributions.dual = None
    return relevance, _mass(_down(logits, leaf, prior))


def _mass(relevance: Tensor) -> Tensor:
    """What each of (K, B, ...) sums to, (K, B)."""
    return relevance.flatten(2).sum(2, dtype=torch.float64).to(relevance.dtype)


def _down(logits: Tensor, leaf: Tensor, priors: Tensor) -> Tensor:
    """Hand priors (K, B, num_classes, ...) down to `leaf`, all K together."""

    def down(prior: Tensor) -> Tensor:
        (relevance,) = torch.autograd.grad(logits, leaf, prior, retain_graph=True, materialize_grads=True)
        return relevance

    return torch.vmap(down)(priors) if len(priors) > 1 else down(priors[0])[None]


def _single_tensor(output: Any, what: str) -> Tensor:
    """The one floating-point tensor in a module's output."""
    if isinstance(output, Tensor):
        return output
    tensors = [item for _, item in _items(output) if isinstance(item, Tensor) and item.is_floating_point()]
    if not tensors:
        raise LayerError(f"{what} holds no tensor, but a {type(output).__name__}")
    return tensors[0]


@contextmanager
def _evaluation(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for every module, each put back as it was."""
    training = [module for module in net.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


class _Capture(ExitStack):
    """Cuts the network at a layer: its output becomes the leaf that the signal starts from."""

    def __init__(self, net: nn.Module, layer: str | nn.Module | None) -> None:
        super().__init__()
        self.name, self._module = _find(net, layer)
        self.label = "the input" if self._module is None else f"layer {self.name!r}"
        self._leaves: list[Tensor] = []
        self._thread = threading.get_ident()
        if self._module is not None:
            handle = self._module.register_forward_hook(self._cut)
            self.callback(handle.remove)

    def enter(self, inputs: Tensor) -> Tensor:
        """What to give the network for `inputs`."""
        return self._start(inputs) if self._module is None else mark_bypass(inputs.detach())

    def leaf(self) -> Tensor:
        """The leaf. Raises LayerError if the layer was not called exactly once."""
        if not self._leaves:
            raise LayerError(f"{self.label} was not called in the forward pass")
        return self._leaves[0]

    def _start(self, value: Tensor) -> Tensor:
        if self._leaves:
            raise LayerError(
                f"{self.label} is called more than once in the forward pass: choose a layer that is called once"
            )
        if not value.is_floating_point():
            raise LayerError(f"{self.label} is {value.dtype}, but probability goes down to floating-point values only")
        leaf = value.detach().requires_grad_()
        self._leaves.append(leaf)
        torch.set_grad_enabled(True)  # from here on up; the caller's no_grad() ends it
        # a copy, for what follows may work in place, which a leaf does not allow; and the rules ask what made it
        with quiet():
            copied: Tensor = PassThrough.apply(leaf.clone, leaf)
            copied.grad_fn.nonnegative = not bool((value < 0).any())  # type: ignore[union-attr]
        return copied

    def _cut(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return output  # another thread's forward pass
        if isinstance(output, Tensor):
            return self._start(output)
        tensors = [k for k, v in _items(output) if isinstance(v, Tensor) and v.is_floating_point()]
        if len(tensors) != 1:
            raise LayerError(
                f"{self.label} has no single tensor for an output but a {type(output).__name__} of "
                f"{len(tensors)}: choose a layer inside or after it"
            )
        return _replaced(output, tensors[0], self._start(dict(_items(output))[tensors[0]]))


def _items(output: Any) -> list[tuple[Any, Any]]:
    if isinstance(output, dict):
        return list(output.items())
    return list(enumerate(output)) if isinstance(output, (list, tuple)) else []


def _replaced(output: Any, place: Any, value: Tensor) -> Any:
    """The same container with another value in one place."""
    if isinstance(output, tuple):
        items = [value if i == place else item for i, item in enumerate(output)]
        return type(output)(*items) if hasattr(output, "_fields") else tuple(items)
    output = copy.copy(output)
    output[place] = value
    return output


def _find(net: nn.Module, layer: str | nn.Module | None) -> tuple[str | None, nn.Module | None]:
    """A layer's name and module, given either."""
    if layer is None:
        return None, None
    modules = dict(net.named_modules(remove_duplicate=False))
    if isinstance(layer, nn.Module):
        for name, module in modules.items():
            if module is layer:
                return name, layer
        raise LayerError(f"this {type(layer).__name__} is not a module of the network")
    if not layer or layer not in modules:
        hint = closest(layer, filter(None, modules))
        raise LayerError(f"the network has no layer {layer!r}" + (f": {hint}" if hint else ""))
    return layer, modules[layer]
