"""The command ``eb-saliency serve``."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from ebcli.cli.commands import PHOTOS, altered, command
from ebcli.cli.console import put, say_error
from ebcli.cli.options import OPTIONS, in_section, option
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import RunPlan

_PORT = 8722
_SHARED = [name for name in in_section("Model") if name not in ("model", "weights")]
_SHARED += ["layer", "device", "dtype", "max_pixels", "max_bytes", "image_timeout"]


def _repeatable(name: str, text: str, default: tuple[str, ...]) -> click.Option:
    """An option of a run that this command takes several times."""
    return altered(name, multiple=True, help=f"{OPTIONS[name].help} {text}", default=default)


@command(
    "serve",
    PHOTOS,
    _repeatable("model", "Repeatable: several networks.", (ModelSpec.name,)),
    _repeatable("weights", "Repeatable: one for each --model.", ()),
    option("Server", "--host ADDRESS", "Listen at this address.", default="127.0.0.1"),
    option("Server", "--port", "Listen at this port; 0 for a free one.", type=click.IntRange(0, 65535), default=_PORT),
    option("Server", "--open/--no-open show", "Open the page in the browser.", default=True),
    options=_SHARED,
)
def serve(options: Mapping[str, Any]) -> int:
    """Explain photos on a live page in the browser.

    The page shows the PHOTOS and photos that are dropped on it. It opens only at the printed address, which has a
    token, and only on this machine, unless --host names another address. Ctrl-C ends the server.
    """
    from ebcli.files.images import decoding_memory
    from ebcli.serve.app import Page
    from ebcli.serve.network import Network
    from ebcli.serve.photos import Photos
    from ebcli.serve.server import serve as run
    from ebcli.workers import Workers, enough_for

    plans = [*_plans(options)]
    inputs = plans[0].inputs
    workers = Workers(enough_for(1), plans[0].execution.image_timeout, decoding_memory(inputs.max_pixels))
    photos = Photos(options["images"], workers, inputs.remote, inputs.max_pixels)
    with suppress(KeyboardInterrupt):
        page = Page(photos, [Network(plan, workers) for plan in plans], workers, say_error)
        run(page, options["host"], options["port"], options["show"], put)
    sys.stdout.flush()
    os._exit(0)  # at once: a thread may be busy with a map


def _plans(options: Mapping[str, Any]) -> Iterator[RunPlan]:
    """The networks, each as a run of it."""
    weights = options["weights"]
    if len(weights) > len(options["model"]):
        raise click.UsageError(f"there are {len(weights)} --weights for {len(options['model'])} --model: drop some")
    shared = {name: options[name] for name in _SHARED} | {"images": (Path("photo"),)}
    for name, chosen in zip_longest(options["model"], weights, fillvalue=ModelSpec.weights):
        yield RunPlan.of(**shared, model=name, weights=chosen)
