"""Click parameters of our own: options in sections, types, and what the shell completes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem


class SectionOption(click.Option):
    """An option that ``--help`` lists in a section."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose ``--help`` lists options in sections; options without one are listed last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        last: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                section = getattr(parameter, "section", None)
                (last if section is None else sections.setdefault(section, [])).append(record)
        sections.setdefault("Information", []).extend(last)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class ClassName(click.ParamType):
    """A class index or name; names contain spaces, so the list in an environment variable is split at semicolons."""

    name = "class"
    envvar_list_splitter = ";"


class Shard(click.ParamType):
    """``2/4`` -> (2, 4)."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        i, slash, n = str(value).partition("/")
        if not (slash and i.isdecimal() and n.isdecimal()):
            self.fail(f"{value!r} is not a shard: 2/4, for example, is the second of four", param, ctx)
        return int(i), int(n)


class Channels(click.ParamType):
    """``0.5`` -> (0.5,), ``0.485,0.456,0.406`` -> (0.485, 0.456, 0.406)."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return tuple(map(float, str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} is neither a number nor three numbers separated by commas", param, ctx)


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def complete_model(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    from ebcli.models import model_names

    return _starting(incomplete, model_names())


def complete_colormap(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """The names of matplotlib's colormaps; reversed ones only after an underscore."""
    from matplotlib import colormaps

    return _starting(incomplete, (name for name in colormaps if "_" in incomplete or not name.endswith("_r")))


def complete_weights(
    _context: click.Context, _option: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    return _starting(incomplete, ("DEFAULT", "none")) or [CompletionItem(incomplete, type="file")]
