"""Options from TOML files and presets, and the file that repeats a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from ebcli.cli.parameters import NOTES, BoxOf, Numbers, PixelOrMask, SectionOption, Shard, Threshold
from ebcli.errors import closest
from ebcli.files.naming import SETTINGS
from ebcli.imports import DISTRIBUTION, installed_version
from ebcli.models.sources import is_network_file
from ebcli.run.plan import ExecutionOptions

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
_LISTS = {"from_file", "null"}  # what they name is written as images
# Whoever cloned a repository did not choose what its pyproject.toml says, so it may neither name inputs, nor lift
# limits, nor replace files, nor start jobs elsewhere
_PROJECT_SECTIONS = {"Model", "Map", "Output", "Appearance", "Performance"}
_PROJECT_OTHERS = {"include", "exclude", "skip_existing", "fail_fast"}
_PROJECT_PATHS = {"model", "weights", "against"}  # besides options that always name one; --against does with --like
_PROJECT_LIMITS: dict[str | None, Any] = {
    "image_timeout": ExecutionOptions.image_timeout,
    "workers": os.cpu_count() or 1,
    "batch_size": 32,
    "resize": 2048,
    "crop": 2048,
    "depth": 2048,
}
# tomllib takes memory that is quadratic in the parts of a dotted key
_PROJECT_BYTES, _PROJECT_DOTS = 1 << 18, 500


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
        table, where = _parsed(config, _read(config)), f"'{config}'"
    else:
        table, where = _project_table(), f"{PROJECT_FILE}"
    in_file: Any = _text(table.pop("preset"), "preset", where) if "preset" in table else None
    if in_file is not None and in_file not in PRESETS:
        raise click.UsageError(f"{where}: unknown preset {in_file!r}: choose {', '.join(PRESETS)}")
    found = dict(_parameters(ctx.command, table, where, is_project=config is None))
    below, over = (dict(_parameters(ctx.command, PRESETS.get(name, {}), name)) for name in (in_file, given["preset"]))
    ctx.default_map = {**below, **found, **over}
    if config is None:
        ctx.meta[FROM_PROJECT] = [*table, *(["preset"] if in_file else [])]


def _read(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise click.UsageError(f"cannot read '{path}': {error.strerror}") from error


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except RecursionError as error:
        raise click.UsageError(f"'{path}' is not valid TOML: it is nested too deeply") from error
    except ValueError as error:  # also invalid UTF-8
        raise click.UsageError(f"'{path}' is not valid TOML: {error}") from error


def _project_table() -> dict[str, Any]:
    if not os.path.isfile(PROJECT_FILE):
        return {}
    try:
        content = _read(PROJECT_FILE, _PROJECT_BYTES + 1)
        if _TABLE.encode() not in content:
            return {}
        if len(content) > _PROJECT_BYTES or any(line.count(b".") > _PROJECT_DOTS for line in content.splitlines()):
            return {}
        tools = _parsed(PROJECT_FILE, content).get("tool")
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
        if isinstance(option, SectionOption) and option.section != "Information"
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    for key, value in table.items():
        if key == _IMAGES and not is_project and isinstance(value, list):
            yield _IMAGES, [_text(image, _IMAGES, where) for image in value]
            continue
        name = key.replace("_", "-")
        option = options.get(name)
        if option is None or option.name == "config":
            raise click.UsageError(f"{where}: no such setting {key!r}: {closest(name, options)}".rstrip(": "))
        default = _default(option, name, value, where)
        if is_project and (reason := _refusal(option, default)):
            raise click.UsageError(f"{where}: {key} {reason}: pass --{name}, or a file of your own with --config")
        assert option.name is not None
        yield option.name, default


def _default(option: SectionOption, name: str, value: Any, where: str) -> Any:
    """A value of a file as Click's default map needs it."""
    if option.is_flag != isinstance(value, bool):
        raise click.UsageError(f"{where}: {name} must be {'true or false' if option.is_flag else 'a value'}")
    if option.is_flag:
        return not value if f"--{name}" in option.secondary_opts else value
    if option.multiple:
        return [_text(one, name, where) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and isinstance(option.type, Numbers):
        return ",".join(_text(one, name, where) for one in value)
    return _text(value, name, where)


def _text(value: Any, name: str, where: str) -> str:
    """A string or number as it would be given on the command line."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise click.UsageError(f"{where}: {name} must be one value, a string or a number")
    if isinstance(value, int) and value.bit_length() > 63:
        raise click.UsageError(f"{where}: {name} is a number of more than 64 bits")
    if "\0" in (text := str(value)):
        raise click.UsageError(f"{where}: {name} contains a NUL character")
    return text


def _refusal(option: SectionOption, value: Any) -> str | None:
    """Why pyproject.toml must not set an option to a value of ``_default``; None if it may."""
    if option.section not in _PROJECT_SECTIONS and option.name not in _PROJECT_OTHERS:
        return "may not be set there"
    if option.name == "like":
        return "names an input"
    if option.name == "model" and (":" in value or is_network_file(value) or value.startswith("ultralytics/")):
        return "names code or a file of a network, which is not loaded from there"
    if option.name in _PROJECT_LIMITS and _is_above(value, _PROJECT_LIMITS[option.name]):
        return f"may be at most {_PROJECT_LIMITS[option.name]:g} there"
    if isinstance(option.type, click.Path) or option.name in _PROJECT_PATHS:
        paths: Iterable[Path] = map(Path, value if isinstance(value, list) else [value])
        if option.name == "model" and "/" in value:  # what follows the prefix of its source may be a directory
            directory = Path(value.partition("/")[2])
            paths = chain(paths, [directory], directory.rglob("*"))
        if not all(map(_is_inside, paths)):
            return "leads out of this directory"
    return None


def _is_above(value: str, most: float) -> bool:
    try:
        return not float(value) <= most  # also NaN
    except ValueError:  # the option's own type says so
        return False


def _is_inside(path: Path) -> bool:
    """Whether a path is in the working directory once links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath("."))


def settings_of(directory: Path) -> dict[str, Any]:
    """The settings of a run, by their names in its settings.toml."""
    path = directory / SETTINGS
    return _parsed(path, _read(path))


def as_toml(settings: Mapping[str, Any]) -> str:
    """Settings as a file for ``--config``."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())


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
        if not isinstance(option, SectionOption) or option.name in _PRINTED_ONLY | _LISTS:
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
