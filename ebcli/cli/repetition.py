"""A run within another command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from ebcli.cli.console import SOME_FAILED
from ebcli.cli.options import OPTIONS
from ebcli.cli.parameters import SectionOption


def kept(settings: Mapping[str, Any], keeps: Callable[[SectionOption], bool]) -> dict[str, Any]:
    """The settings of some options."""
    names = {part.lstrip("-") for option in OPTIONS.values() if keeps(option) for part in option.opts}
    return {name: value for name, value in settings.items() if name in names}


def repeat(arguments: Sequence[str]) -> None:
    """The run with these options; what it prints to stdout goes nowhere."""
    whole = click.get_current_context().find_root().command
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            whole.main([*arguments], "eb-saliency", standalone_mode=False)
        except SystemExit as ended:
            if ended.code not in (0, SOME_FAILED):
                raise
