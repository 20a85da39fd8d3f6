"""A run within another command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from ebcli.cli.console import SOME_FAILED


def repeat(arguments: Sequence[str]) -> None:
    """The run with these options; what it prints to stdout goes nowhere."""
    whole = click.get_current_context().find_root().command
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            whole.main([*arguments], "eb-saliency", standalone_mode=False)
        except SystemExit as ended:
            if ended.code not in (0, SOME_FAILED):
                raise
