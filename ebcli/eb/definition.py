"""The definition that check_rule() compares a rule with, built from the operation's values alone."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.eb.mode import tensors_in
from ebcli.errors import ConfigurationError

STEP = 1e-6  # of the finite differences


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _carries_signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter)


@dataclass(frozen=True)
class Trial:
    """An operation and its arguments, of which those that require grad and are no parameters carry the signal.

    Attributes:
        name: of the operation.
        fn: it.
        arguments: its arguments.
        passes_through, tolerance: as in `check_rule`.
        below, above: other operations on its signals and on its results.
    """

    name: str
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    passes_through: bool
    tolerance: float
    below: Callable[[Tensor], Tensor] = lambda a: a
    above: Callable[[Tensor], Tensor] = lambda a: a

    @property
    def signals(self) -> list[Tensor]:
        return [a.detach() for a in self.arguments if _carries_signal(a)]

    def outputs(self, signals: Iterable[Tensor] | None = None) -> list[Tensor]:
        """The floating-point results, perhaps for other signals, which an operation may overwrite."""
        given = map(self.below, map(torch.clone, self.signals) if signals is None else signals)
        arguments = [
            next(given) if _carries_signal(a) else a.detach().clone() if isinstance(a, Tensor) else a
            for a in self.arguments
        ]
        return [self.above(value) for value in filter(_is_floating, tensors_in(self.fn(*arguments)))]

    def map(self, change: Callable[[Tensor], Tensor], of: Callable[[Any], bool] = _carries_signal) -> "Trial":
        """The operation with some arguments changed: the signals, unless told otherwise."""
        changed = (change(a.detach()).requires_grad_(_carries_signal(a)) if of(a) else a for a in self.arguments)
        return replace(self, arguments=tuple(changed))

    def to(self, dtype: torch.dtype) -> "Trial":
        """The same in another precision. Only modules are converted, not the tensors a function refers to."""
        fn = copy.deepcopy(self.fn).eval().to(dtype) if isinstance(self.fn, nn.Module) else self.fn
        return replace(self, fn=fn).map(lambda a: a.to(dtype).contiguous(), _is_floating)


class Definition:
    """Each output's shares for the inputs of a trial, element by element."""

    def __init__(self, trial: Trial) -> None:
        signals = trial.signals
        here = torch.cat([signal.flatten() for signal in signals])
        alone = torch.eye(len(here), dtype=torch.bool, device=here.device)

        def responses(inputs: Tensor) -> Tensor:
            parts = inputs.split([signal.numel() for signal in signals])
            outputs = trial.outputs(part.view(signal.shape) for part, signal in zip(parts, signals, strict=True))
            return torch.cat([output.flatten() for output in outputs])

        def moved(there: Tensor) -> Tensor:
            """The responses where one input is elsewhere: (N, inputs)."""
            return torch.stack([responses(inputs) for inputs in there.where(alone, here)], 1)

        self.response = responses(here.clone())  # (N,)
        slope = (moved(here + STEP) - moved(here - STEP)) / (2 * STEP)
        depends, is_straight = slope != 0, torch.ones_like(slope, dtype=torch.bool)
        # larger steps, to find out whether and how an output depends on an input
        for there in (torch.zeros_like(here), -here, *(here + step for step in (1.3, -2.7, 11.0, -13.0))):
            change = moved(there) - self.response[:, None]
            depends |= change != 0
            error = (change - slope * (there - here)).abs()
            is_straight &= change.isfinite() & (error <= 1e-6 * (1 + change.abs()))
        self.contributions = torch.where(depends, slope * here, 0)  # (N, inputs)
        # one input, one output: it gets everything, whatever the slope, unless that is a weight
        is_weight = is_straight & ((slope - 1).abs() > 1e-6)
        self.single = depends & (depends.sum(1, keepdim=True) == 1) & ~is_weight
        if trial.passes_through:
            self.single = _same_place(signals, trial.outputs())

    def shares(self, sign: Tensor) -> Tensor:
        """P(i | n), (N, inputs), for outputs with signs (N,)."""
        wanted = (sign[:, None] * self.contributions).clamp(min=0)
        total = wanted.sum(1, keepdim=True)
        by_contribution = torch.where(total > 0, wanted / total.where(total > 0, 1), 0)
        return torch.where(self.single.any(1, keepdim=True), self.single.to(wanted), by_contribution)

    def well_conditioned(self) -> Tensor:
        """(N,): outputs whose sign and shares are reliable in low precision."""
        size = self.contributions.abs().sum(1)
        total = (self.response.sign()[:, None] * self.contributions).clamp(min=0).sum(1)
        clear = (self.response.abs() > 0.1 * size) & (total > 0.1 * size)
        return clear | self.single.any(1)


def _same_place(signals: list[Tensor], outputs: list[Tensor]) -> Tensor:
    """Which output is at the place of which input: (N, inputs)."""
    try:
        (signal,), (output,) = signals, outputs
        places = torch.arange(signal.numel()).reshape(signal.shape).broadcast_to(output.shape)
    except (ValueError, RuntimeError) as error:
        ours, theirs = (" and ".join(str(tuple(one.shape)) for one in of) for of in (signals, outputs))
        raise ConfigurationError(
            f"passes_through needs a signal that broadcasts to the output, but {ours} does not broadcast to {theirs}"
        ) from error
    return F.one_hot(places.flatten(), signal.numel()).bool()
