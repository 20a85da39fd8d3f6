"""Heads: the tensors that a network returns, of which one is explained."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ebcli.errors import ConfigurationError, LayerError

HeadChoice = str | int | None

OBVIOUS = "logits", "pred", "out"  # names that say that a head is the one to explain


class Head(NamedTuple):
    """A head.

    Attributes:
        name: its key, attribute or position in what the network returns; None of the only one.
        tensor: what it is.
    """

    name: str | None
    tensor: Tensor


def heads_of(output: Any) -> dict[str, Tensor]:
    """The floating-point tensors that a network, or one of its modules, returns."""
    if isinstance(output, Tensor):
        return {"": output}
    if dataclasses.is_dataclass(output):
        output = vars(output)
    elif isinstance(output, tuple) and hasattr(output, "_asdict"):
        output = output._asdict()
    if isinstance(output, (list, tuple)):
        output = dict(enumerate(output))
    if not isinstance(output, Mapping):
        return {}
    return {str(name): a for name, a in output.items() if isinstance(a, Tensor) and a.is_floating_point()}


def single_tensor(output: Any, what: str) -> Tensor:
    """The first floating-point tensor in what a module returns. Raises LayerError if there is none."""
    heads = heads_of(output)
    if not heads:
        raise LayerError(f"{what} must contain a floating-point tensor, but it is a {type(output).__name__}")
    return next(iter(heads.values()))


def head_of(output: Any, choice: HeadChoice = None) -> Head:
    """The head that is explained: the chosen one, the only one with a row for each image, or the one of a usual name.

    Args:
        output: what the network returned.
        choice: the head's name or position.

    Raises:
        LayerError: the network returned no floating-point tensor.
        ConfigurationError: it has no such head, or several of which none is obvious.
    """
    first = single_tensor(output, "the network's output")
    heads = heads_of(output)
    if isinstance(output, Tensor) and choice is None:
        return Head(None, output)
    if choice is not None:
        names = [*heads]
        if isinstance(choice, int) and -len(names) <= choice < len(names):
            choice = names[choice]
        if choice not in heads:
            raise ConfigurationError(f"the network has no head {choice!r}: choose one of {in_words(heads)}")
        return Head(str(choice), heads[str(choice)])
    rows = {name: a for name, a in heads.items() if a.ndim > 1}
    if len(rows) < 2:
        return Head(None, next(iter(rows.values()), first))
    for name in OBVIOUS:
        if name in rows:
            return Head(name, rows[name])
    raise ConfigurationError(
        f"the network has several heads: choose one of {in_words(rows)}, by head= or --head"
    )


def in_words(heads: Mapping[str, Tensor]) -> str:
    """Heads by name, with their shapes but for the number of images."""
    shapes = {name: ", ".join(["B", *map(str, a.shape[1:])]) if a.ndim else "" for name, a in heads.items()}
    return "; ".join(f"{name or '0'} ({shape})" for name, shape in shapes.items())
