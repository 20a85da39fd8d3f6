"""check_rule(): an operation's excitation rule against the definition, as ``gradcheck`` does for gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.eb import graph
from ebcli.eb.building import carries_signal, tensors_in
from ebcli.eb.mode import ExcitationMode
from ebcli.errors import RuleError

_STEP = 1e-6  # of the finite differences
_FURTHER = (1.3, -2.7, 11.0, -13.0)  # steps of an input, to see whether an output depends on it, and how


def check_rule(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    passes_through: bool = False,
    tolerance: float = 1e-6,
    raise_exception: bool = True,
) -> bool:
    """Compare what an ExcitationMode hands down through `fn` with the definition, built from `fn`'s values alone.

    The Jacobian J at the inputs a, by central differences, gives the contributions z_ni = a_i J_ni, and for each
    output n with the response y_n

        P(i | n) = max(s_n z_ni, 0) / sum_k max(s_n z_nk, 0)          (Zhang et al. 2016, Eq. 4)

    with s_n the sign of y_n, or, for a layer with weights as the classifier, +1 for the class and -1 for its dual
    (Eq. 6 to 8). An output that depends on a single input hands it all, unless the two are related as by a weight
    and a bias. An output of exactly 0 explains nothing and is left out.

    All of that is compared for the inputs as they are, for some of them zero, for non-negative ones that come out
    of a ReLU, with a ReLU on top, for non-contiguous memory, for targets one by one and all together, in float32
    and, where `fn` has them, in bfloat16 and float16. Values must be the same to the bit with and without the mode.

    Args:
        fn: the operation, whose value is a tensor or a tuple of tensors. A module is put in evaluation mode and
            tried in other precisions too; a function is where it takes them.
        inputs: its arguments. Those that require grad carry the signal, as many small ones as there are; other
            floating-point tensors are constants. All are used in float64, so they may be of any precision.
        passes_through: the operation is a norm, a scale with a shift or a gate, which by convention hands each
            output's probability to the input in the same place, whatever its Jacobian.
        tolerance: the greatest difference allowed, of shares between 0 and 1, in float64.
        raise_exception: raise if the rule is wrong, rather than return False.

    Returns:
        True if all is right.

    Raises:
        RuleError: it is not; the message tells which case, output, input and element, what was expected and what
            was found.
        UnsupportedOpError: an operation in `fn` has no rule.
        ValueError: no input requires grad, or `passes_through` does not fit the shapes.

    Example:
        >>> x = torch.randn(2, 3, 5, 5, requires_grad=True)
        >>> check_rule(torch.nn.Conv2d(3, 4, 3, stride=2), x)
        True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not any(map(carries_signal, given)):
        raise ValueError("no input requires grad: call requires_grad_() on those that carry the signal")
    base = _Arguments(tuple(given)).to(torch.float64)
    try:
        _check(_Subject(fn, passes_through, tolerance).to(torch.float64), base)
    except RuleError:
        if raise_exception:
            raise
        return False
    return True


@dataclass(frozen=True)
class _Arguments:
    """Arguments of an operation, some of which carry the signal."""

    values: tuple[Any, ...]

    @property
    def signals(self) -> list[int]:
        return [i for i, value in enumerate(self.values) if carries_signal(value)]

    def to(self, dtype: torch.dtype) -> _Arguments:
        def converted(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                return value
            return value.detach().to(dtype).contiguous().clone().requires_grad_(carries_signal(value))

        return _Arguments(tuple(map(converted, self.values)))

    def map(self, change: Callable[[Tensor], Tensor]) -> _Arguments:
        """The same with `change` applied to each signal."""
        return _Arguments(tuple(change(v.detach()).requires_grad_() if carries_signal(v) else v for v in self.values))

    def fresh(self) -> list[Any]:
        """Copies, for an operation that may overwrite them."""
        return [v.detach().clone() if isinstance(v, Tensor) else v for v in self.values]


@dataclass(frozen=True)
class _Subject:
    """The operation under test."""

    fn: Callable[..., Any]
    passes_through: bool
    tolerance: float

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def to(self, dtype: torch.dtype) -> _Subject:
        """The same in another precision, as far as modules go: what else `fn` refers to is left as it is."""
        return replace(self, fn=copy.deepcopy(self.fn).eval().to(dtype)) if isinstance(self.fn, nn.Module) else self

    def plain(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The floating-point values without the mode."""
        with torch.no_grad():
            return _floating(self.fn(*arguments))


def _check(subject: _Subject, base: _Arguments) -> None:
    try:
        subject.plain(base.fresh())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuleError(f"{subject.name} does not take float64 inputs ({reason}): give constants as inputs") from error
    generator = torch.Generator().manual_seed(0)

    def some_zero(value: Tensor) -> Tensor:
        return value * (torch.rand(value.shape, generator=generator) < 0.6).to(value.device)

    for title, arguments in {
        "": base,
        "with non-negative inputs": base.map(torch.abs),
        "with some inputs zero": base.map(some_zero),
    }.items():
        definition = _Definition(subject, arguments)
        _compare(subject, definition, title or "as given", arguments)
        _compare(subject, definition, f"{title} as the classifier".strip(), arguments, classifier=True)
        _compare(subject, definition, f"{title} contrastive".strip(), arguments, contrast=True)
        _compare(subject, definition, f"{title} with a ReLU on top".strip(), arguments, rectified=True)
        if title:
            continue
        _compare(subject, definition, "with non-contiguous inputs", arguments.map(_non_contiguous))
        _compare(subject, definition, "with one target at a time", arguments, one_by_one=True)
    rectified = base.map(lambda value: value.clamp(min=0))
    _compare(subject, _Definition(subject, rectified), "behind a ReLU", base, behind_relu=True)
    for dtype, coarse in {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}.items():
        rounded, other = base.to(dtype), subject.to(dtype)
        try:
            other.plain(rounded.fresh())
        except RuntimeError:  # the operation itself has no such precision
            continue
        definition = _Definition(other.to(torch.float64), rounded.to(torch.float64))
        _compare(other, definition, f"in {str(dtype).removeprefix('torch.')}", rounded, coarse=coarse)


class _Definition:
    """What an operation should hand down at certain arguments, element by element, from its values alone."""

    def __init__(self, subject: _Subject, arguments: _Arguments) -> None:
        def evaluate(values: Sequence[Any]) -> Tensor:
            return torch.cat([value.flatten() for value in subject.plain(values)])

        self.response = evaluate(arguments.fresh())  # (N,)
        columns = []  # of J, of whether it depends, of whether it does as a straight line
        for k in arguments.signals:
            for i in range(arguments.values[k].numel()):

                def at(value: float, k: int = k, i: int = i) -> Tensor:
                    values = arguments.fresh()
                    values[k].view(-1)[i] = value
                    return evaluate(values)

                here = float(arguments.values[k].detach().reshape(-1)[i])
                slope = (at(here + _STEP) - at(here - _STEP)) / (2 * _STEP)
                depends, straight = slope != 0, torch.ones_like(slope, dtype=torch.bool)
                for other in (0.0, -here, *(here + step for step in _FURTHER)):
                    change = at(other) - self.response
                    depends = depends | (change != 0)
                    straight &= change.isfinite() & (
                        (change - slope * (other - here)).abs() <= 1e-6 * (1 + change.abs())
                    )
                columns.append((torch.where(depends, slope * here, 0), depends, straight & ((slope - 1).abs() > 1e-6)))
        contributions, depends, as_by_weight = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        self.contributions = contributions  # (N, inputs)
        # one input, one output: all of it, whatever the slope
        self.single = depends & (depends.sum(1, keepdim=True) == 1) & ~as_by_weight
        if subject.passes_through:
            self.single = _same_place(subject, arguments)

    def shares(self, sign: Tensor) -> Tensor:
        """P(i | n), (N, inputs), for outputs of a given sign (N,)."""
        wanted = (sign[:, None] * self.contributions).clamp(min=0)
        total = wanted.sum(1, keepdim=True)
        by_contribution = torch.where(total > 0, wanted / total.where(total > 0, 1), 0)
        return torch.where(self.single.any(1, keepdim=True), self.single.to(wanted), by_contribution)

    def well_conditioned(self) -> Tensor:
        """(N,): outputs whose sign and shares low precision can tell."""
        size = self.contributions.abs().sum(1)
        total = (self.response.sign()[:, None] * self.contributions).clamp(min=0).sum(1)
        clear = (self.response.abs() > 0.1 * size) & (total > 0.1 * size)
        return clear | self.single.any(1)


def _same_place(subject: _Subject, arguments: _Arguments) -> Tensor:
    values = subject.plain(arguments.fresh())
    signals = [arguments.values[k] for k in arguments.signals]
    if len(values) != 1 or len(signals) != 1:
        raise ValueError("with passes_through there must be one signal and one output")
    try:
        places = torch.arange(signals[0].numel()).reshape(signals[0].shape).broadcast_to(values[0].shape)
    except RuntimeError as error:
        raise ValueError(
            f"with passes_through the signal {tuple(signals[0].shape)} must broadcast to the output "
            f"{tuple(values[0].shape)}"
        ) from error
    return F.one_hot(places.flatten(), signals[0].numel()).bool()


def _compare(
    subject: _Subject,
    definition: _Definition,
    title: str,
    arguments: _Arguments,
    *,
    classifier: bool = False,
    contrast: bool = False,
    rectified: bool = False,
    behind_relu: bool = False,
    one_by_one: bool = False,
    coarse: float | None = None,
) -> None:
    """Raise RuleError where the mode hands down something else than the definition says."""
    leaves = [arguments.values[k].detach().requires_grad_() for k in arguments.signals]
    values = arguments.fresh()
    with ExcitationMode() as mode:
        for k, leaf in zip(arguments.signals, leaves, strict=True):
            values[k] = F.relu(leaf) if behind_relu else leaf.clone()  # fn may work in place
        outputs = _floating(subject.fn(*values))
        tops = [F.relu(output) for output in outputs] if rectified else outputs
    plain = subject.plain((arguments.map(F.relu) if behind_relu else arguments).fresh())
    _check_values(f"the rule for {subject.name}", title, outputs, plain)
    sites = [site for output in tops for site in graph.unexplained(output)]
    if sites:
        mode.refuse(sites)
    layers = graph.weighted_below([output.grad_fn for output in tops])
    if not layers and (classifier or contrast):
        return
    for node in layers:
        node.contributions.contrast = contrast
        if not (classifier or contrast):
            node.contributions.sign = None  # as if another layer were above

    sign = definition.response.sign()
    explains = (sign != 0) & definition.response.isfinite()
    if coarse is not None:
        explains &= definition.well_conditioned()
    if rectified:
        explains &= sign > 0
    elif classifier or contrast:
        sign = torch.ones_like(sign)
    expected = definition.shares(sign)
    if contrast:
        expected = expected - definition.shares(-sign)
        explains = explains & ~definition.single.any(1)
    found = _handed_down(tops, leaves, one_by_one).to(torch.float64)
    wrong = ~((found - expected).abs() <= (subject.tolerance if coarse is None else coarse))  # also where it is NaN
    wrong &= explains[:, None]
    if wrong.any():
        worst = (found - expected).abs().nan_to_num(torch.inf).where(wrong, 0).flatten().argmax()
        n, i = divmod(int(worst), expected.shape[1])
        raise RuleError(
            f"the rule for {subject.name} disagrees with the definition ({title}):\n"
            f"  {_place('output', outputs, n)}, of value {float(definition.response[n]):.6g},\n"
            f"  hands {_place('input', leaves, i)}\n"
            f"  {float(found[n, i]):.6g} of its probability, expected {float(expected[n, i]):.6g};\n"
            f"  to all inputs together {float(found[n].sum()):.6g}, expected {float(expected[n].sum()):.6g}\n"
            f"  ({int(wrong.sum())} of {wrong.numel()} shares differ)"
        )


def _check_values(rule: str, title: str, outputs: Sequence[Tensor], plain: Sequence[Tensor]) -> None:
    if len(plain) != len(outputs) or not all(map(_same_bits, plain, outputs)):
        raise RuleError(f"{rule} changes its value ({title})")
    if not any(map(carries_signal, outputs)):
        raise RuleError(f"{rule} cuts the signal: its value has no grad_fn ({title})")
    if any(graph.is_nonnegative(output) and (output < 0).any() for output in outputs):
        raise RuleError(f"{rule} calls its value non-negative, and it is not ({title})")


def _handed_down(tops: Sequence[Tensor], leaves: Sequence[Tensor], one_by_one: bool) -> Tensor:
    """What each output hands to each input: (N, inputs)."""
    sizes = [top.numel() for top in tops]
    priors = [
        part.reshape(-1, *top.shape).to(top)
        for part, top in zip(torch.eye(sum(sizes)).split(sizes, dim=1), tops, strict=True)
    ]

    def down(grads: list[Tensor], batched: bool) -> list[Tensor | None]:
        reached = [(top, grad) for top, grad in zip(tops, grads, strict=True) if top.requires_grad]
        return list(
            torch.autograd.grad(
                [top for top, _ in reached],
                leaves,
                [grad for _, grad in reached],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )

    if one_by_one:
        rows = [down([prior[n] for prior in priors], batched=False) for n in range(sum(sizes))]
        shares = [None if part[0] is None else torch.stack(part) for part in zip(*rows, strict=True)]
    else:
        shares = down(priors, batched=True)
    return torch.cat(
        [
            torch.zeros(sum(sizes), leaf.numel()) if share is None else share.flatten(1)
            for share, leaf in zip(shares, leaves, strict=True)
        ],
        dim=1,
    )


def _place(what: str, tensors: Sequence[Tensor], flat: int) -> str:
    """``input 1, element (0, 2)`` for a place counted through all tensors."""
    for number, tensor in enumerate(tensors):
        if flat < tensor.numel():
            where = tuple(int(at) for at in torch.unravel_index(torch.tensor(flat), tensor.shape))
            return f"{what} {number}, element {where}"
        flat -= tensor.numel()
    raise IndexError(flat)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.detach().nan_to_num())


def _non_contiguous(value: Tensor) -> Tensor:
    """The same values with the axes' order in memory reversed."""
    backwards = tuple(reversed(range(value.ndim)))
    return value.permute(backwards).contiguous().permute(backwards)


def _floating(value: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]
