"""The options of the commands. Imports neither torch nor torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from ebcli.cli.parameters import (
    Channels,
    ClassName,
    SectionOption,
    Shard,
    complete_colormap,
    complete_model,
    complete_weights,
)
from ebcli.drawing.style import STYLES, DrawingStyle
from ebcli.files.remote import RemoteOptions
from ebcli.models.keywords import FITS, SCORES
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import DTYPES, ENGINES, FORMATS, SCALES, ExecutionOptions, MapOptions, OutputOptions

F = TypeVar("F", bound=Callable[..., Any])


def _section(name: str) -> Callable[..., Callable[[F], F]]:
    return partial(click.option, cls=SectionOption, section=name)


def _apply(options: Iterable[Callable[[Any], Any]], command: F) -> F:
    for option in reversed(list(options)):
        command = option(command)
    return command


_input, _model, _map, _output = map(_section, ("Input", "Model", "Map", "Output"))
_appearance, _resuming, _performance = map(_section, ("Appearance", "Resuming", "Performance"))
_cluster, _information = map(_section, ("Cluster", "Information"))
_PATH, _DIRECTORY = click.Path(path_type=Path), click.Path(file_okay=False, path_type=Path)
_CHANNELS = Channels()

_MODEL = (
    _model(
        "--model",
        metavar="NAME",
        default=ModelSpec.name,
        shell_complete=complete_model,
        help="Load a torchvision classifier, timm/NAME, hf/NAME (Hugging Face or a directory), or run your own code: "
        "FILE.py:FACTORY or MODULE:FACTORY.",
    ),
    _model(
        "--weights",
        metavar="NAME|FILE|none",
        default=ModelSpec.weights,
        shell_complete=complete_weights,
        help="Load these weights: DEFAULT, a name, a checkpoint (with weights_only=True), or none.",
    ),
    _model(
        "--class-names",
        metavar="FILE",
        type=_PATH,
        show_default="the model's own",
        help="Read the class names, in output order, from FILE: one per line, or JSON.",
    ),
    _model(
        "--resize",
        metavar="PIXELS",
        type=int,
        show_default=False,
        help="Resize the shorter side to PIXELS, in place of the model's own preprocessing.",
    ),
    _model("--crop", metavar="PIXELS", type=int, show_default=False, help="Crop the center to PIXELS."),
    _model(
        "--mean",
        metavar="X[,X,X]",
        type=_CHANNELS,
        show_default=False,
        help="Per-channel normalization mean, for pixels from 0 to 1.",
    ),
    _model(
        "--std",
        metavar="X[,X,X]",
        type=_CHANNELS,
        show_default=False,
        help="Per-channel normalization standard deviation.",
    ),
    _model(
        "--fit",
        type=click.Choice(FITS),
        show_default="the model's own",
        help="Crop images at the center, squash them to a square, or pad them.",
    ),
    _model(
        "--scores",
        type=click.Choice(SCORES),
        show_default="the model's own",
        help="Compute class scores by softmax or sigmoid, or use raw logits.",
    ),
)


def model_options(command: F) -> F:
    """Add the options that say which network to load and how to preprocess its input."""
    return _apply(_MODEL, command)


_SALIENCY = (
    _input(
        "--from-file",
        metavar="FILE",
        type=click.File("rb"),
        help="Also read paths from FILE, one per line; - is stdin.",
    ),
    _input("-0", "--null", is_flag=True, help="Split --from-file at NUL characters, as find -print0 writes them."),
    _input(
        "--include",
        metavar="GLOB",
        multiple=True,
        show_default="all",
        help="Only use files whose name, directory or end of the path matches GLOB. Repeatable.",
    ),
    _input("--exclude", metavar="GLOB", multiple=True, show_default="none", help="Skip files matching GLOB."),
    _input(
        "--shard",
        metavar="I/N",
        type=Shard(),
        show_default="from RANK and WORLD_SIZE, or all",
        help="Only process the I-th of N shards of the images, counted from 1.",
    ),
    _input(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=RemoteOptions.timeout,
        help="Wait this long for a server to answer or to send more.",
    ),
    _input(
        "--retries", type=int, default=RemoteOptions.retries, help="Repeat a failed request, waiting longer each time."
    ),
    _input(
        "--max-pixels",
        metavar="COUNT",
        type=click.IntRange(min=1),
        show_default="Pillow's own limit, 179 million",
        help="Reject images with more than COUNT pixels.",
    ),
    _input(
        "--max-bytes",
        metavar="COUNT",
        type=int,
        default=RemoteOptions.max_bytes,
        help="Reject files from URLs or tar files that are larger than COUNT bytes.",
    ),
    *_MODEL,
    _map(
        "--layer",
        "layers",
        envvar="EB_SALIENCY_LAYER",
        metavar="NAME|input|all",
        multiple=True,
        show_default="the model's own",
        help="Compute the map at this layer; 'input' means the pixels, 'all' one layer per resolution. Repeatable.",
    ),
    _map(
        "--contrastive/--marginal",
        default=MapOptions.contrastive,
        help="Show what distinguishes the class, or everything that excites it.",
    ),
    _map(
        "--against",
        envvar="EB_SALIENCY_AGAINST",
        type=ClassName(),
        multiple=True,
        show_default="the class's dual",
        help="Show what distinguishes the class from this one, by index or name. Repeatable.",
    ),
    _map("--with-marginal", is_flag=True, help="In panels, show the marginal map beside the contrastive one."),
    _map(
        "--target",
        "targets",
        envvar="EB_SALIENCY_TARGET",
        type=ClassName(),
        multiple=True,
        show_default="the most likely",
        help="Explain this class, by index or name. Repeatable.",
    ),
    _map("--top-k", type=click.IntRange(min=1), default=MapOptions.top_k, help="Explain the K most likely classes."),
    _map(
        "--allow-unsupported",
        is_flag=True,
        help="Use ordinary gradients, with a warning, for operations without an excitation rule.",
    ),
    _output(
        "-o",
        "--output",
        type=_DIRECTORY,
        default=OutputOptions.directory,
        help="Write results to this directory, mirroring the input tree.",
    ),
    _output(
        "--format", type=click.Choice(FORMATS, case_sensitive=False), default=OutputOptions.format, help="Image format."
    ),
    _output("--raw", is_flag=True, help="Also write each image's signed relevance to a compressed .npz file."),
    _output("--panel", is_flag=True, help="Draw one figure per image, with the photo and all its maps."),
    _output("--report", is_flag=True, help="Also write a gallery page of all results, report/index.html."),
    _output(
        "--report-only",
        metavar="DIR",
        type=_DIRECTORY,
        help="Write the gallery page for DIR and exit. Photos are only read below IMAGES.",
    ),
    _output("--verify", metavar="DIR", type=_DIRECTORY, help="Check that the results in DIR are intact and exit."),
    _output("--json", "as_json", is_flag=True, help="Print one JSON record per image instead of paths."),
    _appearance(
        "--style",
        type=click.Choice(STYLES, case_sensitive=False),
        default=DrawingStyle.name,
        help="How to draw the map.",
    ),
    _appearance(
        "--cmap",
        metavar="NAME",
        shell_complete=complete_colormap,
        show_default="inferno; jet for --style paper; RdBu_r for --signed",
        help="Matplotlib colormap.",
    ),
    _appearance(
        "--alpha",
        type=click.FloatRange(0, 1),
        default=DrawingStyle.alpha,
        help="Opacity of an overlay at the upper end of the scale.",
    ),
    _appearance("--signed", is_flag=True, help="Draw negative values, too, on a scale symmetric about 0."),
    _appearance(
        "--scale",
        type=click.Choice(SCALES, case_sensitive=False),
        default=OutputOptions.scale,
        help="Scale each map to its own maximum, or all maps of the run alike, as a sample suggests.",
    ),
    _appearance(
        "--vmin", type=float, default=DrawingStyle.vmin, help="Lower end of the scale; 1 is a uniform map's value."
    ),
    _appearance("--vmax", type=float, show_default="by --scale", help="Upper end of the scale, in the same units."),
    _appearance(
        "--percentile",
        type=float,
        default=DrawingStyle.percentile,
        help="End each map's scale at this percentile of its positive values.",
    ),
    _resuming("--skip-existing", is_flag=True, help="Skip images whose results are up to date."),
    _resuming("--overwrite", is_flag=True, help="Also replace files that this program did not write."),
    _resuming("--dry-run", is_flag=True, help="List the images without processing them."),
    _resuming("--fail-fast", is_flag=True, help="Stop at the first image that fails."),
    _performance(
        "--batch-size",
        type=click.IntRange(min=1),
        show_default="by device",
        help="Images per batch; halved when memory runs out.",
    ),
    _performance(
        "--workers",
        type=click.IntRange(min=0),
        show_default="up to one per CPU",
        help="Number of processes that decode and draw; with Ray, processes that hold the network.",
    ),
    _performance(
        "--image-timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=ExecutionOptions.image_timeout,
        help="Give up on an image after this long decoding or drawing.",
    ),
    _performance(
        "--device",
        metavar="NAME",
        default=ExecutionOptions.device,
        help="Run the network on cpu, cuda, cuda:1, ...; auto prefers a GPU.",
    ),
    _performance(
        "--dtype",
        type=click.Choice(DTYPES),
        default=ExecutionOptions.dtype,
        help="Floating-point type of the network; bfloat16 is faster on recent GPUs, but coarser.",
    ),
    _cluster(
        "--engine",
        type=click.Choice(ENGINES, case_sensitive=False),
        default=ExecutionOptions.engine,
        help="Run on this machine, or on the Ray cluster at RAY_ADDRESS (needs ray[data]).",
    ),
    _cluster(
        "--gpus-per-worker",
        type=click.FloatRange(min=0),
        show_default="1 if there are GPUs",
        help="GPUs per Ray worker; fractions share a GPU.",
    ),
    _information("--list-models", is_flag=True, help="List the models of torchvision and plug-ins and exit."),
    _information("--list-layers", is_flag=True, help="List the name, type, shape and stride of layers and exit."),
    _information("--doctor", is_flag=True, help="Check the installation with a small run on --device and exit."),
    _information("-q", "--quiet", is_flag=True, help="Hide the progress bar and warnings."),
    _information("-v", "--verbose", is_flag=True, help="Print settings, scores and where probability was lost."),
    _information("--debug", is_flag=True, help="Show the traceback of an error."),
)


def saliency_options(command: F) -> F:
    """Add all options of ``eb-saliency``."""
    return _apply(_SALIENCY, command)
