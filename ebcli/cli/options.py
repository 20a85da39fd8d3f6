"""The options that say which network is meant, for all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ebcli.cli import completion
from ebcli.run.plan import RunPlan

F = TypeVar("F", bound=Callable[..., Any])


class _Channels(click.ParamType):
    """``0.5`` -> (0.5,), ``0.485,0.456,0.406`` -> (0.485, 0.456, 0.406)."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return tuple(map(float, str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} is neither a number nor three with commas between them", param, ctx)


_CHANNELS = _Channels()

_OPTIONS = (
    click.option(
        "--model",
        metavar="NAME",
        default=RunPlan.model,
        shell_complete=completion.models,
        help="A classifier of torchvision by its name, timm/NAME, hf/NAME (of Hugging Face, or a local directory), or "
        "one of your own: FILE.py:FACTORY or MODULE:FACTORY, whose code is executed.",
    ),
    click.option(
        "--weights",
        metavar="NAME|FILE|none",
        default=RunPlan.weights,
        shell_complete=completion.weights,
        help="DEFAULT, the name of other weights of this model, a checkpoint file, of which nothing is executed, or "
        "none for an untrained net.",
    ),
    click.option(
        "--classes",
        metavar="FILE",
        type=click.Path(path_type=Path),
        show_default="those the model comes with",
        help="The class names in the order of the network's outputs: one a line, or JSON.",
    ),
    click.option(
        "--resize",
        metavar="PIXELS",
        type=int,
        show_default="the model's own, as for the next three",
        help="What an image's shorter side is resized to.",
    ),
    click.option(
        "--crop", metavar="PIXELS", type=int, help="The side of the square that the network then gets of the centre."
    ),
    click.option(
        "--mean", metavar="X[,X,X]", type=_CHANNELS, help="What is subtracted from pixels of 0 to 1; one, or R,G,B."
    ),
    click.option("--std", metavar="X[,X,X]", type=_CHANNELS, help="What the rest is divided by, likewise."),
)


def model_options(command: F) -> F:
    """Add ``--model``, ``--weights``, ``--classes`` and the preprocessing's options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
