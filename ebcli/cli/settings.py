"""Options from TOML files and presets, and the file that repeats a run."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ebcli.cli.click_types import ParsedText, SectionOption
from ebcli.cli.option_hints import HINTS
from ebcli.errors import closest

PRESETS: dict[str, dict[str, Any]] = {
    "figure": {"panel": True, "top-k": 3, "dpi": 300, "cell-size": 460},
    "dataset": {"format": "jpg", "raw": True, "report": True, "skip-existing": True},
    "paper": {"style": "paper", "panel": True, "compare-with": "marginal"},
}


def use_file(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """The callback of ``--config``: make what a file says the defaults of all other options; a preset goes over it."""
    if path is None or ctx.resilient_parsing:
        return
    source = f"'{path}'"
    table = read_settings(path)
    preset_values: dict[str, Any] = {}
    if "preset" in table:
        preset = _text(table.pop("preset"), "preset", source)
        if preset not in PRESETS:
            raise click.UsageError(f"{source}: unknown preset {preset!r}: choose {', '.join(PRESETS)}")
        preset_values = _defaults(ctx, PRESETS[preset], source)
    ctx.default_map = {**preset_values, **_defaults(ctx, table, source), **(ctx.default_map or {})}


def use_preset(ctx: click.Context, _option: click.Parameter, name: str | None) -> None:
    """The callback of ``--preset``: make what it stands for the defaults of all other options."""
    if name is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_defaults(ctx, PRESETS[name], name)}


def _defaults(ctx: click.Context, table: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What a table sets for the command, as Click's default map needs it."""
    options = (parameter for parameter in ctx.command.params if isinstance(parameter, SectionOption))
    return dict(parameters(options, table, source))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, by their names there.

    Raises:
        click.UsageError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise click.UsageError(f"cannot read '{path}': {error.strerror}") from error
    except RecursionError as error:
        raise click.UsageError(f"'{path}' is not valid TOML: it is nested too deeply") from error
    except ValueError as error:  # also invalid UTF-8
        raise click.UsageError(f"'{path}' is not valid TOML: {error}") from error


def parameters(options: Iterable[SectionOption], table: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """The names of the parameters that a table sets, with their values as Click's default map needs them."""
    settable = {
        name.lstrip("-"): option
        for option in options
        if option.section != "Information"
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--") and option.name != "config"
    }
    for key, value in table.items():
        if key == "images" and isinstance(value, list):
            yield key, [_text(image, key, source) for image in value]
            continue
        name = key.replace("_", "-")
        option = settable.get(name)
        if value is False and f"--{name}" in HINTS:  # a former flag that is off, of an earlier run
            continue
        if option is None:
            hint = HINTS.get(f"--{name}") or closest(name, settable)
            raise click.UsageError(f"{source}: no such setting {key!r}: {hint}".rstrip(": "))
        yield str(option.name), _default(option, name, value, source)


def _default(option: SectionOption, name: str, value: Any, source: str) -> Any:
    """A value of a file as Click's default map needs it."""
    if option.is_flag != isinstance(value, bool):
        raise click.UsageError(f"{source}: {name} must be {'true or false' if option.is_flag else 'a value'}")
    if option.is_flag:
        return not value if f"--{name}" in option.secondary_opts else value
    if option.multiple:
        return [_text(item, name, source) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and isinstance(option.type, ParsedText):
        return ",".join(_text(item, name, source) for item in value)
    return _text(value, name, source)


def _text(value: Any, name: str, source: str) -> str:
    """A string or number as it would be given on the command line."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise click.UsageError(f"{source}: {name} must be one value, a string or a number")
    if isinstance(value, int) and value.bit_length() > 63:
        raise click.UsageError(f"{source}: {name} is a number of more than 64 bits")
    text = str(value)
    if "\0" in text:
        raise click.UsageError(f"{source}: {name} contains a NUL character")
    return text
