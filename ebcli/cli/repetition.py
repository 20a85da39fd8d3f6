"""The plan of an earlier run, and another one carried out within a command."""

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from ebcli.cli.console import SOME_FAILED
from ebcli.cli.execution import execute
from ebcli.cli.options import OPTIONS
from ebcli.cli.settings import parameters, read_settings
from ebcli.files.naming import SETTINGS
from ebcli.files.remote import path_of
from ebcli.run.plan import VALUES, RunPlan


def plan_of(directory: Path) -> RunPlan:
    """The plan of a run, of its settings.toml alone."""
    path = directory / SETTINGS
    found = dict(parameters(OPTIONS.values(), read_settings(path), f"'{path}'"))
    images = tuple(map(path_of, found.pop("images", ())))
    context = click.get_current_context()
    values = {name: OPTIONS[name].type_cast_value(context, value) for name, value in found.items() if name in VALUES}
    return RunPlan.of(images=images, **values)


def carry_out(plan: RunPlan, *, quiet: bool) -> None:
    """Run a plan whose results are not the command's own: what they are is not printed."""
    options = {"quiet": quiet, "verbose": False, "as_json": False, "null": False}
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        status = execute(plan, options, nowhere)
    if status not in (0, SOME_FAILED):
        sys.exit(status)
