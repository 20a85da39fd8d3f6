"""The command line: options -> RunPlan -> what the user reads. The only place that talks to the terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ebcli.errors import EbcliError
from ebcli.plan import FORMATS, RunPlan

if TYPE_CHECKING:
    from ebcli.records import Record
    from ebcli.run import Run

SOME_FAILED, MISUSED, INTERRUPTED = 1, 2, 130

EPILOG = """
Without --model, the bundled EfficientNet-Lite0 with its ImageNet weights is used; nothing is downloaded.

Every option can also be set in the environment: --top-k as EB_SALIENCY_TOP_K, --contrastive as
EB_SALIENCY_CONTRASTIVE=1 or 0, several targets as EB_SALIENCY_TARGET="tabby;tiger cat".

What became of each image is also appended to records.jsonl in the output directory, one JSON object a line.

Exit status: 0 all done, 1 some images failed and the rest are written, 2 wrong usage or results that cannot be
written, 130 interrupted.
"""


class _ClassName(click.ParamType):
    """A class index or name; as names hold spaces, an environment variable's list is split at semicolons."""

    name = "class"
    envvar_list_splitter = ";"


class _Shard(click.ParamType):
    """``2/4`` -> (2, 4)."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        i, slash, n = str(value).partition("/")
        if not (slash and i.isdecimal() and n.isdecimal()):
            self.fail(f"{value!r} is no shard: give it as in 2/4, for the second of four", param, ctx)
        return int(i), int(n)


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
@click.option(
    "--from-file",
    metavar="LIST",
    type=click.File("rb"),
    help="Also take the files and directories named in LIST, one a line; - is stdin.",
)
@click.option("-0", "--null", "null", is_flag=True, help="LIST is separated by NUL characters, as by find -print0.")
@click.option(
    "--include",
    metavar="GLOB",
    multiple=True,
    show_default="all",
    help="Only files that fit: by their name, a directory's, or the end of their path. Can be repeated.",
)
@click.option("--exclude", metavar="GLOB", multiple=True, show_default="none", help="No files that fit.")
@click.option(
    "--shard",
    metavar="I/N",
    type=_Shard(),
    show_default="what RANK and WORLD_SIZE say, else all",
    help="Only the I-th of N parts of the images, counted from 1.",
)
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
@click.option(
    "--format",
    type=click.Choice(FORMATS, case_sensitive=False),
    default=RunPlan.format,
    help="The pictures' format.",
)
@click.option("--raw", is_flag=True, help="Also write each image's signed relevance as a compressed .npz file.")
@click.option("--cmap", metavar="NAME", default=RunPlan.cmap, help="A matplotlib colormap.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=RunPlan.alpha,
    help="How opaque the map is at its maximum.",
)
@click.option(
    "--skip-existing",
    is_flag=True,
    help="Leave out images whose results are there, made from the same file with the same settings.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that this program did not write, too.")
@click.option("--dry-run", is_flag=True, help="Print the images that would be worked on, and write nothing.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first image that fails.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    show_default="by device",
    help="How many images the network gets at a time; halved where memory does not suffice.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    show_default="one a processor",
    help="How many processes decode and draw; 0 for none.",
)
@click.option(
    "--device",
    metavar="NAME",
    default=RunPlan.device,
    help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
)
@click.option("--list-models", is_flag=True, help="Print the names of the models and exit.")
@click.option("--list-layers", is_flag=True, help="Print --model's layers and exit: name, type, shape, stride.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of each image, one JSON object a line.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Also say what was used and what each image shows.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="ebcli", prog_name="eb-saliency", message="%(prog)s %(version)s")
def main(
    *,
    images: tuple[Path, ...],
    from_file: IO[bytes] | None,
    null: bool,
    shard: tuple[int, int] | None,
    list_models: bool,
    list_layers: bool,
    as_json: bool,
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
            if from_file is not None:
                images += _listed(from_file, null)
            elif null:
                raise click.UsageError("-0 says how the list of --from-file is separated, but there is none")
            plan = RunPlan(images=images, shard=shard or _rank(os.environ, quiet), **options)
            from ebcli.run import run

            _report(run(plan), plan, as_json, quiet, verbose)


def _listed(file: IO[bytes], null: bool) -> tuple[Path, ...]:
    """The paths in a list; they are bytes, not every one is text."""
    names = file.read().split(b"\0" if null else b"\n")
    if any(b"\0" in name for name in names):
        raise click.UsageError(f"the list {click.format_filename(file.name)} holds NUL characters: pass -0 as well")
    return tuple(Path(os.fsdecode(name)) for name in names if name)


def _rank(environment: Mapping[str, str], quiet: bool) -> tuple[int, int] | None:
    """The shard for one process of many, as torchrun and others number them, from 0."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    if not quiet:
        _say(f"Shard {int(rank) + 1}/{size}, as RANK={rank} and WORLD_SIZE={size} say")
    return int(rank) + 1, int(size)


def _report(work: Run, plan: RunPlan, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Read the results as they come; they go to stdout, everything else to stderr."""
    from tqdm import tqdm

    if verbose:
        _say(f"{work.model} ({work.weights}), layer {work.layer}, on {work.device}")
        for path in work.already:
            _say(f"{_shown(path)}: already done")
    counts: Counter[str] = Counter()
    hidden = True if quiet or work.total < 2 else None  # None: tqdm shows the bar on a terminal only
    with _interrupts_stop(work.stopping) as interrupted:
        try:
            for record in tqdm(work.results, total=work.total, unit="image", leave=False, disable=hidden):
                counts[record.status] += 1
                with tqdm.external_write_mode():
                    _report_one(record, as_json, quiet, verbose)
        finally:
            _summarise(work, counts, bool(interrupted), quiet and not plan.dry_run)
    if interrupted:
        sys.exit(INTERRUPTED)
    if counts["failed"]:
        sys.exit(SOME_FAILED)
    if not (counts["done"] or counts["planned"] or work.already or plan.shard):
        raise EbcliError("there is no image among the files")


def _report_one(record: Record, as_json: bool, quiet: bool, verbose: bool) -> None:
    name = _shown(Path(record.input))
    if record.error is not None:
        _say(f"{name}: {record.error}")
    if record.status == "not an image":
        if verbose:
            _say(f"{name}: left out, it is not an image")
        return
    for shown in record.classes:
        title = f"class {shown.index}" + (f" ({shown.name})" if shown.name else "")
        if verbose:
            _say(f"{name}: {title}, probability {shown.score:.3f}, mass {shown.mass:.3f}")
        if shown.blank and not quiet:
            _say(f"{name}: the map of {title} is empty, so the picture shows none")
    if as_json:
        click.echo(record.line())
        return
    for path in [record.input] if record.status == "planned" else record.output:
        click.echo(os.fsencode(path))  # bytes: not every file name is valid text


def _summarise(work: Run, counts: Counter[str], interrupted: bool, quiet: bool) -> None:
    """One line where there is more to say than that everything was done."""
    others = counts["not an image"]
    left = work.total - counts.total()
    said = {
        "planned": counts["planned"],
        "done": counts["done"],
        "already done": len(work.already),
        "failed": counts["failed"],
        "left": left,
    }
    trouble = interrupted or counts["failed"] or left
    if trouble or (not quiet and (counts["planned"] or work.already or others)):
        total = work.total + len(work.already) - others
        parts = ", ".join(f"{count} {what}" for what, count in said.items() if count) or "none done"
        _say(
            ("Interrupted. " if interrupted else "")
            + f"Of {total} image{'s' * (total != 1)}: {parts}"
            + f"; {others} other file{'s are no images' if others > 1 else ' is no image'}" * bool(others)
        )


@contextmanager
def _interrupts_stop(stopping: threading.Event) -> Iterator[list[int]]:
    """The first Ctrl-C lets what has begun come to its end, the second one does not; yields the first, if any."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield caught
        return

    def stop(number: int, _frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        stopping.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)


def _shown(path: Path) -> str:
    name = click.format_filename(path)
    return name if name.isprintable() else repr(name)  # line breaks and escape sequences are shown, not obeyed


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
