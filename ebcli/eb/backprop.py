"""excitation_backprop(): a forward pass, a prior over the classes, and one backward pass to a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn

from ebcli.eb.arguments import batch_checked, check_arguments, check_logits, check_relevance
from ebcli.eb.capture import Capture, LayerChoice, single_tensor
from ebcli.eb.contrast import Against, priors_against
from ebcli.eb.eval_mode import evaluating
from ebcli.eb.explanation import Explanation, Forward, LayerPath
from ebcli.eb.graph import BackwardGraph
from ebcli.eb.joint import Joint
from ebcli.eb.maps import channel_axis_of
from ebcli.eb.mode import ExcitationMode, Unsupported
from ebcli.eb.primitives import let_feed_inactive
from ebcli.eb.result import ExcitationResult
from ebcli.eb.stepwise import Stepwise
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError


class HasNetwork(Protocol):
    """What `load_model` returns."""

    @property
    def net(self) -> nn.Module: ...


@overload
def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: LayerChoice = None,
    contrastive: bool = False,
    *,
    against: Against | None = None,
    joint: bool | None = None,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    track_lost_mass: bool = False,
) -> ExcitationResult: ...


@overload
def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: list[Any] | tuple[LayerChoice, ...],
    contrastive: bool = False,
    *,
    against: Against | None = None,
    joint: bool | None = None,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    track_lost_mass: bool = False,
) -> tuple[ExcitationResult, ...]: ...


def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Targets | Callable[[Tensor], Targets],
    layer: LayerChoice | list[Any] | tuple[LayerChoice, ...] = None,
    contrastive: bool = False,
    *,
    against: Against | None = None,
    joint: bool | None = None,
    where: Where | None = None,
    unsupported: Unsupported = "error",
    track_lost_mass: bool = False,
) -> ExcitationResult | tuple[ExcitationResult, ...]:
    """Excitation Backprop (Zhang et al., ECCV 2016) from classes down to a layer.

    Marginal EB (MWP; Eq. 4, 10) splits each neuron's probability among its inputs by their contributions with the
    sign of the neuron's response. Contrastive EB (c-MWP; Eq. 6 to 8) subtracts, at the layer below the classifier,
    the probability of the target's dual, a unit with negated weights, and propagates the difference. At a layer with
    class or register tokens, which are no cells of the map, the maps of both are normalized over its cells first.

    The network runs in evaluation mode and is restored afterwards. Up to the layer it runs without autograd.

    Args:
        net: the network, or what `load_model` returned. Its output is (B, num_classes), or a tuple or dict whose first
            tensor is; for dense predictions, such as segmentation, (B, num_classes, H, W).
        inputs: (B, ...), preprocessed.
        targets: one class index for all images, class indices (B,) or (B, K), or a floating-point prior shaped like
            the output, or K priors (B, K, ...); or a function from logits to one of these.
        layer: a module of `net`, or its name in ``net.named_modules()``; None for the input. A list or tuple of
            layers shares one forward pass and the same backward passes.
        contrastive: subtract the dual's map.
        against: one or several class indices. The map is contrastive: the target's map minus the mean map of these
            classes, each normalized over the cells of the map. It replaces the dual.
        joint: explain all winning neurons jointly (True) or step by step (False). None decides for each layer:
            jointly where activations with values of both signs, such as GELU, SiLU and hard swish, are between the
            layer and the classifier, unless attention mixes cells that the classifier averages.
        where: for an output (B, num_classes, H, W), the pixel (row, column) or the mask of weights (H, W) or
            (B, H, W) to explain; None for all pixels.
        unsupported: ``"gradient"`` falls back to ordinary gradients, with a warning, for operations without a rule.
        track_lost_mass: record which operations lost probability. Takes more memory and an extra backward pass.

    Returns:
        The result; for several layers, a tuple of results in the order of the layers, with shared logits.

    Raises:
        LayerError: the layer does not exist, is not called exactly once, does not return a single tensor, or the
            output does not depend on it.
        ConfigurationError: the targets do not fit the logits, a class is both a target and in `against`, or the
            inputs are not finite.
        NonFiniteError: the logits or the map are not finite.
        UnsupportedOpError: operations between the layer and the output have no rule.

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> images = torch.rand(2, 3, 8, 8)
        >>> ebcli.excitation_backprop(net, images, targets=4, layer="1").maps.shape  # one class for both images
        torch.Size([2, 6, 6])
        >>> ebcli.excitation_backprop(net, images, [4, 7], "1", contrastive=True).maps.shape  # one class per image
        torch.Size([2, 6, 6])
        >>> top3 = lambda logits: logits.topk(3).indices
        >>> ebcli.excitation_backprop(net, images, top3, "1").maps.shape  # three classes per image
        torch.Size([2, 3, 6, 6])
        >>> coarse, fine = ebcli.excitation_backprop(net, images, 4, layer=["1", None])
        >>> fine.maps.shape
        torch.Size([2, 8, 8])
    """
    network: Any = net if isinstance(net, nn.Module) else getattr(net, "net", net)
    check_arguments(network, inputs)
    network = getattr(network, "_orig_mod", network)  # the module that torch.compile() compiled
    layers = layer if isinstance(layer, (list, tuple)) else (layer,)
    if not layers:
        raise ConfigurationError("no layer given: name at least one")
    with torch.inference_mode(False), torch.no_grad():
        forward = _record(network, inputs, layers, unsupported)
        logits = forward.logits.detach()
        prior, single = priors(targets(logits) if callable(targets) else targets, logits, where)
        others = None if against is None else priors_against(against, prior)
        by_layer = [forward.graph.explains_jointly(p.above) if joint is None else joint for p in forward.paths]
        found: dict[LayerPath, ExcitationResult] = {}
        for is_joint in sorted(set(by_layer)):
            paths = [path for path, which in zip(forward.paths, by_layer, strict=True) if which == is_joint]
            rule: Explanation = (Joint if is_joint else Stepwise)(forward, paths, prior)
            lost_mass = rule.lost_mass() if track_lost_mass else [None] * len(paths)
            shares = rule.relevance(contrastive) if others is None else rule.against(others)
            check_relevance([relevance for relevance, _ in shares])
            for path, (relevance, mass), lost in zip(paths, shares, lost_mass, strict=True):
                found[path] = ExcitationResult(
                    relevance=relevance[0] if single else relevance.transpose(0, 1),
                    mass=_by_image(mass, single),
                    logits=logits,
                    contrastive=contrastive or against is not None,
                    layer=path.layer.name,
                    input_shape=forward.input_shape,
                    layer_shape=tuple(path.layer.shape),
                    lost_mass=lost and {name: _by_image(by_class, single) for name, by_class in lost.items()},
                    against=None if against is None else (against,) if isinstance(against, int) else tuple(against),
                    joint=is_joint,
                    channel_axis=channel_axis_of(network, inputs),
                )
    results = tuple(found[path] for path in forward.paths)
    return results if isinstance(layer, (list, tuple)) else results[0]


def _by_image(by_class: Tensor, single: bool) -> Tensor:
    """(K, B) as (B, K), or (B,) if there is no K."""
    return by_class[0] if single else by_class.mT


def _record(net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice], unsupported: Unsupported) -> Forward:
    """Run the network once, and record what both rules need."""
    if inputs.is_inference():
        inputs = inputs.clone()  # autograd may not save tensors made in inference mode
    mode, capture, logits = _run(net, inputs, layers, unsupported)
    check_logits(net, inputs, logits)
    let_feed_inactive(logits)
    graph = BackwardGraph(logits)
    paths = [LayerPath.down_to(layer, graph) for layer in capture.layers()]
    mode.refuse(graph.without_rule)
    mode.is_settled = True
    return Forward(logits, graph, mode.recording, paths, tuple(inputs.shape))


def _run(
    net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice], unsupported: Unsupported = "error"
) -> tuple[ExcitationMode, Capture, Tensor]:
    with (
        evaluating(net),
        ExcitationMode(net, unsupported=unsupported) as mode,
        Capture(net, layers, mode.recording) as capture,
        torch.enable_grad(),
        batch_checked(net, inputs),
    ):
        return mode, capture, single_tensor(net(capture.enter(inputs)), "the network's output")


def layers_on_path(net: nn.Module, inputs: Tensor, layers: Sequence[str]) -> list[str]:
    """The layers among `layers` that probability reaches. The others only compute gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device if the network is.
        layers: names of modules, each called once and returning a single tensor.
    """
    with torch.inference_mode(False), torch.no_grad():
        _, capture, output = _run(net, inputs, [None, *layers])
        _, *found = capture.layers()
        graph = BackwardGraph(output)
    return [name for name, layer in zip(layers, found, strict=True) if graph.ends(layer.edge.node)]
