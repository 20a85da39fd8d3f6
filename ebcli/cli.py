"""The command line: options -> RunPlan -> what the user reads. The only place that talks to the terminal."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebcli.errors import EbcliError
from ebcli.plan import RunPlan

if TYPE_CHECKING:
    from ebcli.run import ImageResult, Run

SOME_FAILED, MISUSED, INTERRUPTED = 1, 2, 130

EPILOG = """
Without --model, the bundled EfficientNet-Lite0 with its ImageNet weights is used; nothing is downloaded.

Every option can also be set in the environment: --top-k as EB_SALIENCY_TOP_K, --contrastive as
EB_SALIENCY_CONTRASTIVE=1 or 0, several targets as EB_SALIENCY_TARGET="tabby;tiger cat".

Exit status: 0 all done, 1 some images failed and the rest are written, 2 wrong usage or nothing could be
done, 130 interrupted.
"""


class _ClassName(click.ParamType):
    """A class index or name; as names hold spaces, an environment variable's list is split at semicolons."""

    name = "class"
    envvar_list_splitter = ";"


@click.command(
    context_settings={
        "auto_envvar_prefix": "EB_SALIENCY",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 110,
    },
    epilog=EPILOG,
)
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@click.option("--model", metavar="NAME", default=RunPlan.model, help="A torchvision classification model.")
@click.option(
    "--weights",
    metavar="NAME|FILE|none",
    default=RunPlan.weights,
    help="DEFAULT, the name of other weights of this model, a checkpoint file, or none for an untrained net.",
)
@click.option("--layer", metavar="NAME", show_default="the model's own", help="The layer whose map is drawn.")
@click.option(
    "--contrastive/--marginal",
    default=RunPlan.contrastive,
    help="What speaks for the class more than against it, or all that excites it.",
)
@click.option(
    "--target",
    "targets",
    envvar="EB_SALIENCY_TARGET",
    type=_ClassName(),
    multiple=True,
    show_default="the most likely",
    help="Draw a map for this class, by index or name. Can be repeated.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=1),
    default=RunPlan.top_k,
    help="Without --target: draw a map for each of the K most likely classes.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=RunPlan.output,
    help="The directory for the results, which mirror the inputs' tree.",
)
@click.option("--cmap", metavar="NAME", default=RunPlan.cmap, help="A matplotlib colormap.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=RunPlan.alpha,
    help="How opaque the map is at its maximum.",
)
@click.option(
    "--device",
    metavar="NAME",
    default=RunPlan.device,
    help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
)
@click.option("--list-models", is_flag=True, help="Print the names of the models and exit.")
@click.option("--list-layers", is_flag=True, help="Print --model's layers and exit: name, type, shape, stride.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Also say what was used and what each image shows.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="ebcli", prog_name="eb-saliency", message="%(prog)s %(version)s")
def main(
    *,
    images: tuple[Path, ...],
    list_models: bool,
    list_layers: bool,
    quiet: bool,
    verbose: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Draw where a network sees a class in each of IMAGES (files, or directories and all below them).

    One picture per image and class is written, and its path printed.
    """
    with _plain_errors(debug), _plain_warnings(quiet):
        if list_models:
            from ebcli.models import model_names

            click.echo("\n".join(model_names()))
        elif list_layers:
            from ebcli.run import layer_table

            heading, *rows = _aligned(layer_table(options["model"], options["weights"]))
            if not quiet:
                _say(heading)
            click.echo("\n".join(rows))
        else:
            plan = RunPlan(images=images, **options)
            from ebcli.run import run

            _report(run(plan), quiet, verbose)


def _report(work: Run, quiet: bool, verbose: bool) -> None:
    """Read the results as they come; paths go to stdout, everything else to stderr."""
    from tqdm import tqdm

    if verbose:
        _say(f"{work.model} ({work.weights}), layer {work.layer}, on {work.device}")
    done = failed = 0
    hidden = True if quiet or work.total < 2 else None  # None: tqdm shows the bar on a terminal only
    for result in tqdm(work.results, total=work.total, unit="image", leave=False, disable=hidden):
        with tqdm.external_write_mode():
            _report_one(result, quiet, verbose)
        done += bool(result.maps)
        failed += result.error is not None
    if failed:
        _say(f"{failed} of {done + failed} images failed")
        sys.exit(SOME_FAILED)
    if not done:
        raise EbcliError("there is no image among the files")


def _report_one(result: ImageResult, quiet: bool, verbose: bool) -> None:
    name = click.format_filename(result.path)
    if not name.isprintable():  # a line break or an escape sequence is shown, not obeyed
        name = repr(name)
    if result.error is not None:
        _say(f"{name}: {result.error}")
    elif result.skipped and verbose:
        _say(f"{name}: skipped, it is not an image")
    for shown in result.maps:
        title = f"class {shown.index}" + (f" ({shown.category})" if shown.category else "")
        if verbose:
            _say(f"{name}: {title}, probability {shown.score:.3f}, mass {shown.mass:.3f}")
        if shown.blank and not quiet:
            _say(f"{name}: the map of {title} is empty, so the picture shows none")
        click.echo(os.fsencode(shown.picture))  # bytes: not every file name is valid text


def _say(message: str) -> None:
    click.echo(message, err=True)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextmanager
def _plain_errors(debug: bool) -> Iterator[None]:
    """One sentence on stderr and the exit status for whatever goes wrong; the traceback with ``--debug``."""
    try:
        yield
    except KeyboardInterrupt:
        _say("Interrupted.")
        sys.exit(INTERRUPTED)
    except (click.exceptions.Exit, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of stdout has gone; Click ends the program quietly
        if debug:
            import traceback

            traceback.print_exc()
        elif isinstance(error, EbcliError):
            _say(f"Error: {error}")
        else:
            reason = " ".join(str(error).split())
            _say(f"Error: {type(error).__name__}: {reason} (unexpected; --debug shows where)")
        sys.exit(MISUSED)


@contextmanager
def _plain_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line each on stderr, without the source line that raised them."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        else:
            # Pillow's warning at half the size that it refuses; it would not name the file
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
            warnings.showwarning = lambda message, *_, **__: _say(f"Warning: {message}")
        yield
