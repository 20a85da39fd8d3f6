"""The command ``eb-saliency serve``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ebcli.cli.commands import PHOTOS, altered, command
from ebcli.cli.console import put, say_error
from ebcli.cli.model_options import model_spec
from ebcli.cli.options import OPTIONS
from ebcli.cli.parameters import SectionOption, part
from ebcli.files.remote import RemoteOptions
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import ExecutionOptions

_PORT = 8722
_MODEL = [name for name, option in OPTIONS.items() if option.section == "Model"]
_SHARED = [name for name in _MODEL if name not in ("model", "weights")]


def _repeatable(name: str, text: str, default: tuple[str, ...]) -> click.Option:
    """An option of a run that this command takes several times."""
    return altered(name, multiple=True, help=f"{OPTIONS[name].help} {text}", default=default)


@command(
    "serve",
    PHOTOS,
    _repeatable("model", "Repeatable: several networks.", (ModelSpec.name,)),
    _repeatable("weights", "Repeatable: one for each --model.", ()),
    SectionOption(
        ["--host"],
        section="Server",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="Listen at this address. Others than those of this machine need the token of the URL that is printed.",
    ),
    SectionOption(
        ["--port"],
        section="Server",
        type=click.IntRange(0, 65535),
        default=_PORT,
        help="Listen at this port; 0 for a free one.",
    ),
    SectionOption(["--open/--no-open", "show"], section="Server", default=True, help="Open the page in the browser."),
    options=[*_SHARED, "layers", "device", "dtype", "max_pixels", "max_bytes"],
)
def serve(options: Mapping[str, Any]) -> int:
    """Explain photos on a live page in the browser.

    The page shows the PHOTOS and those that are dropped on it. Only this machine can open it, unless --host says
    otherwise. Ctrl-C ends the server.
    """
    from ebcli.serve.app import Page
    from ebcli.serve.network import Network
    from ebcli.serve.photos import Photos
    from ebcli.serve.server import serve as run

    execution, remote = part(ExecutionOptions, options), part(RemoteOptions, options)
    shared = [*_words(options)]
    networks = [Network(spec, execution, options["layers"], [*own, *shared]) for spec, own in _specs(options)]
    with TemporaryDirectory(prefix="eb-saliency-") as folder, suppress(KeyboardInterrupt):
        photos = Photos(options["images"], Path(folder), remote, options["max_pixels"])
        run(Page(photos, networks, say_error, remote.max_bytes), options["host"], options["port"], options["show"], put)
    sys.stdout.flush()
    os._exit(0)  # at once: a thread may be busy with a map


def _specs(options: Mapping[str, Any]) -> Iterator[tuple[ModelSpec, list[str]]]:
    """The networks, and the options that name each."""
    weights = options["weights"]
    if len(weights) > len(options["model"]):
        raise click.UsageError(f"there are {len(weights)} --weights for {len(options['model'])} --model: drop some")
    for name, chosen in zip_longest(options["model"], weights, fillvalue=ModelSpec.weights):
        own = ["--model", name] if name != ModelSpec.name else []
        yield (
            model_spec({**options, "model": name, "weights": chosen}),
            own + (["--weights", chosen] if chosen != ModelSpec.weights else []),
        )


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """The options that all networks share, as they were given."""
    context = click.get_current_context()
    for name in (*_SHARED, "device", "dtype"):
        if context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT:
            value = options[name]
            yield max(OPTIONS[name].opts, key=len)
            yield ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
