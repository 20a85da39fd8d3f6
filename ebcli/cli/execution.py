"""A plan carried out: its results printed, and the files that sum them up."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ebcli.cli.console import note, put, shown, sign_of_life
from ebcli.cli.results import print_results
from ebcli.errors import ConfigurationError
from ebcli.files.naming import COCO, FIFTYONE_FILES, STDOUT
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import HEATMAPS, OutputOptions

if TYPE_CHECKING:
    from ebcli.drawing.style import DrawingStyle
    from ebcli.files.sink import Sink


def sink_of(plan: RunPlan, out: IO[str]) -> Sink | None:
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


def execute(plan: RunPlan, options: Mapping[str, Any], out: IO[str], sink: Sink | None = None) -> int:
    """Run a plan, print to ``out`` as the options of the command say, and return the exit status."""
    output = plan.output
    has_page, table = output.report and not plan.execution.dry_run, output.records
    if has_page:
        from ebcli.gallery.page import check_page

        check_page(output.directory, output.overwrite)
    if plan.execution.dry_run:
        table = None
    if table is not None:
        from ebcli.files.table import check_table, write_table

        check_table(table, output.overwrite)
    with sign_of_life(f"Loading {plan.model.name} ...", options["quiet"]):
        from ebcli.run import engine

        work = engine.run(plan, sink)
    status, to_open = print_results(work, plan, options, out)
    if not (work.total or work.skipped):
        return status
    if output.annotations and not plan.execution.dry_run:
        _write_annotations(output, work.common.configuration)
    if table is not None:
        write_table(table, output.directory, work.common.configuration)
        note(f"Table: {shown(table)}")
    if has_page:
        workers, images = plan.execution.workers, plan.inputs.images
        page = gallery_page(output.directory, work.style, workers, output.overwrite, images)
        note(f"Gallery page: {shown(page)}")
        to_open = str(page)
    if options.get("show") and to_open:
        click.launch(to_open)
    is_watched = out.isatty() and sys.stderr.isatty()
    if is_watched and status == 0 and not (options["as_json"] or plan.execution.dry_run):
        from ebcli.cli.next_step import next_step

        if hint := next_step(work, plan):
            note(hint)
    return status


def gallery_page(
    directory: Path, style: DrawingStyle, workers: int | None, overwrite: bool, images: Sequence[Path]
) -> Path:
    """Write the gallery page of a directory of results; for the arguments, see ``write_gallery``."""
    from ebcli.gallery.page import write_gallery
    from ebcli.workers import processors

    return write_gallery(directory, style, processors() if workers is None else workers, overwrite, images)


def _write_annotations(output: OutputOptions, configuration: str) -> None:
    from ebcli.files.coco import coco_files
    from ebcli.files.directory import OutputFolder
    from ebcli.gallery.fiftyone import fiftyone_files

    is_dataset = output.annotations == HEATMAPS
    files = fiftyone_files if is_dataset else coco_files
    with OutputFolder(output.directory, overwrite=True) as folder:
        folder.record()  # there may be no records yet
        folder.add(files(output.directory, configuration))
    path = FIFTYONE_FILES[0].parent if is_dataset else COCO
    note(f"Annotations: {shown(output.directory / path)}")
