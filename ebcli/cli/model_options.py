"""The options of both commands that say which network to load. Imports neither torch nor torchvision."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from ebcli.cli.parameters import INTEGERS, NUMBERS, Parsed, SectionOption, complete_model, complete_weights
from ebcli.models.keywords import FITS, SCORES
from ebcli.models.spec import ModelSpec

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def section(name: str) -> Callable[..., Callable[[F], F]]:
    """``click.option`` for a section of the help."""
    return partial(click.option, cls=SectionOption, section=name)


def with_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """A decorator that adds options to a command, in their order."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


_model = section("Model")


def _numbers(name: str, metavar: str, text: str, kind: Parsed = NUMBERS) -> Callable[[F], F]:
    return _model(name, metavar=metavar, type=kind, show_default=False, help=text)


MODEL = (
    _model(
        "-m",
        "--model",
        common=True,
        metavar="NAME",
        default=ModelSpec.name,
        shell_complete=complete_model,
        help="Model to load: a torchvision name, timm/NAME, hf/NAME, ultralytics/FILE.pt, clip/NAME or open_clip/NAME "
        "for texts, a network in FILE.onnx or FILE.pt2, or your own code as FILE.py:FACTORY or MODULE:FACTORY.",
    ),
    _model(
        "--weights",
        common=True,
        metavar="NAME|FILE|none",
        default=ModelSpec.weights,
        shell_complete=complete_weights,
        help="Load these weights: DEFAULT, another name, a checkpoint file, or none.",
    ),
    _model(
        "--class-names",
        metavar="FILE",
        type=PATH,
        show_default="the model's own",
        help="Read the class names from FILE, in output order: one per line, or JSON.",
    ),
    _model("--resize", metavar="PIXELS", type=int, show_default=False, help="Resize the shorter side to PIXELS."),
    _model("--crop", metavar="PIXELS", type=int, show_default=False, help="Crop the center to PIXELS."),
    _model("--depth", metavar="N", type=int, show_default=False, help="Resize volumes to N slices."),
    _numbers("--mean", "X[,X...]", "Subtract this mean from pixels of 0 to 1: one number, or one for each channel."),
    _numbers("--std", "X[,X...]", "Divide pixels by this standard deviation."),
    _numbers("--channels", "N[,N...]", "Give the network these channels of an array or TIFF, from 1.", INTEGERS),
    _numbers(
        "--bands",
        "N[,N,N]",
        "Draw over these channels of it: one, or red, green and blue.",
        INTEGERS,
    ),
    _numbers("--range", "LOW,HIGH", "Scale arrays, TIFF and medical images: LOW becomes 0, and HIGH becomes 1."),
    _model(
        "--fit",
        type=click.Choice(FITS),
        show_default="whole; the model's own with --resize or --crop, and in benchmark",
        help="How the image is fitted to the network: whole keeps all of it and its aspect ratio, crop cuts out the "
        "central square, squash distorts it to a square, pad adds borders.",
    ),
    _model(
        "--scores",
        type=click.Choice(SCORES),
        show_default="the model's own",
        help="Turn logits into scores by softmax or sigmoid, or leave them raw.",
    ),
)
