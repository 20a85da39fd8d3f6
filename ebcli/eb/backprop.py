"""excitation_backprop(): a forward pass, a prior over the classes, and one backward pass to a layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from ebcli.eb.arguments import Against, Targets, Where, check_network, check_relevance, priors, priors_against
from ebcli.eb.cells import InputGrid, origins, rearranges
from ebcli.eb.checkpoints import Checkpoint
from ebcli.eb.forward import Forward, LayerChoice, evaluating, label_of, recorded, removing
from ebcli.eb.inputs import Inputs
from ebcli.eb.joint import LayerShares, LostMass, joint_shares
from ebcli.eb.mode import RecordingMode, UnsupportedPolicy, refuse
from ebcli.eb.operations import Value, quiet, trailing_axes
from ebcli.eb.paths import Path, Paths, descend, joins_constants, path_ops, walk, without_rule
from ebcli.eb.products import add_all, ratio
from ebcli.eb.result import ExcitationResult
from ebcli.eb.stepwise import Explains, Stepwise, total
from ebcli.eb.tape import Tape
from ebcli.eb.torch_private import tree_map, tree_map_only
from ebcli.errors import ConfigurationError, LayerError
from ebcli.heads import HeadChoice, head_of, single_tensor
from ebcli.layouts import Layout


class HasNetwork(Protocol):
    """What `load_model` returns."""

    @property
    def net(self) -> Module: ...


class MapKind(NamedTuple):
    """What a map shows: all that excites a class, or what tells it from its dual, or from other classes."""

    contrastive: bool
    rivals: tuple[int, ...] | None


class PassOptions(TypedDict, total=False):
    """What maps of one forward pass share."""

    joint: bool | None
    where: Where | None
    head: HeadChoice
    unsupported: UnsupportedPolicy
    track_lost_mass: bool


class ExcitationOptions(PassOptions, total=False):
    """What `excitation_backprop` takes by name."""

    against: Against | None


Network = Module | HasNetwork
TargetsOrFunction = Targets | Callable[[Tensor], Targets]
LayerList = list[Any] | tuple[LayerChoice, ...]


@overload
def excitation_backprop(
    net: Network,
    inputs: Inputs,
    targets: TargetsOrFunction,
    layer: LayerChoice = ...,
    contrastive: bool = ...,
    **_: Unpack[ExcitationOptions],
) -> ExcitationResult: ...
@overload
def excitation_backprop(
    net: Network,
    inputs: Inputs,
    targets: TargetsOrFunction,
    layer: LayerList,
    contrastive: bool = False,
    **_: Unpack[ExcitationOptions],
) -> tuple[ExcitationResult, ...]: ...


def excitation_backprop(
    net: Network,
    inputs: Inputs,
    targets: TargetsOrFunction,
    layer: LayerChoice | LayerList = None,
    contrastive: bool = False,
    *,
    against: Against | None = None,
    joint: bool | None = None,
    where: Where | None = None,
    head: HeadChoice = None,
    unsupported: UnsupportedPolicy = "error",
    track_lost_mass: bool = False,
) -> ExcitationResult | tuple[ExcitationResult, ...]:
    """Excitation Backprop (Zhang et al., ECCV 2016) from classes down to a layer.

    Marginal EB (MWP; Eq. 4, 10) splits each neuron's probability among its inputs by their contributions with the
    sign of the neuron's response. Contrastive EB (c-MWP; Eq. 6 to 8) subtracts, at the layer below the classifier,
    the probability of the target's dual, a unit with negated weights, and propagates the difference. At a layer with
    class or register tokens, which are no cells of the map, the maps of both are normalized over its cells first.

    The network runs in evaluation mode and is restored afterwards. Up to the layer it runs without autograd.

    Args:
        net: the network, or what `load_model` returned. Its output is (B, num_classes), or a tuple, dict or data class
            that has it; for dense predictions, such as segmentation, (B, num_classes, H, W).
        inputs: (B, ...), preprocessed. Networks with several inputs take a tuple of tensors, or a mapping of their
            names to tensors, each with the images on axis 0.
        targets: one class index for all images, class indices (B,) or (B, K), or a floating-point prior shaped like
            the output, or K priors (B, K, ...); or a function from logits to one of these.
        layer: a module of `net`, or its name in ``net.named_modules()``; None for the input. Of several inputs, None
            is the first that looks like a picture, and ``"input:1"`` or ``"input:NAME"`` another one, by the name of
            its argument; the name alone if no module has it. A list or tuple of layers shares one forward pass and the
            same backward passes.
        contrastive: subtract the dual's map. `explain` and the command do so by default, this function does not.
        against: one or several class indices. The map is contrastive: the target's map minus the mean map of these
            classes, each normalized over the cells of the map. It replaces the dual.
        joint: explain all winning neurons jointly (True) or step by step (False). None decides for each layer:
            jointly where activations with values of both signs, such as GELU, SiLU and hard swish, are between the
            layer and the classifier, unless the classifier averages cells that attention mixed, or whose channels it
            mixed.
        where: for an output (B, num_classes, H, W), the pixel (row, column) or the mask of weights (H, W) or
            (B, H, W) to explain; None for all pixels.
        head: of a network that returns several tensors, the name or the position of the one to explain. None: the only
            one with a row for each image, or the one named ``logits``, ``pred`` or ``out``.
        unsupported: ``"gradient"`` falls back to ordinary gradients, with a warning, for operations without a rule.
        track_lost_mass: record which operations lost probability. Takes more memory and an extra backward pass.

    Returns:
        The result; for several layers, a tuple of results in the order of the layers, with shared logits.

    Raises:
        LayerError: the layer does not exist, is not called exactly once, does not return a single tensor, or the
            output does not depend on it.
        ConfigurationError: the network has several heads, of which none is chosen or obvious, the targets do not fit
            the logits, a class is both a target and in `against`, or the inputs are not finite.
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
    is_several = isinstance(layer, (list, tuple))
    layers: Any = layer if is_several else [layer]
    (results,) = _results(
        net,
        inputs,
        targets,
        layers,
        [MapKind(contrastive, _rivals(against))],
        joint=joint,
        where=where,
        head=head,
        unsupported=unsupported,
        track_lost_mass=track_lost_mass,
    )
    if is_several:
        return results
    return results[0]


def both_maps(
    net: Network,
    inputs: Inputs,
    targets: TargetsOrFunction,
    layers: Sequence[LayerChoice],
    *,
    against: Against | None = None,
    **options: Unpack[PassOptions],
) -> tuple[tuple[ExcitationResult, ...], tuple[ExcitationResult, ...]]:
    """The marginal results of some layers, and the contrastive ones, from one forward pass.

    For arguments and errors, see `excitation_backprop`.
    """
    kinds = MapKind(False, None), MapKind(True, _rivals(against))
    marginal, contrastive = _results(net, inputs, targets, layers, kinds, **options)
    return marginal, contrastive


def _rivals(against: Against | None) -> tuple[int, ...] | None:
    """The classes to contrast with."""
    if against is None:
        return None
    return (against,) if isinstance(against, int) else tuple(against)


def _results(
    net: Network,
    inputs: Inputs,
    targets: TargetsOrFunction,
    layers: Sequence[LayerChoice],
    kinds: Sequence[MapKind],
    *,
    joint: bool | None = None,
    where: Where | None = None,
    head: HeadChoice = None,
    unsupported: UnsupportedPolicy = "error",
    track_lost_mass: bool = False,
) -> list[tuple[ExcitationResult, ...]]:
    """The results of layers, of each kind in turn, from one forward pass."""
    network: Any = net if isinstance(net, Module) else getattr(net, "net", net)
    check_network(network)
    if not layers:
        raise ConfigurationError("no layer given: name at least one")
    with recorded(network, inputs, layers, head, names_all=track_lost_mass) as forward:
        if callable(targets):
            targets = targets(forward.logits)
        prior, is_single = priors(targets, forward.logits, where)
        refuse([name for path in forward.paths for name in without_rule(path.ops)], unsupported)
        results = []
        for is_contrastive, rivals in kinds:
            computation = MapComputation(
                forward=forward,
                prior=prior,
                others=prior[:0] if rivals is None else priors_against(rivals, prior),
                rivals=rivals,
                contrastive=is_contrastive and rivals is None,
                tracks=track_lost_mass,
            )
            results.append(computation.results(joint, is_single))
        return results


def _noticeable(lost: LostMass, dtype: torch.dtype) -> LostMass:
    """What is more than rounding, of masses that operations lost."""
    rounding = 100 * torch.finfo(dtype).eps
    return {site: mass for site, mass in lost.items() if (mass > rounding).any()}


def layers_on_path(
    net: Module, inputs: Tensor, layers: Sequence[str], *, only_way: bool = False, only_new: bool = False
) -> dict[str, Layout | None]:
    """The layers among `layers` that probability reaches. The others only compute gates, queries and keys.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...), which may be on the meta device if the network is.
        layers: names of modules, each called once and returning a single tensor.
        only_way: those alone that all probability passes.
        only_new: those alone that compute something: that do not only pad, crop or resample, and do not return the
            network's input, moved or rescaled.

    Returns:
        The layouts of their outputs, by name; None of those that have no map.
    """
    values: dict[str, Value] = {}
    rearranged: set[str] = set()
    tape = Tape(net)

    def note(name: str, _module: Module, args: Any, output: Any) -> None:
        value = tape.value_of(single_tensor(output, name))
        if not isinstance(value, Value):  # another thread's
            return
        values[name] = value
        operands = map(tape.value_of, args)
        if any(isinstance(operand, Value) and rearranges(value, operand) for operand in operands):
            rearranged.add(name)

    handles: list[RemovableHandle] = []
    with _recording(net, tape), removing(handles):
        for name in layers:
            handles.append(net.get_submodule(name).register_forward_hook(partial(note, name)))
        source, output = _run(net, inputs, tape)
    if not isinstance(output, Value):
        return {}
    on_path = _values_above(None, output)
    names = [name for name in layers if values.get(name) in on_path]
    if only_new:
        names = [name for name in names if name not in rearranged and values[name].facts.layers]
    if only_way:
        names = [name for name in names if source not in _values_above(values[name], output)]
    grid = InputGrid(tape.ops, source)
    layouts: dict[str, Layout | None] = dict.fromkeys(names)
    for name in names:
        if values[name].shape[0] == len(inputs):
            layouts[name] = grid.layout_of(values[name], 0)
    return layouts


class RecordedOutput:
    """How a network computes its output, which is its only head.

    Args:
        net: the network, which runs once, in evaluation mode.
        inputs: (B, ...).
    """

    def __init__(self, net: Module, inputs: Tensor) -> None:
        self._tape = Tape(net)
        with _recording(net, self._tape):
            _, self._output = _run(net, inputs, self._tape)

    @property
    def is_never_negative(self) -> bool:
        """Whether no input makes it negative."""
        return isinstance(self._output, Value) and self._output.facts.nonnegative

    def holds(self, tensor: Tensor) -> bool:
        """Whether it has the elements of a tensor that the network computed, moved or resized, and no others."""
        return isinstance(self._output, Value) and self._tape.value_of(tensor) in origins(self._output)


@contextmanager
def _recording(net: Module, tape: Tape) -> Iterator[None]:
    """Record what a network computes, and none of its numbers."""
    tape.saves_numbers = False
    with quiet(), torch.inference_mode(False), torch.no_grad(), evaluating(net), RecordingMode(tape):
        yield


def _run(net: Module, inputs: Tensor, tape: Tape) -> tuple[Value, Any]:
    """The values of the input and of the output; of one that does not depend on the input, the tensor."""
    inputs = inputs.detach().clone()
    source = tape.start(inputs)
    return source, tape.value_of(head_of(net(inputs)).tensor)


def _values_above(end: Value | None, output: Value) -> set[Value]:
    """The values that probability reaches without passing the end."""
    ops = descend([output], lambda op: end in op.outs)
    return {output, *(value for op in ops if end not in op.outs for value in op.operands)}


class LayerMaps(NamedTuple):
    """The maps of K priors at one layer.

    Attributes:
        relevance: (K, ...), like the layer's output.
        mass: (K, B), of the marginal maps; None where it is not asked for.
        lost: (K, B), the mass that operations lost, by their names.
    """

    relevance: Tensor
    mass: Tensor | None
    lost: LostMass


@dataclass(frozen=True, kw_only=True)
class MapComputation:
    """The maps of some priors, by either rule.

    Attributes:
        forward: the forward pass.
        prior: (K, *logits.shape), the probabilities to start from.
        others: (N, *logits.shape), subtract the mean of their maps, if there are any.
        rivals: the classes that they start from; None if there are none.
        contrastive: subtract the maps of the duals.
        tracks: find the probability that each operation lost.
    """

    forward: Forward
    prior: Tensor
    others: Tensor
    rivals: tuple[int, ...] | None
    contrastive: bool
    tracks: bool

    def results(self, joint: bool | None, is_single: bool) -> tuple[ExcitationResult, ...]:
        """What the maps of each layer are.

        Args:
            joint: explain all winning neurons jointly; None decides for each layer.
            is_single: there is one prior, which has no axis.
        """
        forward = self.forward
        source = forward.images.source
        rules = {path: path.explains_jointly(source) if joint is None else joint for path in forward.paths}
        maps: dict[Path, LayerMaps] = {}
        for is_joint in sorted(set(rules.values())):
            maps |= self.maps([path for path in rules if rules[path] == is_joint], is_joint)
        results = []
        for path, name in forward.paths.items():
            # (K, B, ...) as (B, K, ...), or (B, ...) if there is no K
            relevance, mass, lost = tree_map_only(
                Tensor, lambda a: a[0] if is_single else a.transpose(0, 1), maps[path]
            )
            check_relevance(relevance)
            cells = forward.cells_of(path)
            result = ExcitationResult(
                relevance=relevance,
                mass=mass,
                logits=forward.logits,
                head=forward.head,
                contrastive=self.contrastive or self.rivals is not None,
                layer=name,
                input_shape=tuple(forward.sources.get(name, source).shape),
                layer_shape=tuple(path.layer.shape),
                lost_mass=_noticeable(lost, relevance.dtype) if self.tracks else None,
                against=self.rivals,
                joint=rules[path],
                channel_axis=cells.channel_axis,
                image_axis=cells.image_axis,
                layout=cells.layout,
            )
            results.append(result)
        return tuple(results)

    def maps(self, paths: Paths, is_joint: bool) -> dict[Path, LayerMaps]:
        """The maps of layers."""
        labels = [
            label_of(self.forward.paths[path]) for path in paths if set(path.classifiers).isdisjoint(path.ops)
        ]
        if self.contrastive and labels:
            raise LayerError(
                f"{labels[0]} is not below the classifier, as contrastive maps need: choose an earlier one"
            )
        values = [path.layer for path in paths]
        if is_joint:
            values += [op.out for path in paths for op in path.ops if joins_constants(op)]
        images = self.forward.images
        if images.are_apart(self.forward.output, values) and not self.tracks:
            return dict(zip(paths, self._maps(paths, is_joint), strict=True))
        # operations merge images, so each one is explained alone
        forward = replace(self.forward, images=images.as_single())
        by_image = []
        for mask in trailing_axes(torch.eye(len(forward.logits)).to(self.prior), self.prior.ndim):
            single = replace(self, forward=forward, prior=self.prior * mask, others=self.others * mask)
            by_image.append(single._maps(paths, is_joint))
        return {path: _merge(maps) for path, *maps in zip(paths, *by_image, strict=True)}

    def _maps(self, paths: Paths, is_joint: bool) -> list[LayerMaps]:
        backward = partial(self._backward, paths, is_joint)
        if self.contrastive and self._is_linear(paths, is_joint):
            # both maps sum to 1 at the classifier's inputs, so their difference goes down in one pass
            return [LayerMaps(relevance, None, {}) for relevance, _ in backward(self.prior, "difference")]
        marginal = backward(self.prior, tracks=self.tracks)
        if not (self.contrastive or len(self.others)):
            return [
                LayerMaps(P, self._sums(P, path), lost)
                for path, (P, lost) in zip(paths, marginal, strict=True)
            ]
        others = backward(self.others) if len(self.others) else backward(self.prior, "dual")
        maps = []
        for path, (relevance, lost), (other, _) in zip(paths, marginal, others, strict=True):
            mass = None
            if self.tracks:
                mass = self._sums(relevance, path)
            maps.append(LayerMaps(self._difference(relevance, other, path, is_joint), mass, lost))
        return maps

    def _is_linear(self, paths: Paths, is_joint: bool) -> bool:
        """Whether the maps are linear in what starts at the classifier, and nothing else is asked for."""
        return not (is_joint or self.tracks or any(map(self._special, paths)))

    def _difference(self, relevance: Tensor, other: Tensor, path: Path, is_joint: bool) -> Tensor:
        if not (is_joint or len(self.others) or self._special(path)):
            return relevance - other  # both sum to 1 at the classifier's inputs
        other = self._normalize(other, path)
        if len(self.others):
            other = other.mean(0, keepdim=True)
        return self._normalize(relevance, path) - other

    def _backward(
        self,
        paths: Paths,
        is_joint: bool,
        priors: Tensor,
        explains: Explains = "target",
        *,
        tracks: bool = False,
    ) -> list[LayerShares]:
        """One backward pass to some layers, for all winning neurons of an image as one, or step by step."""
        output = self.forward.output
        ops = path_ops(paths)

        if is_joint:
            # the weights of one prior at a time fill the memory, unless modules have to be recorded for each
            count = len(priors) if any(isinstance(op.rule, Checkpoint) for op in ops) else 1
            start = -priors if explains == "dual" else priors
            shares = [joint_shares(output, part, paths, self.forward.images) for part in start.split(count)]
            return tree_map(lambda *parts: torch.cat(parts), *shares)

        def down(prior: Tensor) -> list[LayerShares]:
            stepwise = Stepwise(self.forward.tape.ops, explains, tracks=tracks)
            start = {output: [(prior, stepwise.start(output))]}
            messages = walk(start, ops, stepwise, [path.layer for path in paths])
            return [
                LayerShares(total(messages.get(path.layer, []), path.layer), stepwise.lost_on(path.ops))
                for path in paths
            ]

        if len(priors) == 1 or not all(op.is_native for op in ops):
            return tree_map(lambda *of_priors: torch.stack(of_priors), *map(down, priors))
        return torch.vmap(down)(priors)

    def _special(self, path: Path) -> int:
        """How many tokens are not cells of the map."""
        layout = self.forward.layouts[path]
        if layout is None:
            return 0
        return layout.special

    def _sums(self, maps: Tensor, path: Path) -> Tensor:
        """The sum (K, B) of maps (K, ...) over their cells."""
        return torch.stack([self.forward.images.sums(P, path.layer) for P in maps])

    def _normalize(self, maps: Tensor, path: Path) -> Tensor:
        """Maps (K, ...) over the probability on their cells; maps without any stay 0.

        Class and register tokens are no cells. Without the normalization, one that takes more from a map than from the
        other would leave the difference of the rest below zero everywhere.
        """
        layout = self.forward.layouts[path]
        cells = maps
        if layout is not None and layout.special:
            images = self.forward.images.axis(path.layer) or 0
            (axis,) = layout.axes
            if axis <= images:
                axis -= 1
            cells = maps.index_select(1 + axis, torch.tensor(layout.tokens, device=maps.device))
        pairs = zip(maps, self._sums(cells, path), strict=True)
        return torch.stack([ratio(P, self.forward.images.spread(sums, path.layer)) for P, sums in pairs])


def _merge(by_image: Sequence[LayerMaps]) -> LayerMaps:
    """Maps of all images, from those of each image."""
    relevance, masses, losses = zip(*by_image, strict=True)
    mass = None
    if masses[0] is not None:
        mass = torch.cat(masses, 1)
    lost = {site: torch.cat([of_image[site] for of_image in losses], 1) for site in losses[0]}
    return LayerMaps(add_all(relevance), mass, lost)
