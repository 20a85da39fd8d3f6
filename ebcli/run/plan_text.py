"""A plan as text: the settings that repeat it, and the command line. Imports neither torch nor Click."""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebcli.errors import DISTRIBUTION, ConfigurationError
from ebcli.files.remote import without_secrets
from ebcli.imports import installed_version
from ebcli.nouns.box import Box
from ebcli.run.plan import RunPlan

PREFIX = "EB_SALIENCY_"  # of the variables that set options
# which no option of the command sets: what arrays and videos are, what a machine can do, and limits
SETTINGS_ONLY = frozenset(
    "channels bands range depth every background dtype fail_fast "
    "gpus_per_worker timeout retries max_bytes max_pixels image_timeout".split()
)
REPEATED = {"images", "include", "exclude", "layer", "target", "similar_to", "against", "compare_with"}
NEGATED = {"contrastive": "marginal", "signed": "unsigned"}
_SEPARATORS = {"shard": "/", "threshold": ":"}


def as_settings(plan: RunPlan) -> str:
    """The settings of a run in TOML, for ``--config``."""
    values = _without(plan, ("signed", "fit"))
    names = [str(without_secrets(image)[0]) for image in values.pop("images")]
    valid = [name for name in names if name.isascii() or name.encode(errors="ignore").decode() == name]
    lines = [
        f"# Written by {DISTRIBUTION} {installed_version()}. "
        "From the same directory, --config with this file repeats the run."
    ]
    if len(valid) < len(names):
        lines.append(f"# Inputs whose names are not valid UTF-8 are missing: {len(names) - len(valid)}")
    lines.append(f"images = {_toml(valid)}")
    lines += [
        f"{_option(name)} = {_toml(_text(name, value))}" for name, value in values.items() if value not in (None, ())
    ]
    return "\n".join(lines) + "\n"


def as_command(plan: RunPlan, environment: Mapping[str, str] = os.environ) -> str:
    """The shortest command line that makes a plan, whatever options the environment sets."""
    values = _without(plan, [name for name in plan.values if name != "images"])
    settings = [
        f"{PREFIX}{name.upper()}={_text(name, values.pop(name))}" for name in [*values] if name in SETTINGS_ONLY
    ]
    set_otherwise = [word for name in environment if name.startswith(PREFIX) for word in ("-u", name)]
    words = ["env", *set_otherwise, *settings] if set_otherwise or settings else []
    words += ["eb-saliency", *map(_operand, values.pop("images"))]
    for name, value in values.items():
        flag = f"--{_option(name)}"
        if isinstance(value, bool):
            words.append(flag if value else f"--{NEGATED[name]}")
            continue
        for one in value if name in REPEATED else [value]:
            words += [flag, str(_text(name, one))]
    return shlex.join(words)


def _without(plan: RunPlan, names: Iterable[str]) -> dict[str, Any]:
    """The values of a plan without those of some that follow from the others, or are the default."""
    told = values = plan.values
    for name in names:
        fewer = {other: value for other, value in values.items() if other != name}
        with suppress(ConfigurationError):
            if RunPlan.of(**fewer).values == told:
                values = fewer
    return values


def _option(name: str) -> str:
    return name.replace("_", "-")


def _operand(path: Path) -> str:
    """A path that is neither an option nor the name of a command."""
    name = str(path)
    return f"./{name}" if name != "-" and (name.startswith("-") or "." not in name) else name


def _text(name: str, value: Any) -> Any:
    """A value as files and options give it: several numbers are one text."""
    value = value.sized if isinstance(value, Box) else value
    if isinstance(value, tuple) and name not in REPEATED:
        return _SEPARATORS.get(name, ",").join(str(one) for one in value)
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON strings without escapes of characters are TOML strings, but for DEL
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
