"""A plan carried out: where its results go, its results printed, and the files that sum them up; or an earlier plan."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ebcli.cli.console import note, put, shown, sign_of_life
from ebcli.cli.options import OPTIONS
from ebcli.cli.results import next_step, print_results
from ebcli.cli.settings import parameters, read_settings
from ebcli.errors import ConfigurationError
from ebcli.files.naming import COCO, FIFTYONE_FILES, PAGE, SETTINGS, STDOUT
from ebcli.files.paths import path_of
from ebcli.run.plan import VALUES, RunPlan
from ebcli.run.plan_parts import HEATMAPS, OutputOptions

if TYPE_CHECKING:
    from ebcli.files.sink import Sink


def sink_of(plan: RunPlan, out: IO[str]) -> "Sink | None":
    """Where the only picture of a run goes, a file or ``out``; None if results go to a directory.

    Raises:
        ConfigurationError: the file is not this program's own, or stdout is a terminal.
        OutputError: the file cannot be written.
    """
    from ebcli.files.sink import OneFile, Stdout

    output = plan.output
    if output.directory == STDOUT:
        if out.isatty():
            raise ConfigurationError("stdout is a terminal: redirect it, as in > out.png, or name a file with -o")
        return Stdout(partial(put, out=out, nl=False), output.format)
    if not output.is_file:
        return None
    file = OneFile(output.directory, output.format, output.overwrite)
    file.check()
    return file


def execute(plan: RunPlan, options: Mapping[str, Any], out: IO[str], sink: "Sink | None" = None) -> int:
    """Run a plan, print to ``out`` as the options of the command say, and return the exit status."""
    output, is_dry = plan.output, plan.execution.dry_run
    if is_dry:
        output = replace(output, report=False, records=None, annotations=None)
    if output.report:
        from ebcli.files.directory import refuse_foreign_files
        from ebcli.gallery.page import write_gallery

        refuse_foreign_files(output.directory, [PAGE], output.overwrite)
    if output.records is not None:
        from ebcli.gallery.exports import check_table, write_table

        check_table(output.records, output.overwrite)
    with sign_of_life(f"Loading {plan.model.name} ...", options["quiet"]):
        from ebcli.run import engine

        work = engine.run(plan, sink)
    status, to_open = print_results(work, plan, options, out)
    if not (work.sources or work.skipped):
        return status
    if output.annotations:
        _write_annotations(output, work.common.configuration)
    if output.records is not None:
        write_table(output.records, output.directory, work.common.configuration)
        note(f"Table: {shown(output.records)}")
    if output.report:
        workers, images = plan.execution.workers, plan.inputs.images
        page = write_gallery(output.directory, work.options.style, workers, output.overwrite, images)
        note(f"Gallery page: {shown(page)}")
        to_open = str(page)
    if options.get("show") and to_open:
        click.launch(to_open)
    is_watched = out.isatty() and sys.stderr.isatty() and not (options["as_json"] or is_dry)
    if is_watched and status == 0 and (hint := next_step(work, plan)):
        note(hint)
    return status


def _write_annotations(output: OutputOptions, configuration: str) -> None:
    from ebcli.files.directory import OutputFolder
    from ebcli.gallery.exports import coco_files, fiftyone_files

    is_dataset = output.annotations == HEATMAPS
    files = fiftyone_files if is_dataset else coco_files
    with OutputFolder(output.directory, overwrite=True) as folder:
        folder.record()  # there may be no records yet
        folder.add(files(output.directory, configuration))
    path = FIFTYONE_FILES[0].parent if is_dataset else COCO
    note(f"Annotations: {shown(output.directory / path)}")


def plan_of(directory: Path) -> RunPlan:
    """The plan of an earlier run, of its settings.toml alone."""
    path = directory / SETTINGS
    found = dict(parameters(OPTIONS.values(), read_settings(path), f"'{path}'"))
    images = tuple(map(path_of, found.pop("images", ())))
    context = click.get_current_context()
    values = {name: OPTIONS[name].type_cast_value(context, value) for name, value in found.items() if name in VALUES}
    return RunPlan.of(images=images, **values)
