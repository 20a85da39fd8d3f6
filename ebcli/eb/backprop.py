"""excitation_backprop(): a forward pass, a prior over the classes, and one way down to a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ebcli.eb import graph
from ebcli.eb.autograd import Excitation, quiet
from ebcli.eb.capture import Capture, Cut, LayerChoice, single_tensor
from ebcli.eb.maps import saliency_map
from ebcli.eb.mode import ExcitationMode, Unsupported
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError, LayerError


@dataclass(frozen=True)
class ExcitationResult:
    """What `excitation_backprop` found, for B images; with K targets for each, K follows B in every shape.

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

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> result = ebcli.excitation_backprop(net, torch.rand(2, 3, 8, 8), targets=[[1, 2], [3, 4]], layer="1")
        >>> result.relevance.shape, result.maps.shape, result.mass.shape
        (torch.Size([2, 2, 8, 6, 6]), torch.Size([2, 2, 6, 6]), torch.Size([2, 2]))
        >>> torch.allclose(result.maps.sum((2, 3)), result.mass)
        True
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

    def _repr_png_(self) -> bytes | None:
        """What notebooks show."""
        from ebcli.drawing.api import png  # drawing is none of the method's business

        return png(self)


@overload
def excitation_backprop(
    net: nn.Module,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: LayerChoice = None,
    contrastive: bool = False,
    *,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    explain_losses: bool = False,
) -> ExcitationResult: ...


@overload
def excitation_backprop(
    net: nn.Module,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: list[Any] | tuple[LayerChoice, ...],
    contrastive: bool = False,
    *,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    explain_losses: bool = False,
) -> tuple[ExcitationResult, ...]: ...


def excitation_backprop(
    net: nn.Module,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: LayerChoice | list[Any] | tuple[LayerChoice, ...] = None,
    contrastive: bool = False,
    *,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    explain_losses: bool = False,
) -> ExcitationResult | tuple[ExcitationResult, ...]:
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
        layer: a module of `net` or its name in ``net.named_modules()``; None stands for the input. Several of them, in
            a list or tuple, are served by the same passes.
        contrastive: subtract the dual's map.
        where: for an output (B, num_classes, H, W), the pixel (row, column) or the mask of weights (H, W) or
            (B, H, W) to explain; None for all pixels alike.
        unsupported: ``"gradient"`` uses ordinary gradients, with a warning, where an operation has no rule.
        explain_losses: find out which operations have swallowed how much, at the cost of memory and another pass.

    Returns:
        The result; for several layers a tuple of results, which share their logits, in the layers' order.

    Raises:
        LayerError: the layer does not exist, is not called exactly once, has no single tensor for an output, or
            nothing goes from it to the output.
        ConfigurationError: the targets do not fit the logits.
        UnsupportedOpError: operations between the layer and the output have no rule.

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> images = torch.rand(2, 3, 8, 8)
        >>> ebcli.excitation_backprop(net, images, targets=4, layer="1").maps.shape  # one class for both images
        torch.Size([2, 6, 6])
        >>> ebcli.excitation_backprop(net, images, [4, 7], "1", contrastive=True).maps.shape  # each has its own
        torch.Size([2, 6, 6])
        >>> likeliest = lambda logits: logits.topk(3).indices
        >>> ebcli.excitation_backprop(net, images, likeliest, "1").maps.shape  # three for each
        torch.Size([2, 3, 6, 6])
        >>> coarse, fine = ebcli.excitation_backprop(net, images, 4, layer=["1", None])
        >>> fine.maps.shape
        torch.Size([2, 8, 8])
    """
    if not isinstance(inputs, Tensor):
        raise ConfigurationError(f"the inputs are a {type(inputs).__name__}, but a tensor (B, ...) is needed")
    layers = layer if isinstance(layer, (list, tuple)) else (layer,)
    if not layers:
        raise ConfigurationError("there is no layer to hand probability down to: name at least one")
    with torch.inference_mode(False), torch.no_grad():
        if inputs.is_inference():
            inputs = inputs.clone()  # autograd may not save tensors made in inference mode
        with _evaluation(net), ExcitationMode(net, unsupported=unsupported) as mode, Capture(net, layers) as capture:
            output = net(capture.enter(inputs))
        logits = single_tensor(output, "the network's output")
        ways = [LayerPath.down_to(cut, logits) for cut in capture.cuts()]
        sites = graph.unexplained(logits)
        if sites:
            mode.refuse(sites)
        mode.settled = True
        values = logits.detach()
        wanted = targets(values) if callable(targets) else targets
        prior, single = priors(wanted, values, where)
        losses = _losses(logits, ways, prior) if explain_losses else [None] * len(ways)
        shares = _descend(logits, ways, prior, contrastive)
    results = tuple(
        ExcitationResult(
            relevance=relevance[0] if single else relevance.transpose(0, 1),
            mass=mass[0] if single else mass.mT,
            logits=values,
            contrastive=contrastive,
            layer=way.cut.name,
            input_shape=tuple(inputs.shape),
            layer_shape=tuple(way.cut.value.shape),
            losses=lost and {site: by_class[0] if single else by_class.mT for site, by_class in lost.items()},
        )
        for way, (relevance, mass), lost in zip(ways, shares, losses, strict=True)
    )
    return results if isinstance(layer, (list, tuple)) else results[0]


def layers_on_path(net: nn.Module, inputs: Tensor, layers: Sequence[str]) -> list[str]:
    """Those of some layers from which anything goes to the output; the rest only makes gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device, as the network then is.
        layers: names of modules, each called once and with one tensor for an output.
    """
    with torch.inference_mode(False), torch.no_grad():
        with _evaluation(net), ExcitationMode(net, unsupported="gradient") as mode:
            mode.settled = True  # nothing comes down, so nothing is to be reported
            with Capture(net, [None, *layers]) as capture:
                output = net(capture.enter(inputs))
        _, *cuts = capture.cuts()
        nodes = list(graph.descend([single_tensor(output, "the network's output").grad_fn]))
    return [
        layer
        for layer, cut in zip(layers, cuts, strict=True)
        if any(graph.is_folded_into(node, cut.edge.node) for node in nodes)
    ]


@dataclass(frozen=True)
class LayerPath:
    """The way down to a layer.

    Attributes:
        cut: the layer.
        ends: the nodes at which all probability arrives that comes down to it: the layer's own, and those of the
            batch norm and ReLU that were folded into it, for these hand down to what the layer has read.
        above: the nodes from which probability comes down to it.
    """

    cut: Cut
    ends: list[Any]
    above: set[Any]

    @classmethod
    def down_to(cls, cut: Cut, logits: Tensor) -> LayerPath:
        """Raises LayerError if nothing goes from the layer to the logits."""
        nodes = list(graph.descend([logits.grad_fn]))
        readers: dict[Any, list[Any]] = {}
        for node in nodes:
            for parent in graph.parents(node):
                readers.setdefault(parent, []).append(node)
        ends = [node for node in nodes if graph.is_folded_into(node, cut.edge.node)]
        if not ends:
            raise LayerError(
                f"nothing goes from {cut.label} to the network's output, or it is cut on the way by detach() or "
                "torch.no_grad() in the network: choose a layer above that"
            )
        above, waiting = set(ends), list(ends)
        while waiting:
            new = [node for node in readers.get(waiting.pop(), ()) if node not in above]
            above.update(new)
            waiting += new
        return cls(cut, ends, above.difference(ends))

    @property
    def takes_all(self) -> bool:
        """Whether no probability goes past the layer, down to another one."""
        known = self.above.union(self.ends)
        return all(parent in known for node in self.above for parent in graph.parents(node))


def _losses(logits: Tensor, ways: Sequence[LayerPath], prior: Tensor) -> list[dict[str, Tensor]]:
    """By operation, (K, B): the probability that arrives, from a prior (K, B, ...), at neurons nothing explains."""
    nodes = [node for node in graph.descend([logits.grad_fn]) if graph.is_made_by(node, Excitation)]
    losses: list[dict[str, Tensor]] = [{} for _ in ways]
    if not nodes:
        return losses
    edges = [GradientEdge(node, 0) for node in nodes]
    arrived = torch.autograd.grad(
        logits, edges, prior, retain_graph=True, allow_unused=True, is_grads_batched=True, materialize_grads=False
    )
    for node, P in zip(nodes, arrived, strict=True):
        if P is not None:  # a layer that something is folded into is not on the way down
            _, z = node.contributions.normalizer(*node.saved_tensors)
            lost = P.where(z == 0, 0).flatten(2).sum(2)
            for way, by_site in zip(ways, losses, strict=True):
                if node in way.above and lost.any():
                    by_site[node.site] = by_site.get(node.site, 0) + lost
    return losses


def _descend(
    logits: Tensor, ways: Sequence[LayerPath], prior: Tensor, contrastive: bool
) -> list[tuple[Tensor, Tensor]]:
    """Relevance (K, B, ...) at each layer and the marginal mass (K, B), for a prior (K, B, num_classes, ...)."""
    layers = [node for node in graph.descend([logits.grad_fn]) if graph.is_made_by(node, Excitation)]
    top = graph.weighted_below([logits.grad_fn]) if contrastive else []
    for way in ways:
        if contrastive and way.above.isdisjoint(top):
            raise LayerError(
                f"{way.cut.label} is not below the classifier, so there is nothing to contrast: choose one nearer the "
                "input"
            )
    for node in top:
        node.contributions.dual = node.contributions.of_dual()
    if contrastive or len(prior) > 1:
        with quiet():
            for node in layers:
                if len(prior) > 1 or not node.contributions.normalizes_in_backward:
                    node.contributions.prepare(*node.saved_tensors)
            for node in top:
                node.contributions.dual.prepare(*node.saved_tensors)
    relevances = _down(logits, ways, prior)
    if not contrastive:
        return [(relevance, _mass(relevance)) for relevance in relevances]
    if all(way.takes_all for way in ways) and graph.loses_nothing(logits):
        return [(relevance, _mass(prior)) for relevance in relevances]
    for node in top:
        node.contributions.dual = None
    marginal = _down(logits, ways, prior)
    return [(relevance, _mass(P)) for relevance, P in zip(relevances, marginal, strict=True)]


def _mass(relevance: Tensor) -> Tensor:
    """What each of (K, B, ...) sums to, (K, B)."""
    return relevance.flatten(2).sum(2, dtype=torch.float64).to(relevance.dtype)


def _down(logits: Tensor, ways: Sequence[LayerPath], priors: Tensor) -> tuple[Tensor, ...]:
    """Hand priors (K, B, num_classes, ...) down to the layers, all K together."""
    edges = [GradientEdge(node, 0) for way in ways for node in way.ends]

    def down(prior: Tensor) -> tuple[Tensor, ...]:
        arrived = iter(torch.autograd.grad(logits, edges, prior, retain_graph=True, allow_unused=True))
        shares = [[P for P in islice(arrived, len(way.ends)) if P is not None] for way in ways]
        return tuple(
            sum(parts[1:], parts[0]) if parts else torch.zeros_like(way.cut.value)
            for way, parts in zip(ways, shares, strict=True)
        )

    return torch.vmap(down)(priors) if len(priors) > 1 else tuple(P[None] for P in down(priors[0]))


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
