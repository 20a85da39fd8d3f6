"""excitation_backprop(): a forward pass, a prior over the classes, and one backward pass to a layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn

from benchmarks.engine import joint as jointly
from benchmarks.engine.arguments import batch_checked, check_arguments, check_logits, check_relevance
from benchmarks.engine.capture import Capture, LayerChoice, label_of, single_tensor
from benchmarks.engine.mode import Listening, Unsupported, new_record, refuse
from benchmarks.engine.paths import Images, Path, is_constant, joins_constants, walk
from benchmarks.engine.products import ratio
from benchmarks.engine.record import Op, Record, Value
from benchmarks.engine.result import ExcitationResult
from benchmarks.engine.stepwise import Stepwise, total
from ebcli.eb.contrast import Against, difference, difference_from_mean, mass, priors_against
from ebcli.eb.eval_mode import evaluating
from ebcli.eb.maps import channel_axis_of, special_tokens
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError, LayerError


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
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        forward = Forward.of(network, inputs, layers)
        try:
            prior, single = priors(targets(forward.logits) if callable(targets) else targets, forward.logits, where)
            others = None if against is None else priors_against(against, prior)
            refuse([name for path in forward.paths for name in path.without_rule], unsupported)
            explanation = Explanation(forward, prior, others, contrastive=contrastive, tracks=track_lost_mass)
            by_layer = [path.explains_jointly() if joint is None else joint for path in forward.paths]
            found: dict[Path, ExcitationResult] = {}
            for is_joint in sorted(set(by_layer)):
                paths = [path for path, which in zip(forward.paths, by_layer, strict=True) if which == is_joint]
                shares = explanation.jointly(paths) if is_joint else explanation.stepwise(paths)
                check_relevance([relevance for relevance, *_ in shares])
                for path, (relevance, mass, lost) in zip(paths, shares, strict=True):
                    found[path] = ExcitationResult(
                        relevance=relevance[0] if single else relevance.transpose(0, 1),
                        mass=None if mass is None else _by_image(mass, single),
                        logits=forward.logits,
                        contrastive=contrastive or against is not None,
                        layer=forward.names[path],
                        input_shape=tuple(inputs.shape),
                        layer_shape=tuple(path.layer.shape),
                        lost_mass=lost and {name: _by_image(by_class, single) for name, by_class in lost.items()},
                        against=None if against is None else (against,) if isinstance(against, int) else tuple(against),
                        joint=is_joint,
                        channel_axis=channel_axis_of(network, inputs),
                        image_axis=forward.images.axis(path.layer),
                    )
        finally:
            forward.record.clear()
    results = tuple(found[path] for path in forward.paths)
    return results if isinstance(layer, (list, tuple)) else results[0]


def _by_image(by_class: Tensor, single: bool) -> Tensor:
    """(K, B) as (B, K), or (B,) if there is no K."""
    return by_class[0] if single else by_class.mT


@dataclass(frozen=True)
class Forward:
    """A recorded forward pass.

    Attributes:
        record: of it.
        logits: the network's output, (B, num_classes, ...).
        output: its value.
        paths: from there to each layer.
        names: the layers' names.
        images: which image each element belongs to.
    """

    record: Record
    logits: Tensor
    output: Value
    paths: list[Path]
    names: dict[Path, str | None]
    images: Images

    @classmethod
    def of(cls, net: nn.Module, inputs: Tensor, layers: Sequence[LayerChoice]) -> Forward:
        """Run the network once. Raises LayerError if the output does not depend on a layer."""
        record = new_record(net)
        with evaluating(net), Listening(record), Capture(net, layers, record) as capture:
            entered = capture.enter(inputs)
            with batch_checked(net, inputs), torch.enable_grad():
                result = single_tensor(net(entered), "the network's output")
            output = record.value_of(result)
        check_logits(net, inputs, result.detach())
        layers_at = [-1 if value.maker is None else value.maker.index for value in capture.values()]
        # numbers that come back are constants for the record, and their maps would be wrong without a word
        refuse([name for name, at in record.left.items() if any(at > index for index in layers_at)], "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        if output.facts.is_softmax:
            warnings.warn(
                "the network ends in a softmax: the map explains the score before it, as without the softmax",
                stacklevel=3,
            )
        paths = [Path.between(output, value) for value in capture.values()]
        for path, name in zip(paths, capture.names, strict=True):
            if not path.ops and path.layer is not output:
                raise LayerError(
                    f"the network's output does not depend on {label_of(name)}, or torch.no_grad() in the network cuts "
                    "the path between them: choose a layer closer to the output"
                )
        names = dict(zip(paths, capture.names, strict=True))
        return cls(record, result.detach(), output, paths, names, Images(capture.source))


Explained = tuple[
    Tensor, Tensor | None, dict[str, Tensor] | None
]  # relevance (K, B, ...), mass (K, B), lost mass (K, B)


class Explanation:
    """The maps of some priors, by either rule.

    Args:
        forward: the forward pass.
        prior: (K, *logits.shape), the probabilities to start from.
        others: (N, *logits.shape), what the maps are contrasted with; None for the duals.
        contrastive: subtract the map of the dual.
        tracks: find the probability that each operation lost.
    """

    def __init__(
        self, forward: Forward, prior: Tensor, others: Tensor | None, *, contrastive: bool, tracks: bool
    ) -> None:
        self._forward, self._prior, self._others = forward, prior, others
        self._contrastive, self._tracks = contrastive and others is None, tracks

    def stepwise(self, paths: Sequence[Path]) -> list[Explained]:
        """Step by step."""
        self._check_below_classifier(paths)
        targets = len(self._prior)
        start = self._prior if self._others is None else torch.cat([self._prior, self._others])
        contrasts = self._down(start, paths, contrastive=True)[0] if self._contrastive else None
        special = [self._special(path) for path in paths]
        needs_marginal = contrasts is None or self._tracks or any(special)
        maps, lost = self._down(start, paths, tracks=self._tracks) if needs_marginal else ([None] * len(paths), None)
        found: list[Explained] = []
        for i, (path, n) in enumerate(zip(paths, special, strict=True)):
            P, contrast = maps[i], None if contrasts is None else contrasts[i]
            is_marginal = contrasts is None and self._others is None
            masses = mass(self._leading(P, path)[:targets]) if is_marginal or self._tracks else None
            if self._others is not None:
                P = self._difference(P[:targets], P[targets:], path, n, of_mean=True)
            elif contrast is not None:
                # where every cell is part of the map, both maps sum to 1 at the classifier's inputs already
                P = self._difference(P, P - contrast, path, n) if n else contrast
            found.append((P, masses, None if lost is None else lost[i]))
        return found

    def jointly(self, paths: Sequence[Path]) -> list[Explained]:
        """All winning neurons as one."""
        self._check_below_classifier(paths)
        maps, constants = self._joint(self._prior, paths)
        others = None
        if self._contrastive or self._others is not None:
            others = self._joint(-self._prior if self._others is None else self._others, paths)[0]
        found: list[Explained] = []
        for i, path in enumerate(paths):
            P = maps[i]
            masses = mass(self._leading(P, path)) if others is None or self._tracks else None
            if others is not None:
                P = self._difference(P, others[i], path, self._special(path), of_mean=self._others is not None)
            found.append((P, masses, constants[i] if self._tracks else None))
        return found

    def _joint(self, priors: Tensor, paths: Sequence[Path]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        forward = self._forward
        by_prior = [jointly.explained(forward.output, prior, paths, forward.images) for prior in priors]
        maps, constants = [], []
        for of_layer in zip(*by_prior, strict=True):
            maps.append(torch.stack([P for P, _ in of_layer]))
            sites = dict.fromkeys(site for _, shares in of_layer for site in shares)
            zero = of_layer[0][0].new_zeros(forward.images.count)
            stacked = {site: torch.stack([shares.get(site, zero) for _, shares in of_layer]) for site in sites}
            constants.append({site: share for site, share in stacked.items() if share.any()})
        return maps, constants

    def _down(
        self, priors: Tensor, paths: Sequence[Path], *, contrastive: bool = False, tracks: bool = False
    ) -> tuple[list[Tensor], list[dict[str, Tensor]] | None]:
        """Maps (K, B, ...), and what was lost above each layer (K, B)."""
        forward = self._forward
        ops = dict.fromkeys(op for path in paths for op in path.ops)
        lost: dict[Op, Tensor] = {}
        for op in filter(joins_constants, ops if tracks else ()):  # which vmap could not find
            op.once(partial(is_constant, op, op.out))

        def lose(op: Op, P: Tensor) -> None:
            of_op = forward.images.sums(P, op.out)
            lost[op] = lost[op] + of_op if op in lost else of_op

        answer = Stepwise(forward.record.ops, contrastive=contrastive, lose=lose if tracks else None)

        def down(prior: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            lost.clear()
            arrived = walk(
                {forward.output: [(prior, answer.start(forward.output))]}, [path.layer for path in paths], answer, ops
            )
            return [total(arrived.get(path.layer, []), path.layer) for path in paths], list(lost.values())

        if len(priors) == 1 or not all(op.is_native for op in ops):
            results = [down(prior) for prior in priors]
            maps, ends = ([torch.stack(of) for of in zip(*parts, strict=True)] for parts in zip(*results, strict=True))
        else:
            with warnings.catch_warnings():  # about operations that vmap loops over, such as roi_align
                warnings.filterwarnings("ignore", "There is a performance drop")
                maps, ends = torch.vmap(down)(priors)
        if not tracks:
            return maps, None
        by_layer: list[dict[str, Tensor]] = []
        for path in paths:
            above, by_site = set(path.ops), {}
            for op, of_op in zip(list(lost), ends, strict=True):
                if op in above and of_op.any():
                    by_site[op.site] = by_site.get(op.site, 0) + of_op
            by_layer.append(by_site)
        return maps, by_layer

    def _check_below_classifier(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if self._contrastive and not path.is_below_classifier:
                raise LayerError(
                    f"{label_of(self._forward.names[path])} is not below the classifier, so it has no contrastive map: "
                    "choose a layer closer to the input"
                )

    def _special(self, path: Path) -> int:
        """How many tokens at the front are not cells of the map."""
        axis, shape = self._forward.images.axis(path.layer), list(path.layer.shape)
        if axis is None:
            return 0
        return special_tokens((shape.pop(axis), *shape), tuple(self._forward.images.source.shape))

    def _leading(self, maps: Tensor, path: Path) -> Tensor:
        """Maps with the images on axis 1, or their sums if no axis has the images alone."""
        images = self._forward.images
        axis = images.axis(path.layer)
        if axis is not None:
            return maps.movedim(axis + 1, 1)
        return torch.stack([images.sums(P, path.layer) for P in maps])[..., None]

    def _difference(self, maps: Tensor, others: Tensor, path: Path, special: int, *, of_mean: bool = False) -> Tensor:
        images = self._forward.images
        subtract = difference_from_mean if of_mean else difference
        axis = images.axis(path.layer)
        if axis is not None:
            return subtract(maps.movedim(axis + 1, 1), others.movedim(axis + 1, 1), special).movedim(1, axis + 1)
        shares = [
            torch.stack([ratio(P, images.spread(images.sums(P, path.layer), path.layer)) for P in of])
            for of in (maps, others)
        ]
        return shares[0] - (shares[1].mean(0, keepdim=True) if of_mean else shares[1])


def layers_on_path(net: nn.Module, inputs: Tensor, layers: Sequence[str]) -> list[str]:
    """The layers among `layers` that probability reaches. The others only compute gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device if the network is.
        layers: names of modules, each called once and returning a single tensor.
    """
    with torch.inference_mode(False), torch.no_grad():
        record = new_record(net)
        with evaluating(net), Listening(record), Capture(net, layers, record) as capture:
            output = record.value_of(single_tensor(net(capture.enter(inputs)), "the network's output"))
        return [name for name, value in zip(layers, capture.values(), strict=True) if Path.between(output, value).ops]
