"""The command ``eb-saliency``: options -> RunPlan -> run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from ebcli.cli.console import plain_errors, plain_warnings, print_findings, print_results, say, shown
from ebcli.cli.options import saliency_options
from ebcli.cli.parameters import SectionedCommand
from ebcli.drawing.style import DrawingStyle
from ebcli.files.remote import RemoteOptions
from ebcli.imports import DISTRIBUTION
from ebcli.models.preprocessing import Preprocessing
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import ExecutionOptions, InputOptions, MapOptions, OutputOptions, RunPlan

T = TypeVar("T")

EPILOG = """
Without --model, the bundled EfficientNet-Lite0 and its ImageNet weights are used; nothing is downloaded.

Every option can be set in the environment: EB_SALIENCY_TOP_K for --top-k, EB_SALIENCY_CONTRASTIVE=0 for --marginal,
EB_SALIENCY_TARGET="tabby;tiger cat" for several targets.

Each image's record is also appended to records.jsonl in the output directory, one JSON object per line.

Exit status: 0 if all images are done, 1 if some failed, 2 on any other error, 130 if interrupted (143 by SIGTERM).
"""


@click.command(
    cls=SectionedCommand,
    context_settings={
        "auto_envvar_prefix": "EB_SALIENCY",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 110,
    },
    epilog=EPILOG,
)
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@saliency_options
@click.version_option(package_name=DISTRIBUTION, prog_name="eb-saliency", message="%(prog)s %(version)s")
def main(
    *,
    images: tuple[Path, ...],
    from_file: IO[bytes] | None,
    null: bool,
    report_only: Path | None,
    verify: Path | None,
    list_models: bool,
    list_layers: bool,
    doctor: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Highlight the image regions that support a classifier's prediction.

    IMAGES are files, directories (searched recursively), tar files and URLs. Writes one picture per image and class
    and prints its path.
    """
    with plain_errors(debug), plain_warnings(quiet):
        given = click.get_current_context().get_parameter_source
        if options["targets"] and given("targets") == given("top_k") == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--top-k and --target both choose the classes: drop one of them")
        if options["engine"] != "ray" and given("gpus_per_worker") == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--gpus-per-worker needs --engine ray")
        if list_models:
            _list_models(quiet)
        elif list_layers:
            _list_layers(options, quiet)
        elif doctor:
            from ebcli.cli.doctor import examine

            print_findings(examine(options["device"], options["output"]), as_json)
        elif verify is not None:
            sys.exit(_verify(verify, quiet))
        elif report_only is not None:
            if from_file is not None:
                images += _listed(from_file, null)
            from ebcli.gallery.page import write_gallery
            from ebcli.run.workers import processors

            workers = processors() if options["workers"] is None else options["workers"]
            style = _part(DrawingStyle, options, name=options["style"])
            click.echo(os.fsencode(write_gallery(report_only, style, workers, options["overwrite"], images)))
        else:
            if from_file is not None:
                images += _listed(from_file, null)
            elif null:
                raise click.UsageError("-0 needs --from-file")
            shard = options.pop("shard") or _rank(os.environ, quiet)
            plan = _plan(options, images=images, shard=shard, track_lost_mass=verbose)
            sys.exit(_run(plan, as_json, quiet, verbose))


def _verify(directory: Path, quiet: bool) -> int:
    """Print the results of a directory that are missing or altered; returns the exit status."""
    from ebcli.files.verification import verify

    found = verify(directory)
    for path, problem in found.problems.items():
        click.echo(os.fsencode(directory / path) + f": {problem}".encode())
    if not quiet:
        say(f"{found.results} results: {found.results - len(found.problems)} intact, {len(found.problems)} not")
    return 1 if found.problems else 0


def _run(plan: RunPlan, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Run a plan and write its gallery page; returns the exit status."""
    from ebcli.run.engine import run

    output = plan.output
    has_page = output.report and not plan.execution.dry_run
    if has_page:
        from ebcli.gallery.page import check_gallery, write_gallery

        check_gallery(output.directory, output.overwrite)
    work = run(plan)
    status = print_results(work, plan, as_json, quiet, verbose)
    if has_page and (work.total or work.skipped):
        from ebcli.run.workers import processors

        workers = processors() if plan.execution.workers is None else plan.execution.workers
        style = replace(plan.style, vmax=work.vmax)
        page = write_gallery(output.directory, style, workers, output.overwrite, plan.inputs.images)
        if not quiet:
            say(f"Gallery page: {shown(page)}")
    return status


def _plan(options: Mapping[str, Any], **others: Any) -> RunPlan:
    options = {**options, **others}
    preprocessing = _part(Preprocessing, options)
    return RunPlan(
        _part(InputOptions, options, remote=_part(RemoteOptions, options)),
        _part(ModelSpec, options, name=options["model"], preprocessing=preprocessing),
        _part(MapOptions, options),
        _part(DrawingStyle, options, name=options["style"]),
        _part(OutputOptions, options, directory=options["output"]),
        _part(ExecutionOptions, options),
    )


def _part(kind: type[T], options: Mapping[str, Any], **renamed: Any) -> T:
    """A part of the plan, from the options that are named like its fields and from those named otherwise."""
    same = {field.name: options[field.name] for field in fields(kind) if field.name in options}  # type: ignore[arg-type]
    return kind(**{**same, **renamed})


def _list_models(quiet: bool) -> None:
    from ebcli.models import model_names

    click.echo("\n".join(model_names()))
    if not quiet:
        say("Also accepted: timm/NAME, hf/NAME, FILE.py:FACTORY and MODULE:FACTORY, see --model in --help")


def _list_layers(options: Mapping[str, Any], quiet: bool) -> None:
    from ebcli.models import layers, load_model
    from ebcli.models.keywords import UNTRAINED

    # layers do not depend on the weights, so none are downloaded
    weights = UNTRAINED if options["weights"] == ModelSpec.weights else options["weights"]
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE")]
    loaded = load_model(options["model"], weights, "cpu", preprocessing=_part(Preprocessing, options))
    for layer in layers(loaded):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        rows.append((layer.name, layer.type, "x".join(map(str, layer.shape)), stride))
    heading, *lines = _aligned(rows)
    if not quiet:
        say(heading)
    click.echo("\n".join(lines))


def _listed(file: IO[bytes], null: bool) -> tuple[Path, ...]:
    """The paths in a list; they are bytes, as not every file name is text."""
    names = file.read().split(b"\0" if null else b"\n")
    if any(b"\0" in name for name in names):
        raise click.UsageError(f"the list {click.format_filename(file.name)} contains NUL characters: add -0")
    return tuple(Path(os.fsdecode(name)) for name in names if name)


def _rank(environment: Mapping[str, str], quiet: bool) -> tuple[int, int] | None:
    """The shard of one process among many, as torchrun and others number them from 0."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    if not quiet:
        say(f"Processing shard {int(rank) + 1}/{size}, from RANK={rank} and WORLD_SIZE={size}")
    return int(rank) + 1, int(size)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
