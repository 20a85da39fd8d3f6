"""The command ``eb-saliency``: options -> RunPlan -> run, and the other commands beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import ebcli.cli.serve  # noqa: F401 - adds its command
from ebcli.cli.benchmark import benchmark
from ebcli.cli.commands import COMMANDS, gallery_page
from ebcli.cli.console import note, plain_errors, plain_warnings, shown, sign_of_life
from ebcli.cli.model_options import model_spec, with_options
from ebcli.cli.options import CONTEXT, SALIENCY
from ebcli.cli.parameters import Input, SectionedCommand, part
from ebcli.cli.results import print_results
from ebcli.cli.settings import FROM_PROJECT, PROJECT_FILE, settings_file
from ebcli.cli.single_output import one_picture, spooled_stdin
from ebcli.drawing.style import UNSIGNED_STYLES, DrawingStyle
from ebcli.errors import closest
from ebcli.files.frame_ranges import ClipOptions
from ebcli.files.naming import COCO, STDIN
from ebcli.files.remote import RemoteOptions, path_of, without_secrets
from ebcli.imports import DISTRIBUTION
from ebcli.models.sources import takes_texts
from ebcli.models.spec import as_classes
from ebcli.run.plan import ExecutionOptions, InputOptions, MapOptions, OutputOptions, RunPlan

if TYPE_CHECKING:
    from ebcli.files.sink import Sink

_LONGEST_LIST = 1 << 28  # bytes; millions of paths
# The options that choose the classes
_CHOOSING = {"targets": "--target", "like": "--like", "top_k": "--top-k", "above": "--above", "labels": "--labels"}

EPILOG = """
Without --model, the bundled EfficientNet-Lite0 and its ImageNet weights are used; nothing is downloaded.

Options can be set in files, by --config or in the table [tool.eb-saliency] of pyproject.toml, and in the environment:
EB_SALIENCY_TOP_K for --top-k, EB_SALIENCY_CONTRASTIVE=0 for --marginal, EB_SALIENCY_TARGET="tabby;tiger cat" for
several targets. The command line takes precedence over the environment, which takes precedence over files.

Each image's record is also appended to records.jsonl in the output directory, one JSON object per line. The settings of
the run are written to settings.toml there; --config with that file repeats it.

Exit status: 0 if all images succeeded, 1 if some failed, 2 on any other error, 75 if a Ray cluster was lost, 130 if
interrupted (143 by SIGTERM, 129 by SIGHUP), 141 if stdout was closed, as by head.
"""


class Main(click.Group):
    """A group that runs without the name of a command: ``eb-saliency photo.jpg``."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        if not args or args[0] not in self.commands:
            return run.make_context(info_name, args, *more, **extra)
        return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def complete_first(ctx: click.Context, _images: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of commands, where one can be, and files."""
    typed = any(ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE for name in ctx.params)
    names = [CompletionItem(name) for name in main.commands if incomplete and name.startswith(incomplete) and not typed]
    return [CompletionItem(incomplete, type="file"), *names]  # bash forgets what comes before files


@click.command(cls=SectionedCommand, context_settings=CONTEXT | {"help_option_names": ["--help"]}, epilog=EPILOG)
@click.argument("images", nargs=-1, type=Input(readable=False), shell_complete=complete_first)  # unreadable ones fail
@with_options(SALIENCY)
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION, message="eb-saliency %(version)s")
def run(
    *, images: tuple[Path, ...], from_file: IO[bytes] | None, null: bool, quiet: bool, debug: bool, **options: Any
) -> None:
    """Highlight the image regions that support a network's prediction.

    IMAGES are files, directories (searched recursively), tar files and URLs; - is an image on stdin. Writes one picture
    per image and class, or per detected object, and prints its path.
    """
    with plain_errors(debug), plain_warnings(quiet):
        options["quiet"] = quiet
        context = click.get_current_context()
        if not images and from_file is None:
            images = tuple(map(path_of, (context.default_map or {}).get("images", ())))
        if project := context.meta.get(FROM_PROJECT):
            note(f"Settings from {PROJECT_FILE}: {', '.join(map(shown, project))}")
        word = str(images[0]) if images else ""
        if len(word) > 2 and not os.path.lexists(word) and (near := closest(word, run.others)):
            note(f"'{shown(word)}' is neither a file nor a command: {near}")
        _check_combinations(options, null and from_file is None)
        if from_file is not None:
            if STDIN in images and getattr(from_file, "name", "<stdin>") == "<stdin>":
                raise click.UsageError("stdin is either an image or a list: drop - or --from-file -")
            images += _listed(from_file, null)
        sys.exit(_start(options, images))


def _check_combinations(options: dict[str, Any], null_without_list: bool) -> None:
    """Refuse options that exclude each other, and settle those of which the environment set one."""
    given = click.get_current_context().get_parameter_source
    command_line = click.core.ParameterSource.COMMANDLINE
    choosing = [name for name in _CHOOSING if options[name] not in ((), None)]
    for source in (command_line, click.core.ParameterSource.ENVIRONMENT, click.core.ParameterSource.DEFAULT_MAP):
        first = [name for name in choosing if given(name) == source]
        if len(first) > 1:
            one, other = (_CHOOSING[name] for name in first[:2])
            raise click.UsageError(f"{one} and {other} both choose the classes: drop one of them")
        if first:
            for other in _CHOOSING.keys() - first:
                options[other] = () if isinstance(options[other], tuple) else None
            break
    if options["engine"] != "ray" and given("gpus_per_worker") == command_line:
        raise click.UsageError("--gpus-per-worker needs --engine ray")
    if options["print0"] and options["as_json"]:
        raise click.UsageError("--print0 separates paths, but --json prints records: drop one of them")
    if null_without_list:
        raise click.UsageError("-0 needs --from-file")


def _start(options: dict[str, Any], images: tuple[Path, ...]) -> int:
    """Turn the options into a plan and run it; returns the exit status."""
    given = click.get_current_context().get_parameter_source
    is_given = {name: given(name) != click.core.ParameterSource.DEFAULT for name in ("output", "format")}
    shard = options["shard"] or _rank(os.environ)
    # stdout is for results: networks print, and so does Ray
    out = sys.stdout
    sink = one_picture(options, images, is_given, out)
    with ExitStack() as stack:
        if sink is not None:
            sink.check()
            options["format"] = sink.format
        stdin = stack.enter_context(spooled_stdin(images, options["max_bytes"]))
        settings = None
        if sink is None:
            public = [without_secrets(image)[0] for image in images]
            settings = settings_file(click.get_current_context().command, options, public)
        options |= {"shard": shard, "track_lost_mass": options["verbose"]}
        plan = _plan({**options, "images": images, "stdin": stdin, "settings": settings})
        stack.enter_context(redirect_stdout(sys.stderr))
        return _run(plan, options, sink, out)


def _run(plan: RunPlan, options: Mapping[str, Any], sink: Sink | None, out: IO[str]) -> int:
    """Run a plan and write its gallery page; returns the exit status."""
    output = plan.output
    has_page = output.report and not plan.execution.dry_run
    if has_page:
        from ebcli.gallery.page import check_page

        check_page(output.directory, output.overwrite)
    table = None if plan.execution.dry_run else options["records"]
    if table is not None:
        from ebcli.files.table import check_table, write_table

        check_table(table, output.overwrite)
    with sign_of_life(f"Loading {plan.model.name} ...", options["quiet"]):
        from ebcli.run import engine

        work = engine.run(plan, sink)
    status, to_open = print_results(work, plan, options, out)
    has_regions = (output.boxes or output.masks) and not plan.execution.dry_run
    if has_regions and (work.total or work.skipped):
        _write_annotations(output.directory, work.common.configuration)
    if table is not None and (work.total or work.skipped):
        write_table(table, output.directory, work.common.configuration)
        note(f"Table: {shown(table)}")
    if has_page and (work.total or work.skipped):
        workers, images = plan.execution.workers, plan.inputs.images
        page = gallery_page(output.directory, work.style, workers, output.overwrite, images)
        note(f"Gallery page: {shown(page)}")
        to_open = str(page)
    if options["show"] and to_open:
        click.launch(to_open)
    return status


def _write_annotations(directory: Path, configuration: str) -> None:
    from ebcli.files.coco import coco_file
    from ebcli.files.directory import OutputFolder

    with OutputFolder(directory, overwrite=True) as folder:
        folder.record()  # there may be no records yet
        folder.add({COCO: coco_file(directory, configuration)})
    note(f"Annotations: {shown(directory / COCO)}")


def _plan(options: Mapping[str, Any]) -> RunPlan:
    options = _with_described_classes(options)
    return RunPlan(
        part(InputOptions, options, remote=part(RemoteOptions, options), clips=part(ClipOptions, options)),
        model_spec(options),
        part(MapOptions, options),
        part(DrawingStyle, options, name=options["style"], signed=_is_signed(options)),
        part(OutputOptions, options, directory=options["output"]),
        part(ExecutionOptions, options),
    )


def _is_signed(options: Mapping[str, Any]) -> bool:
    """Whether maps are drawn signed: those against a class by default, as both halves say what tells the two apart."""
    if options["signed"] is not None:
        return bool(options["signed"])
    return bool(options["against"]) and options["style"] not in UNSIGNED_STYLES and not options["vmin"]


def _with_described_classes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with classes that are texts or pictures as classes of the model, by their indices."""
    targets = options["like"] or options["targets"]
    are_texts = targets and options["class_names"] is None and takes_texts(options["model"])
    if not options["like"] and not are_texts:
        return dict(options)
    classes, chosen, contrasted = as_classes([*map(str, targets)], options["against"])
    model = {"like": tuple(map(Path, classes))} if options["like"] else {"class_names": classes}
    return {**options, **model, "targets": chosen, "against": contrasted}


def _listed(file: IO[bytes], null: bool) -> tuple[Path, ...]:
    """The paths in a list; they are bytes, as not every file name is text."""
    content = file.read(_LONGEST_LIST + 1)
    if len(content) > _LONGEST_LIST:
        raise click.UsageError(
            f"the list {click.format_filename(file.name)} is larger than 256 MiB: split it, or name directories"
        )
    names = content.split(b"\0" if null else b"\n")
    if any(b"\0" in name for name in names):
        raise click.UsageError(f"the list {click.format_filename(file.name)} contains NUL characters: add -0")
    return tuple(path_of(os.fsdecode(name)) for name in names if name)


def _rank(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The shard of one process among many, as torchrun and others number them from 0."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    note(f"Processing shard {int(rank) + 1}/{size}, from RANK={rank} and WORLD_SIZE={size}")
    return int(rank) + 1, int(size)


main = Main("eb-saliency", {**COMMANDS, "benchmark": benchmark}, help=run.help)
run.others = main.commands
