"""Options from TOML files and presets, and the file that repeats a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ebcli.cli.parameters import NOTES, BoxOf, Channels, PixelOrMask, SectionOption, Shard, Threshold
from ebcli.errors import closest
from ebcli.imports import DISTRIBUTION, installed_version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESETS: dict[str, dict[str, Any]] = {
    "figure": {"panel": True, "top-k": 3, "dpi": 300, "cell-size": 460},
    "dataset": {"format": "jpg", "raw": True, "report": True, "skip-existing": True},
    "paper": {"style": "paper", "panel": True, "beside": "marginal"},
}
PROJECT_FILE = Path("pyproject.toml")
FROM_PROJECT = "ebcli.cli.settings.project"  # in a context's meta: what the project file sets

_STATE = "ebcli.cli.settings.given"
_TABLE = "eb-saliency"
_IMAGES = "images"
_PRINTED_ONLY = {"as_json", "print0"}
_INSTEAD = {"report_only", "compare", "verify"}
_LISTS = {"from_file", "null"}  # what they name is written as images
# Whoever cloned a repository did not choose what its pyproject.toml says, so it may neither name inputs, nor lift
# limits, nor replace files, nor start jobs elsewhere
_PROJECT_SECTIONS = {"Model", "Map", "Output", "Appearance", "Performance"}
_PROJECT_OTHERS = {"include", "exclude", "skip_existing", "fail_fast"}


def use_settings(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """The callback of ``--config`` and ``--preset``: make what they say the defaults of all other options.

    A preset on the command line goes over the file, and one in the file below its other settings. Without a file, the
    table ``tool.eb-saliency`` of the working directory's pyproject.toml is used.
    """
    given = ctx.meta.setdefault(_STATE, {})
    given[option.name] = value
    if option.name == "preset" and value is not None:
        words = (f"--{key}" if setting is True else f"--{key} {setting}" for key, setting in PRESETS[value].items())
        ctx.meta[NOTES] = [f"The preset {value} stands for {' '.join(words)}."]
    if ctx.resilient_parsing or not {"config", "preset"} <= given.keys():
        return
    config: Path | None = given["config"]
    if config is not None:
        table, where = _read(config), f"'{config}'"
    else:
        table, where = _project_table(), f"{PROJECT_FILE}"
    in_file = table.pop("preset", None)
    if in_file is not None and in_file not in PRESETS:
        raise click.UsageError(f"{where}: unknown preset {in_file!r}: choose {', '.join(PRESETS)}")
    found = dict(_parameters(ctx.command, table, where, is_project=config is None))
    below, over = (dict(_parameters(ctx.command, PRESETS.get(name, {}), name)) for name in (in_file, given["preset"]))
    ctx.default_map = {**below, **found, **over}
    if config is None:
        ctx.meta[FROM_PROJECT] = [*table, *(["preset"] if in_file else [])]


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise click.UsageError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:  # also invalid UTF-8
        raise click.UsageError(f"'{path}' is not valid TOML: {error}") from error


def _project_table() -> dict[str, Any]:
    if not PROJECT_FILE.is_file():
        return {}
    try:
        tools = _read(PROJECT_FILE).get("tool")
    except click.UsageError:  # somebody else's file, which need not concern this program
        return {}
    table = tools.get(_TABLE) if isinstance(tools, dict) else None
    return dict(table) if isinstance(table, dict) else {}


def _parameters(
    command: click.Command, table: Mapping[str, Any], where: str, is_project: bool = False
) -> Iterator[tuple[str, Any]]:
    """The parameters that a table sets, with their values as Click's default map needs them."""
    options = {
        name.lstrip("-"): option
        for option in command.params
        if isinstance(option, SectionOption) and option.section != "Information" and option.name not in _INSTEAD
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    for key, value in table.items():
        if key == _IMAGES and not is_project and isinstance(value, list):
            yield _IMAGES, [str(image) for image in value]
            continue
        name = key.replace("_", "-")
        option = options.get(name)
        if option is None or option.name == "config":
            raise click.UsageError(f"{where}: no such setting {key!r}: {closest(name, options)}".rstrip(": "))
        if is_project:
            _check_project_setting(option, key, value)
        assert option.name is not None
        yield option.name, _default(option, name, value, where)


def _default(option: SectionOption, name: str, value: Any, where: str) -> Any:
    """A value of a file as Click's default map needs it."""
    if option.is_flag != isinstance(value, bool):
        raise click.UsageError(f"{where}: {name} must be {'true or false' if option.is_flag else 'a value'}")
    if option.is_flag:
        return not value if f"--{name}" in option.secondary_opts else value
    if option.multiple:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list) and isinstance(option.type, Channels):
        return ",".join(map(str, value))
    if isinstance(value, (dict, list)):
        raise click.UsageError(f"{where}: {name} must be one value")
    return value


def _check_project_setting(option: SectionOption, key: str, value: Any) -> None:
    """Raise UsageError if pyproject.toml must not set an option, or not to this value."""
    reason = None
    if option.section not in _PROJECT_SECTIONS and option.name not in _PROJECT_OTHERS:
        reason = "may not be set there"
    elif option.name == "model" and ":" in str(value):
        reason = "names code, which is not run from there"
    elif option.name == "like":
        reason = "names an input"
    elif isinstance(option.type, click.Path) or option.name == "weights":
        path = Path(str(value))
        if path.is_absolute() or ".." in path.parts:
            reason = "leads out of this directory"
    if reason is not None:
        raise click.UsageError(f"{PROJECT_FILE}: {key} {reason}: pass --{key}, or a file of your own with --config")


def settings_file(command: click.Command, options: Mapping[str, Any], images: Sequence[Path]) -> str:
    """The effective settings of a run in TOML, for ``--config``."""
    lines = [
        f"# Written by {DISTRIBUTION} {installed_version()}. "
        "From the same directory, --config with this file repeats the run."
    ]
    names = [str(image) for image in images]
    valid = [name for name in names if name.isascii() or name.encode(errors="ignore").decode() == name]
    if len(valid) < len(names):
        lines.append(f"# Inputs whose names are not valid UTF-8 are missing: {len(names) - len(valid)}")
    lines.append(f"{_IMAGES} = {_toml(valid)}")
    for option in command.params:
        if not isinstance(option, SectionOption) or option.name in _PRINTED_ONLY | _INSTEAD | _LISTS:
            continue
        value = options.get(option.name or "")
        if value is not None and isinstance(option.type, (Shard, Threshold)):
            value = ("/" if isinstance(option.type, Shard) else ":").join(map(str, value))
        if isinstance(value, tuple) and isinstance(option.type, (BoxOf, PixelOrMask)):
            value = ",".join(f"{number:g}" for number in value)
        # these exclude each other
        hidden = option.name == "top_k" and any(options[name] for name in ("targets", "above", "labels"))
        if option.section != "Information" and value not in (None, ()) and not hidden:
            lines.append(f"{max(option.opts, key=len).lstrip('-')} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON strings without escapes of characters are TOML strings, but for DEL
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
