"""The definition that check_rule() compares a rule with, built from the operation's values alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.eb.facts import carries_signal, tensors_in
from ebcli.errors import ConfigurationError

STEP = 1e-6  # of the finite differences
FURTHER = (1.3, -2.7, 11.0, -13.0)  # larger steps, to find out whether and how an output depends on an input


@dataclass(frozen=True)
class Arguments:
    """The arguments of an operation. Those that require grad carry the signal."""

    values: tuple[Any, ...]

    @property
    def signals(self) -> list[int]:
        return [i for i, value in enumerate(self.values) if carries_signal(value)]

    def to(self, dtype: torch.dtype) -> Arguments:
        def converted(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                return value
            return value.detach().to(dtype).contiguous().clone().requires_grad_(carries_signal(value))

        return Arguments(tuple(map(converted, self.values)))

    def map(self, change: Callable[[Tensor], Tensor]) -> Arguments:
        """These arguments with `change` applied to each signal."""
        return Arguments(tuple(change(v.detach()).requires_grad_() if carries_signal(v) else v for v in self.values))

    def fresh(self) -> list[Any]:
        """Copies of the values, which an operation may overwrite."""
        return [v.detach().clone() if isinstance(v, Tensor) else v for v in self.values]


@dataclass(frozen=True)
class Operation:
    """The operation under test."""

    fn: Callable[..., Any]
    passes_through: bool
    tolerance: float

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def to(self, dtype: torch.dtype) -> Operation:
        """The operation in another precision. Only modules are converted, not the tensors a function refers to."""
        return replace(self, fn=copy.deepcopy(self.fn).eval().to(dtype)) if isinstance(self.fn, nn.Module) else self

    def plain(self, arguments: Sequence[Any]) -> list[Tensor]:
        """The floating-point outputs without the mode."""
        with torch.no_grad():
            return floating(self.fn(*arguments))


class Definition:
    """Each output's shares for the inputs at given arguments, element by element."""

    def __init__(self, operation: Operation, arguments: Arguments) -> None:
        def evaluate(values: Sequence[Any]) -> Tensor:
            return torch.cat([value.flatten() for value in operation.plain(values)])

        self.response = evaluate(arguments.fresh())  # (N,)
        columns = []  # of the contributions, of whether the output depends on the input, and whether linearly
        for k in arguments.signals:
            for i in range(arguments.values[k].numel()):

                def at(value: float, k: int = k, i: int = i) -> Tensor:
                    values = arguments.fresh()
                    values[k].view(-1)[i] = value
                    return evaluate(values)

                here = float(arguments.values[k].detach().reshape(-1)[i])
                slope = (at(here + STEP) - at(here - STEP)) / (2 * STEP)
                depends, straight = slope != 0, torch.ones_like(slope, dtype=torch.bool)
                for other in (0.0, -here, *(here + step for step in FURTHER)):
                    change = at(other) - self.response
                    depends = depends | (change != 0)
                    straight &= change.isfinite() & (
                        (change - slope * (other - here)).abs() <= 1e-6 * (1 + change.abs())
                    )
                columns.append((torch.where(depends, slope * here, 0), depends, straight & ((slope - 1).abs() > 1e-6)))
        contributions, depends, as_by_weight = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        self.contributions = contributions  # (N, inputs)
        # one input, one output: it gets everything, whatever the slope
        self.single = depends & (depends.sum(1, keepdim=True) == 1) & ~as_by_weight
        if operation.passes_through:
            self.single = _same_place(operation, arguments)

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


def _same_place(operation: Operation, arguments: Arguments) -> Tensor:
    values = operation.plain(arguments.fresh())
    signals = [arguments.values[k] for k in arguments.signals]
    if len(values) != 1 or len(signals) != 1:
        raise ConfigurationError("passes_through needs exactly one signal and one output")
    try:
        places = torch.arange(signals[0].numel()).reshape(signals[0].shape).broadcast_to(values[0].shape)
    except RuntimeError as error:
        raise ConfigurationError(
            f"passes_through needs a signal that broadcasts to the output, but {tuple(signals[0].shape)} does not "
            f"broadcast to {tuple(values[0].shape)}"
        ) from error
    return F.one_hot(places.flatten(), signals[0].numel()).bool()


def floating(value: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]
