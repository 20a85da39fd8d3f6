"""excitation_backprop(): a forward pass, a prior over the classes, and one backward pass to a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from ebcli.eb.arguments import batch_checked, check_arguments, check_logits, check_relevance
from ebcli.eb.capture import Capture, LayerChoice, single_tensor
from ebcli.eb.contrast import Against, priors_against
from ebcli.eb.evaluation import as_found
from ebcli.eb.graph import BackwardGraph
from ebcli.eb.joint_passes import JointPasses
from ebcli.eb.mode import ExcitationMode, Unsupported
from ebcli.eb.passes import BackwardPasses
from ebcli.eb.paths import LayerPath
from ebcli.eb.prediction import probably_joint, remember
from ebcli.eb.primitives import let_feed_inactive
from ebcli.eb.result import ExcitationResult
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError


@overload
def excitation_backprop(
    net: nn.Module,
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
    net: nn.Module,
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
    net: nn.Module,
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
        net: the network. Its output is (B, num_classes), or a tuple or dict whose first tensor is; for dense
            predictions, such as segmentation, (B, num_classes, H, W).
        inputs: (B, ...), preprocessed.
        targets: one class index for all images, class indices (B,) or (B, K), or a floating-point prior shaped like
            the output, or K priors (B, K, ...); or a function from logits to one of these.
        layer: a module of `net`, or its name in ``net.named_modules()``; None for the input. A list or tuple of
            layers shares one forward pass and the same backward passes.
        contrastive: subtract the dual's map.
        against: one or several class indices. The map is contrastive: the target's map minus the mean map of these
            classes, each normalized over the cells of the map. It replaces the dual.
        joint: explain all winning neurons jointly (True) or step by step (False). None decides by the network, and
            takes a second forward pass if its last call was decided otherwise: jointly where activations with
            negative values, such as GELU, SiLU and hard swish, are between the layer and the classifier, unless
            attention mixes cells that the classifier averages.
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
    check_arguments(net, inputs)
    layers = layer if isinstance(layer, (list, tuple)) else (layer,)
    if not layers:
        raise ConfigurationError("no layer given: name at least one")
    with torch.inference_mode(False), torch.no_grad():
        if inputs.is_inference():
            inputs = inputs.clone()  # autograd may not save tensors made in inference mode
        forward = _forward(net, inputs, layers, unsupported, joint=probably_joint(net) if joint is None else joint)
        values = forward.logits.detach()
        prior, single = priors(targets(values) if callable(targets) else targets, values, where)
        others = None if against is None else priors_against(against, prior)
        if joint is None:
            by_layer = [forward.graph.explains_jointly(path.above) for path in forward.paths]
            remember(net, by_layer[0])
        else:
            by_layer = [joint] * len(layers)
        found: dict[int, ExcitationResult] = {}
        for is_joint in sorted(set(by_layer), key=lambda which: which != forward.joint):
            chosen = [i for i, which in enumerate(by_layer) if which == is_joint]
            paths = [forward.paths[i] for i in chosen]
            if is_joint != forward.joint:
                del forward  # and its memory
                chosen_layers = [layers[i] for i in chosen]
                forward = _forward(net, inputs, chosen_layers, unsupported, joint=is_joint, settled=True)
                paths = forward.paths
            passes: BackwardPasses | JointPasses = (JointPasses if is_joint else BackwardPasses)(
                forward.logits, forward.graph, paths, prior, tuple(inputs.shape)
            )
            lost_mass = passes.lost_mass() if track_lost_mass else [None] * len(paths)
            shares = passes.relevance(contrastive) if others is None else passes.against(others)
            check_relevance([relevance for relevance, _ in shares])
            for i, path, (relevance, mass), lost in zip(chosen, paths, shares, lost_mass, strict=True):
                found[i] = ExcitationResult(
                    relevance=relevance[0] if single else relevance.transpose(0, 1),
                    mass=_by_image(mass, single),
                    logits=values,
                    contrastive=contrastive or against is not None,
                    layer=path.cut.name,
                    input_shape=tuple(inputs.shape),
                    layer_shape=tuple(path.cut.value.shape),
                    lost_mass=lost and {site: _by_image(by_class, single) for site, by_class in lost.items()},
                    against=None if against is None else (against,) if isinstance(against, int) else tuple(against),
                    joint=is_joint,
                )
    results = tuple(found[i] for i in range(len(layers)))
    return results if isinstance(layer, (list, tuple)) else results[0]


def _by_image(by_class: Tensor, single: bool) -> Tensor:
    """(K, B) as (B, K), or (B,) if there is no K."""
    return by_class[0] if single else by_class.mT


@dataclass(frozen=True)
class _Forward:
    """A forward pass for one of the rules: the logits, the graph below them, and the part of it above each layer."""

    logits: Tensor
    graph: BackwardGraph
    paths: list[LayerPath]
    joint: bool


def _forward(
    net: nn.Module,
    inputs: Tensor,
    layers: Sequence[LayerChoice],
    unsupported: Unsupported,
    *,
    joint: bool,
    settled: bool = False,
) -> _Forward:
    """Run the network; `settled` if operations without a rule were reported before."""
    with (
        as_found(net),
        ExcitationMode(net, unsupported=unsupported, joint=joint) as mode,
        Capture(net, layers, keep_values=joint) as capture,
        torch.enable_grad(),
        batch_checked(net, inputs),
    ):
        output = net(capture.enter(inputs))
    logits = single_tensor(output, "the network's output")
    if not settled:
        check_logits(net, inputs, logits)
    let_feed_inactive(logits)
    graph = BackwardGraph(logits)
    paths = [LayerPath.down_to(cut, graph) for cut in capture.cuts()]
    if graph.sites and not settled:
        mode.refuse(graph.sites)
    mode.settled = True
    return _Forward(logits, graph, paths, joint)


def layers_on_path(net: nn.Module, inputs: Tensor, layers: Sequence[str]) -> list[str]:
    """The layers among `layers` that probability reaches. The others only compute gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device if the network is.
        layers: names of modules, each called once and returning a single tensor.
    """
    with torch.inference_mode(False), torch.no_grad():
        with as_found(net), ExcitationMode(net, unsupported="gradient") as mode, torch.enable_grad():
            mode.settled = True  # no backward pass follows, so nothing is reported
            with Capture(net, [None, *layers]) as capture:
                output = net(capture.enter(inputs))
        _, *cuts = capture.cuts()
        graph = BackwardGraph(single_tensor(output, "the network's output"))
    return [layer for layer, cut in zip(layers, cuts, strict=True) if graph.ends(cut.edge.node)]
