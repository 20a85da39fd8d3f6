"""Options from TOML files, such as the one that repeats a run."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ebcli.cli.click_types import ParsedText, SectionOption
from ebcli.cli.option_hints import HINTS
from ebcli.errors import ConfigurationError, closest
from ebcli.files.paths import safe_open


def use_file(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """The callback of ``--config``: make what a file says the defaults of all other options."""
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = default_map(path, ctx.command.params)


def default_map(path: Path, parameters: Iterable[click.Parameter]) -> dict[str, Any]:
    """What a file sets, by the names of parameters, as Click's default map needs it.

    Raises:
        click.UsageError: the file cannot be read, or a setting is wrong.
    """
    options: dict[str, SectionOption] = {}
    for option in parameters:
        if isinstance(option, SectionOption) and option.is_setting:
            options |= dict.fromkeys(option.long_names, option)
    try:
        return dict(_defaults(read_settings(path), options))
    except ConfigurationError as error:
        raise click.UsageError(f"'{path}': {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, by their names there.

    Raises:
        click.UsageError: it cannot be read.
    """
    try:
        with safe_open(path) as file:
            return tomllib.loads(file.read().decode())
    except OSError as error:
        raise click.UsageError(f"cannot read '{path}': {error.strerror}") from error
    except RecursionError as error:
        raise click.UsageError(f"'{path}' is not valid TOML: it is nested too deeply") from error
    except ValueError as error:  # also invalid UTF-8
        raise click.UsageError(f"'{path}' is not valid TOML: {error}") from error


def _defaults(table: Mapping[str, Any], options: Mapping[str, SectionOption]) -> Iterator[tuple[str, Any]]:
    """The settings of a table, by the names of parameters. Raises ConfigurationError if one is wrong."""
    for key, value in table.items():
        name = key.replace("_", "-")
        if key == "images" and isinstance(value, list):
            yield key, _texts(key, value)
        elif name in options:
            yield str(options[name].name), _default(options[name], name, value)
        elif value is not False or f"--{name}" not in HINTS:  # a former flag that is off, of an earlier run
            hint = HINTS.get(f"--{name}") or closest(name, options)
            raise ConfigurationError(f"no such setting {key!r}: {hint}".rstrip(": "))


def _default(option: SectionOption, name: str, value: Any) -> Any:
    """A value of a file as Click's default map needs it."""
    if option.is_flag != isinstance(value, bool):
        raise ConfigurationError(f"{name} must be {'true or false' if option.is_flag else 'a value'}")
    if option.is_flag:
        is_negated = f"--{name}" in option.secondary_opts
        return value != is_negated
    if option.multiple:
        return _texts(name, value if isinstance(value, list) else [value])
    if isinstance(value, list) and isinstance(option.type, ParsedText):
        return ",".join(_texts(name, value))
    return _text(name, value)


def _texts(name: str, values: list[Any]) -> list[str]:
    return [_text(name, value) for value in values]


def _text(name: str, value: Any) -> str:
    """A string or number as it would be given on the command line."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigurationError(f"{name} must be one value, a string or a number")
    if isinstance(value, int) and value.bit_length() > 63:
        raise ConfigurationError(f"{name} is a number of more than 64 bits")
    if "\0" in str(value):
        raise ConfigurationError(f"{name} contains a NUL character")
    return str(value)
