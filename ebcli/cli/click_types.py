"""Click parameters of our own: options in sections, types, and what the shell completes. Imports no torch."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click import Context, HelpFormatter, Parameter
from click.shell_completion import CompletionItem

from ebcli.cli.console import MISUSED, note_environment, plain_errors, plain_warnings, say_error
from ebcli.cli.option_hints import HINTS
from ebcli.datatypes.explanation import Box
from ebcli.errors import ConfigurationError, closest
from ebcli.files.paths import path_of, url_of
from ebcli.methods.table import find_method, method_names
from ebcli.run.plan_parts import CANDIDATES as CANDIDATE_CHOICES
from ebcli.run.plan_parts import NO_THRESHOLD, OutputOptions

DIRECTORY = click.Path(file_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
PATH.name = "file"  # in the help
_IS_SHORT = "ebcli.cli.click_types.is_short"  # in a context's meta: whether the help is that of -h
_SETTINGS = "Settings without an option"
_INFORMATION = "Information"
_COMMANDS = "Commands"
_ORDER = {_SETTINGS: 1, _INFORMATION: 2, _COMMANDS: 3}  # of sections, after all others

_HelpRecord = tuple[str, str]
_Parameter = Parameter | None
_Context = Context | None


class SectionOption(click.Option):
    """An option that ``--help`` lists in a section; ``-h`` lists only common ones.

    The help shows a number as N, and a default without parentheses and without its range.
    """

    def __init__(self, *args: Any, section: str, common: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.common = common

    @property
    def is_setting(self) -> bool:
        """Whether files can set it. Eager options are the files, and those about information are not of a run."""
        return self.section != _INFORMATION and not self.is_eager

    @property
    def long_names(self) -> list[str]:
        """Its names in files, and so without dashes in front."""
        return [name[2:] for name in (*self.opts, *self.secondary_opts) if name.startswith("--")]

    def make_metavar(self, ctx: Context) -> str:
        is_number = isinstance(self.type, (type(click.INT), type(click.FLOAT)))
        return "N" if self.metavar is None and is_number else super().make_metavar(ctx)

    def get_help_extra(self, ctx: Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # an error names it
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


class Setting(SectionOption):
    """A setting of files and the environment that is not an option of the command line."""

    def add_to_parser(self, parser: Any, ctx: Context) -> None:
        """Keep it off the command line."""

    def hint(self, ctx: Context) -> str:
        """Where to set it."""
        names = [parameter.name for parameter in ctx.command.params]
        hint = f"set {self._variable(ctx)}"
        return f"{hint}, or {self.long_names[0]} in a file for --config" if "config" in names else hint

    def get_help_record(self, ctx: Context) -> _HelpRecord | None:
        if ctx.auto_envvar_prefix is None:
            return None
        words = str(self.help)
        default = self.get_help_extra(ctx).get("default")
        if default:
            words += f"  [default: {default}]"
        return self._variable(ctx), words

    def _variable(self, ctx: Context) -> str:
        return f"{ctx.auto_envvar_prefix}_{str(self.name).upper()}"


@contextmanager
def _in_one_line(command: str) -> Iterator[None]:
    """Turn Click's usage errors, which take four lines, into one that says what to do."""
    try:
        yield
    except click.NoSuchOption as error:
        hint = _instead(error) or f"{command} --help lists all options"
        say_error(f"no such option {error.option_name}: {hint}")
    except click.UsageError as error:
        say_error(error.format_message())
    except OSError as error:  # of a path that an option names
        say_error(str(error))
    else:
        return
    raise click.exceptions.Exit(MISUSED)


def _instead(error: click.NoSuchOption) -> str:
    """What to write in place of an option that there is not."""
    name = error.option_name
    context = error.ctx
    if context is not None and context.auto_envvar_prefix is not None:
        for parameter in context.command.params:
            if isinstance(parameter, Setting) and name in parameter.opts:
                return parameter.hint(context)
    return HINTS.get(name) or closest(name, error.possibilities or ())


class SectionedCommand(click.Command):
    """A command whose ``--help`` lists options in sections; options without one are about information.

    If there are examples, the help starts with them, and ``-h`` lists only common options.

    Attributes:
        commands_beside: other commands, which the help lists.
        examples: command lines, and what they do.
    """

    commands_beside: Mapping[str, click.Command] = {}
    examples: Mapping[str, str] = {}

    def get_help_option(self, ctx: Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None and self.examples:
            option.help = "Show the most common options (-h) or all options (--help), and exit."
        return option

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Try"):
                formatter.write_dl([*self.examples.items()])
            formatter.write_paragraph()
        super().format_help(ctx, formatter)

    def make_context(self, info_name: str | None, *args: Any, **extra: Any) -> click.Context:
        with _in_one_line(info_name or ""):
            return super().make_context(info_name, *args, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        ctx.meta[_IS_SHORT] = bool(self.examples) and "--help" not in args
        ctx.allow_extra_args = True  # Click's error would say nothing of what to do
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            hint = f"{ctx.command_path} --help says what it takes"
            if "model" in ctx.params:
                hint = f"use --model {extra[0]}"
            raise click.UsageError(f"unexpected argument '{extra[0]}': {hint}")
        return extra

    def invoke(self, ctx: Context) -> None:
        """Run the command; its function returns the exit status."""
        arguments = ctx.params
        quiet = arguments["quiet"]
        with _in_one_line(ctx.info_name or ""), plain_errors(arguments["debug"]), plain_warnings(quiet):
            if arguments["verbose"]:
                note_environment()
            status = super().invoke(ctx)
        ctx.exit(status)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        lines = self._help_lines(ctx)
        sections: dict[str, list[_HelpRecord]] = {}
        if ctx.meta[_IS_SHORT]:
            sections["Common options"] = [
                (names, first_sentence(option.help or ""))
                for option, (names, _) in lines
                if getattr(option, "common", False)
            ]
        else:
            for option, record in lines:
                section = getattr(option, "section", _INFORMATION)
                if isinstance(option, Setting):
                    section = _SETTINGS
                sections.setdefault(section, []).append(record)
        for name, command in self.commands_beside.items():
            sections.setdefault(_COMMANDS, []).append((name, command.get_short_help_str(100)))
        for section in sorted(sections, key=lambda name: _ORDER.get(name, 0)):
            with formatter.section(section):
                formatter.write_dl(sections[section])

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        if ctx.meta[_IS_SHORT]:
            count = sum(not isinstance(option, Setting) for option, _ in self._help_lines(ctx))
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"{ctx.command_path} --help lists all {count} options.")
        else:
            super().format_epilog(ctx, formatter)

    def _help_lines(self, ctx: Context) -> list[tuple[click.Option, _HelpRecord]]:
        """The options, each with its line of the help."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        records = ((option, option.get_help_record(ctx)) for option in options)
        return [(option, record) for option, record in records if record is not None]


def first_sentence(text: str) -> str:
    """The first sentence of a help text, which is all that ``-h`` has of it."""
    return text.partition(". ")[0].removesuffix(".") + "."


class MethodName(click.ParamType):
    """A method by its name, as `find_method` reads it.

    Args:
        extra_names: words that are accepted beside the methods.
    """

    name = "method"

    def __init__(self, extra_names: Sequence[str] = ()) -> None:
        self._extra_names = extra_names

    def convert(self, value: Any, param: _Parameter, ctx: _Context) -> str:
        if value in self._extra_names:
            return str(value)
        try:
            return find_method(value).name
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, _ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem]:
        words = [*method_names(), *self._extra_names]
        return [CompletionItem(word) for word in words if word.startswith(incomplete.lower())]


METHOD = MethodName()


class ClassName(click.ParamType):
    """A class index or name; names contain spaces, so the list in an environment variable is split at semicolons."""

    name = "class"
    envvar_list_splitter = ";"


CLASS = ClassName()


class Input(click.Path):
    """A local path or a URL."""

    def convert(self, value: Any, param: _Parameter, ctx: _Context) -> Any:
        return value if isinstance(value, Path) else path_of(str(super().convert(value, param, ctx)))


class Output(click.Path):
    """A local path to write to."""

    def convert(self, value: Any, param: _Parameter, ctx: _Context) -> Any:
        if url_of(Path(value)) is not None:
            self.fail(
                "it is a URL: name a local directory, and copy it there when the run is done", param, ctx
            )
        return super().convert(value, param, ctx)


OUTPUT = Output(path_type=Path)


class ParsedText(click.ParamType):
    """A text that a function reads.

    Args:
        read: the function, which raises ValueError for another text.
        wrong: what is wrong with another text.
        name: of the text, in the help.
    """

    def __init__(self, read: Callable[[str], Any], wrong: str, name: str = "text") -> None:
        self._read = read
        self._wrong = wrong
        self.name = name

    def convert(self, value: Any, param: _Parameter, ctx: _Context) -> Any:
        try:
            return self._read(str(value))
        except ValueError:
            self.fail(f"{value!r} {self._wrong}", param, ctx)


def _shard(text: str) -> tuple[int, int]:
    i, n = map(int, text.split("/"))
    return i, n


def _numbers(kind: type[float] | type[int]) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(map(kind, text.split(",")))


def _pixel(text: str) -> tuple[int, int]:
    x, y = text.split(",")
    if not (x.isdecimal() and y.isdecimal()):
        raise ValueError
    return int(x), int(y)


def _place(text: str) -> tuple[int, int] | Box | Path:
    """``12,34`` -> (12, 34), ``40,20,100,80`` -> a box, else the path of an existing file."""
    numbers = text.split(",")
    with suppress(ValueError, TypeError):  # the latter are too many or too few
        return _pixel(text) if len(numbers) == 2 else Box.from_xywh(*map(float, numbers))
    if not os.path.isfile(text):
        raise ValueError
    return Path(text)


def _candidates(text: str) -> str | Path:
    """``windows`` or ``photo``, else the path of an existing file."""
    if text.lower() in CANDIDATE_CHOICES:
        return text.lower()
    if not os.path.isfile(text):
        raise ValueError
    return Path(text)


SHARD = ParsedText(_shard, "is not a shard: 2/4, for example, is the second of four")
THRESHOLD = ParsedText(OutputOptions.of_threshold, NO_THRESHOLD)
RESIZE = ParsedText(int, "is not one number of pixels: 160 --fit squash makes squares of 160")
PIXEL = ParsedText(_pixel, "is not a pixel: 300,200, for example, is in column 300 and row 200, from 0")
CANDIDATES = ParsedText(_candidates, "is neither windows, photo nor the file of the names of classes")
PLACE = ParsedText(_place, "is neither a pixel X,Y, a box X,Y,W,H nor the file of a mask")
NUMBERS = ParsedText(_numbers(float), "is neither a number nor numbers separated by commas", "X[,X...]")
INTEGERS = ParsedText(_numbers(int), "is neither a whole number nor whole numbers separated by commas")


def complete_model(_context: Context, _option: Parameter, prefix: str) -> list[str]:
    from ebcli.models import model_names
    from ebcli.models.keywords import TASKS

    names = chain.from_iterable(map(model_names, TASKS))
    return [name for name in names if name.startswith(prefix)]


def complete_colormap(_context: Context, _option: Parameter, prefix: str) -> list[str]:
    """The names of matplotlib's colormaps; reversed ones only after an underscore."""
    from matplotlib import colormaps

    return [
        name for name in colormaps if name.startswith(prefix) and ("_" in prefix or not name.endswith("_r"))
    ]


def complete_weights(context: Context, option: Parameter, prefix: str) -> list[CompletionItem]:
    words = [CompletionItem(word) for word in ("DEFAULT", "none") if word.startswith(prefix)]
    return words or PATH.shell_complete(context, option, prefix)
