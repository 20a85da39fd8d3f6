"""Heads: the tensors that a network returns, of which one is explained."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

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
        choice: the head's name or position; a number in text is a position if no head has that name.

    Raises:
        LayerError: the network returned no floating-point tensor.
        ConfigurationError: it has no such head, or several of which none is obvious.
    """
    first = single_tensor(output, "the network's output")
    heads = heads_of(output)
    if isinstance(output, Tensor):
        if choice is not None:
            raise ConfigurationError(f"the network has only one output, {in_words(heads)}: drop the head")
        return Head(None, output)
    if choice is not None:
        name = name_of(choice, [*heads])
        if name is None:
            valid = in_words(with_rows(heads))
            raise ConfigurationError(f"the network has no head {choice!r}: choose one of {valid}")
        return Head(name, heads[name])
    rows = with_rows(heads)
    if len(rows) < 2:
        return Head(None, next(iter(rows.values()), first))
    for name in OBVIOUS:
        if name in rows:
            return Head(name, rows[name])
    raise ConfigurationError(
        f"the network has several heads: choose one of {in_words(rows)}, by head= or --head"
    )


def with_rows(heads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that have a row for each image."""
    return {name: a for name, a in heads.items() if a.ndim > 1}


def keep_head(choice: HeadChoice, _net: Module, _inputs: Any, output: Any) -> Tensor:
    """A forward hook, once it knows the choice: the network then returns that head alone."""
    return head_of(output, choice).tensor


def in_words(heads: Mapping[str, Tensor]) -> str:
    """Heads by name, with their shapes but for the number of images."""
    shapes = {name: ", ".join(["B", *map(str, a.shape[1:])]) if a.ndim else "" for name, a in heads.items()}
    return "; ".join(f"{name} ({shape})".lstrip() for name, shape in shapes.items())


def name_of(choice: str | int, names: Sequence[str]) -> str | None:
    """The name of the chosen head; None if there is no such head.

    The names of the heads in a tuple are their positions there, where tensors that are no heads count, too.
    """
    text = str(choice)
    if text in names:
        return text
    if not re.fullmatch("-?[0-9]{1,9}", text):
        return None
    index = int(text)
    are_positions = all(name.isdigit() for name in names)
    if (are_positions and index >= 0) or not -len(names) <= index < len(names):
        return None
    return names[index]
