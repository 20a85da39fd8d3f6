"""excitation_backprop(): a forward pass, a prior over the classes, and one backward pass to a layer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, overload

import torch
from torch import Tensor, nn

from benchmarks.engine import joint as jointly
from benchmarks.engine.arguments import batch_checked, check_arguments, check_logits, check_relevance
from benchmarks.engine.capture import Capture, LayerChoice, label_of, single_tensor
from benchmarks.engine.facts import Facts
from benchmarks.engine.mode import Listening, Unsupported, new_record, refuse
from benchmarks.engine.paths import Path, descend, joins_constants, walk
from benchmarks.engine.places import Places
from benchmarks.engine.products import added, ratio
from benchmarks.engine.record import Op, Record, Value
from benchmarks.engine.result import ExcitationResult
from benchmarks.engine.rules.rule import MISSING
from benchmarks.engine.stepwise import Stepwise, total
from ebcli.eb.contrast import Against, priors_against
from ebcli.eb.eval_mode import evaluating
from ebcli.eb.maps import channel_axis_of, special_tokens
from ebcli.eb.targets import Targets, Where, priors
from ebcli.errors import ConfigurationError, LayerError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HasNetwork(Protocol):
    """What `load_model` returns."""

    @property
    def net(self) -> nn.Module: ...


class Options(TypedDict, total=False):
    """What `excitation_backprop` takes by name."""

    against: Against | None
    joint: bool | None
    where: Where | None
    unsupported: Unsupported
    track_lost_mass: bool


Chosen = Targets | Callable[[Tensor], Targets]
Several = list[Any] | tuple[LayerChoice, ...]


@overload
def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Chosen,
    layer: LayerChoice = None,
    contrastive: bool = False,
    **options: Unpack[Options],
) -> ExcitationResult: ...
@overload
def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Chosen,
    layer: Several,
    contrastive: bool = False,
    **options: Unpack[Options],
) -> tuple[ExcitationResult, ...]: ...


def excitation_backprop(
    net: nn.Module | HasNetwork,
    inputs: Tensor,
    targets: Chosen,
    layer: LayerChoice | Several = None,
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
            ops = forward.record.ops
            by_layer = [path.explains_jointly(ops) if joint is None else joint for path in forward.paths]
            found: dict[Path, ExcitationResult] = {}
            for is_joint in sorted(set(by_layer)):
                paths = [path for path, which in zip(forward.paths, by_layer, strict=True) if which == is_joint]
                for path, (relevance, mass, lost) in zip(paths, explanation.of(paths, is_joint=is_joint), strict=True):
                    check_relevance(relevance)
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
    images: Places

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
        first = min(value.maker.index if value.maker else -1 for value in capture.values())
        # numbers that come back are constants for the record, and their maps would be wrong without a word
        refuse([name for name, at in record.left.items() if at > first], "error")
        if not isinstance(output, Value):
            raise LayerError("the network's output does not depend on its input")
        paths = {Path.between(output, value): name for value, name in zip(capture.values(), capture.names, strict=True)}
        if output.facts.is_softmax:
            warnings.warn(
                "the network ends in a softmax: the map explains the score before it, as without the softmax",
                stacklevel=3,
            )
        for path, name in paths.items():
            if not path.ops and path.layer is not output:
                raise LayerError(
                    f"the network's output does not depend on {label_of(name)}, or torch.no_grad() in the network cuts "
                    "the path between them: choose a layer closer to the output"
                )
        return cls(record, result.detach(), output, [*paths], paths, Places(capture.source, 0, record.ops))


Found = tuple[Tensor, dict[str, Tensor]]  # relevance (K, ...) or of one prior (...), and what was lost (K, B) or (B,)


def _stacked(by_prior: Sequence[Sequence[Found]]) -> list[Found]:
    """For each layer, what was found for each prior; what rounding leaves is not lost."""
    found = []
    for of_layer in zip(*by_prior, strict=True):
        maps = torch.stack([P for P, _ in of_layer])
        sites = {site: torch.stack([of[site] for _, of in of_layer]) for site in of_layer[0][1]}
        least = 100 * torch.finfo(maps.dtype).eps
        found.append((maps, {site: lost for site, lost in sites.items() if (lost > least).any()}))
    return found


def _of_image(priors: Tensor, b: int) -> Tensor:
    """Priors (K, B, ...) without the other images."""
    alone = torch.zeros_like(priors)
    alone[:, b] = priors[:, b]
    return alone


def _merged(by_image: Sequence[Explained]) -> Explained:
    relevance, masses, lost = zip(*by_image, strict=True)
    if lost[0] is None:
        return Explained(added(relevance), None if masses[0] is None else torch.cat(masses, 1), None)
    zero = torch.zeros_like(masses[0])
    sites = {
        site: torch.cat([of.get(site, zero) for of in lost], 1) for site in dict.fromkeys(s for of in lost for s in of)
    }
    return Explained(added(relevance), torch.cat(masses, 1), sites)


class Explained(NamedTuple):
    """Of one layer: relevance (K, ...), mass (K, B), and lost mass (K, B) by operation."""

    relevance: Tensor
    mass: Tensor | None
    lost: dict[str, Tensor] | None


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
        self._forward, self._images, self._prior, self._others = forward, forward.images, prior, others
        self._contrastive, self._tracks = contrastive and others is None, tracks

    def of(self, paths: Sequence[Path], *, is_joint: bool) -> list[Explained]:
        """The maps of layers."""
        for path in paths:
            if self._contrastive and not path.is_below_classifier:
                raise LayerError(
                    f"{label_of(self._forward.names[path])} is not below the classifier, so it has no contrastive map: "
                    "choose a layer closer to the input"
                )
        images, batch = self._forward.images, len(self._forward.logits)
        joins = [op.out for path in paths for op in path.ops if is_joint and joins_constants(op)]
        if batch == 1 or (all(map(images.tell, [*(path.layer for path in paths), *joins])) and not self._tracks):
            return self._found(paths, is_joint)
        by_image = []  # operations may merge images, so each one is explained alone
        for b in range(batch):
            one = copy.copy(self)
            one._images = images.alone()
            one._prior, one._others = (p if p is None else _of_image(p, b) for p in (self._prior, self._others))
            by_image.append(one._found(paths, is_joint))
        return [_merged(of_layer) for of_layer in zip(*by_image, strict=True)]

    def _found(self, paths: Sequence[Path], is_joint: bool) -> list[Explained]:
        find, prior = self._joint if is_joint else self._stepwise, self._prior
        special = [self._special(path) for path in paths]
        contrasts = None
        if self._contrastive and not is_joint:
            contrasts = [P for P, _ in self._stepwise(prior, paths, contrastive=True)]
            if not (self._tracks or any(special)):
                return [Explained(P, None, None) for P in contrasts]
        marginal = find(prior, paths)
        duals: list[Any] = [None] * len(paths)
        if self._others is not None or (self._contrastive and is_joint):
            duals = [P for P, _ in find(-prior if self._others is None else self._others, paths)]
        found = []
        for i, (path, n, (P, lost)) in enumerate(zip(paths, special, marginal, strict=True)):
            relevance, dual = P, duals[i]
            if contrasts is not None:
                # where every cell is part of the map, both maps sum to 1 at the classifier's inputs already
                relevance, dual = contrasts[i], P - contrasts[i] if n else None
            if dual is not None:
                dual = self._normalized(dual, path, n)
                relevance = self._normalized(P, path, n) - (
                    dual if self._others is None else dual.mean(0, keepdim=True)
                )
            mass = self._sums(P, path) if relevance is P or self._tracks else None
            found.append(Explained(relevance, mass, lost if self._tracks else None))
        return found

    def _joint(self, priors: Tensor, paths: Sequence[Path]) -> list[Found]:
        """All winning neurons of an image as one."""
        return _stacked([jointly.explained(self._forward.output, prior, paths, self._images) for prior in priors])

    def _stepwise(self, priors: Tensor, paths: Sequence[Path], *, contrastive: bool = False) -> list[Found]:
        """Each neuron by itself."""
        output = self._forward.output
        ops = dict.fromkeys(op for path in paths for op in path.ops)
        lost: dict[Op, Any] = {}

        def lose(op: Op, P: list[Any], shares: list[Any]) -> None:
            if op.operands and op.rule is not MISSING:
                went = added([0, *(share[0].sum(dtype=torch.float64) for share in shares if share)])
                lost[op] = lost.get(op, 0) + added([p.sum(dtype=torch.float64) for p in P if p is not None]) - went

        tracks = self._tracks and not contrastive
        answer = Stepwise(self._forward.record.ops, contrastive=contrastive, lose=lose if tracks else None)

        def down(prior: Tensor) -> list[Tensor]:
            lost.clear()
            arrived = walk({output: [(prior, answer.start(output))]}, [path.layer for path in paths], answer, ops)
            return [total(arrived.get(path.layer, []), path.layer) for path in paths]

        def with_losses(prior: Tensor) -> list[Found]:
            found = []
            for path, P in zip(paths, down(prior), strict=True):
                sites: dict[str, Any] = {}
                for op in filter(lost.__contains__, path.ops):
                    sites[op.site] = sites.get(op.site, 0) + lost[op].to(P.dtype)[None]
                found.append((P, sites))
            return found

        if tracks or len(priors) == 1 or not all(op.is_native for op in ops):
            return _stacked(list(map(with_losses, priors)))
        with warnings.catch_warnings():  # about operations that vmap loops over, such as roi_align
            warnings.filterwarnings("ignore", "There is a performance drop")
            return [(maps, {}) for maps in torch.vmap(down)(priors)]

    def _special(self, path: Path) -> int:
        """How many tokens at the front are not cells of the map."""
        of = path.layer
        return special_tokens(of.shape, self._images.source.shape, self._images.axis(of))

    def _sums(self, maps: Tensor, path: Path, special: int = 0) -> Tensor:
        """The sum (K, B) of maps (K, ...) over their cells."""
        if special:
            tokens = 2 - (self._images.axis(path.layer) or 0)
            maps = maps.narrow(tokens, special, maps.shape[tokens] - special)
        return torch.stack([self._images.sums(P, path.layer) for P in maps])

    def _normalized(self, maps: Tensor, path: Path, special: int) -> Tensor:
        """Maps (K, ...) over the probability on their cells; maps without any stay 0.

        Class and register tokens are no cells. Without the normalization, one that takes more from a map than from the
        other would leave the difference of the rest below zero everywhere.
        """
        totals = self._sums(maps, path, special)
        return torch.stack([ratio(P, self._images.spread(of, path.layer)) for P, of in zip(maps, totals, strict=True)])


def layers_on_path(net: nn.Module, inputs: Tensor, layers: Sequence[str]) -> list[str]:
    """The layers among `layers` that probability reaches. The others only compute gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device if the network is.
        layers: names of modules, each called once and returning a single tensor.
    """
    values: dict[str, Value] = {}
    record = new_record(net)

    def note(name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(value := record.value_of(single_tensor(output, name)), Value):  # not another thread's
            values[name] = value

    with torch.inference_mode(False), torch.no_grad(), evaluating(net), Listening(record), ExitStack() as hooks:
        for name in layers:
            hooks.callback(net.get_submodule(name).register_forward_hook(partial(note, name)).remove)
        inputs = inputs.detach().clone()
        record.keeps = False
        record.start(inputs, Facts())
        output = record.value_of(single_tensor(net(inputs), "the network's output"))
        reached = {output, *(value for op in descend([output]) for value in op.operands)}
    return [name for name in layers if values.get(name) in reached]
