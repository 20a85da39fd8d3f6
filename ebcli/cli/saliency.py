"""The command line: options -> RunPlan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from ebcli.cli import completion
from ebcli.cli.console import plain_errors, plain_warnings, report, report_findings, say
from ebcli.cli.options import model_options
from ebcli.imports import DISTRIBUTION
from ebcli.run.plan import DTYPES, ENGINES, FORMATS, SCALES, STYLES, RunPlan

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
@model_options
@click.option(
    "--layer",
    "layers",
    envvar="EB_SALIENCY_LAYER",
    metavar="NAME|input|all",
    multiple=True,
    show_default="the model's own",
    help="The layer whose map is drawn. Can be repeated; input is the pixels, all one layer of each resolution.",
)
@click.option(
    "--contrastive/--marginal",
    default=RunPlan.contrastive,
    help="What speaks for the class more than against it, or all that excites it.",
)
@click.option("--with-marginal", is_flag=True, help="In panels, also show the marginal map beside the contrastive one.")
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
@click.option(
    "--report", is_flag=True, help="Also write a page of all results, report/index.html, that opens in a browser."
)
@click.option("--panel", is_flag=True, help="Draw one figure an image, of the photo and all its maps.")
@click.option(
    "--style",
    type=click.Choice(STYLES, case_sensitive=False),
    default=RunPlan.style,
    help="How a map is laid on its photo.",
)
@click.option(
    "--cmap",
    metavar="NAME",
    shell_complete=completion.colormaps,
    show_default="inferno; jet for --style paper, RdBu_r for --signed",
    help="A matplotlib colormap.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=RunPlan.alpha,
    help="How opaque an overlay is at the upper end of its scale.",
)
@click.option("--signed", is_flag=True, help="Also draw what speaks against the class, on a scale symmetric about 0.")
@click.option(
    "--scale",
    type=click.Choice(SCALES, case_sensitive=False),
    default=RunPlan.scale,
    help="Draw each map up to its own maximum, or all maps of the run on one scale, found beforehand.",
)
@click.option(
    "--vmin",
    type=float,
    show_default="0",
    help="The scale's lower end; 1 is an even spread of all probability over a map's cells.",
)
@click.option("--vmax", type=float, show_default="as --scale says", help="The scale's upper end, likewise.")
@click.option(
    "--percentile",
    type=float,
    default=RunPlan.percentile,
    help="Where each map's own scale ends: at this percentile of its values above 0, 100 being the maximum.",
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
    "--allow-unsupported",
    is_flag=True,
    help="Use ordinary gradients, with a warning, where an operation has no excitation rule.",
)
@click.option(
    "--device",
    metavar="NAME",
    default=RunPlan.device,
    help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default=RunPlan.dtype,
    help="What the network computes in; bfloat16 is quicker on recent GPUs, and coarser.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES, case_sensitive=False),
    default=RunPlan.engine,
    help="Work on this machine, or on a Ray cluster (needs the package ray[data]).",
)
@click.option(
    "--ray-address",
    metavar="HOST:PORT|auto",
    show_default="Ray is started on this machine",
    help="With --engine ray: the cluster to work on.",
)
@click.option(
    "--num-workers",
    type=click.IntRange(min=1),
    show_default="as the cluster has room",
    help="With --engine ray: how many processes hold the network.",
)
@click.option(
    "--gpus-per-worker",
    type=click.FloatRange(min=0),
    show_default="1 if there are GPUs",
    help="With --engine ray: how many GPUs, or what part of one, each of them gets.",
)
@click.option(
    "--report-only",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the page of what earlier runs left in DIR, computing nothing, and exit.",
)
@click.option("--list-models", is_flag=True, help="Print the names of torchvision's and plug-ins' models and exit.")
@click.option("--list-layers", is_flag=True, help="Print --model's layers and exit: name, type, shape, stride.")
@click.option("--doctor", is_flag=True, help="Check the installation, with a small run on --device, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of each image, one JSON object a line.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no warnings.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also say what was used, what each image shows, and where probability was lost.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name=DISTRIBUTION, prog_name="eb-saliency", message="%(prog)s %(version)s")
def main(
    *,
    images: tuple[Path, ...],
    from_file: IO[bytes] | None,
    null: bool,
    shard: tuple[int, int] | None,
    report_only: Path | None,
    list_models: bool,
    list_layers: bool,
    doctor: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Draw where a network sees a class in each of IMAGES: files, directories and all below them, tar files, URLs.

    One picture per image and class is written, and its path printed.
    """
    with plain_errors(debug), plain_warnings(quiet):
        given = click.get_current_context().get_parameter_source
        if options["targets"] and given("targets") == given("top_k") == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--top-k chooses the classes where no --target names them: leave out one of the two")
        for name in ("ray_address", "num_workers", "gpus_per_worker"):
            if options["engine"] != "ray" and given(name) == click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} is for --engine ray: pass that as well")
        if list_models:
            _list_models(quiet)
        elif list_layers:
            from ebcli.run.engine import layer_table

            heading, *rows = _aligned(layer_table(options["model"], options["weights"], options["crop"]))
            if not quiet:
                say(heading)
            click.echo("\n".join(rows))
        elif doctor:
            from ebcli.cli.doctor import examine

            report_findings(examine(options["device"], options["output"]), as_json)
        elif report_only is not None:
            if images or from_file is not None:
                raise click.UsageError("--report-only works on the results of earlier runs: leave out the images")
            from ebcli.run.engine import report_only as write_page

            click.echo(os.fsencode(write_page(RunPlan(**{**options, "images": (report_only,), "output": report_only}))))
        else:
            if from_file is not None:
                images += _listed(from_file, null)
            elif null:
                raise click.UsageError("-0 says how the list of --from-file is separated, but there is none")
            shard = shard or _rank(os.environ, quiet)
            plan = RunPlan(images=images, shard=shard, explain_losses=verbose, **options)
            from ebcli.run.engine import run

            report(run(plan), plan, as_json, quiet, verbose)


def _list_models(quiet: bool) -> None:
    from ebcli.models import model_names

    click.echo("\n".join(model_names()))
    if not quiet:
        say("Besides: timm/NAME, hf/NAME, FILE.py:FACTORY and MODULE:FACTORY, see --model in --help")


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
        say(f"Shard {int(rank) + 1}/{size}, as RANK={rank} and WORLD_SIZE={size} say")
    return int(rank) + 1, int(size)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
