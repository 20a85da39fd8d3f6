"""The commands beside a run: lists, checks and pages of earlier results, and the live page."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from click import Argument, IntRange

from ebcli.cli.click_types import DIRECTORY, PATH, Input, SectionedCommand, SectionOption
from ebcli.cli.console import (
    SOME_FAILED,
    display_path,
    exit_at_once,
    note,
    quote_path,
    say_error,
    sign_of_life,
    write_out,
    write_path,
)
from ebcli.cli.options import CONTEXT, OPTIONS, in_section, option, values_in
from ebcli.cli.settings import default_map
from ebcli.errors import ConfigurationError, LayerError, import_optional
from ebcli.files.naming import SETTINGS
from ebcli.files.paths import path_of
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import SHORT_FORM, VALUES, RunPlan
from ebcli.run.plan_parts import Names

# What a run was is not changed by what the environment sets for the next one
WITHOUT_ENVIRONMENT = {**CONTEXT, "auto_envvar_prefix": None}
Paths = tuple[Path, ...]
PHOTOS = Argument(["images"], nargs=-1, type=Input(readable=False), metavar="[PHOTOS]...")


class Main(click.Group):
    """A group with a command that needs no name: ``eb-saliency photo.jpg``.

    Attributes:
        nameless: that command.
    """

    nameless: click.Command

    def make_context(
        self, info_name: str | None, args: list[str], *arguments: Any, **extra: Any
    ) -> click.Context:
        if not args or args[0] not in self.commands:
            return self.nameless.make_context(info_name, args, *arguments, **extra)
        return super().make_context(info_name, args, *arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


main = Main("eb-saliency")


def command(
    name: str,
    *parameters: click.Parameter,
    options: Sequence[str] = (),
    group: click.Group = main,
    context_settings: dict[str, Any] = CONTEXT,
    text: str | None = None,
) -> Callable[[Callable[..., int]], click.Command]:
    """Add a command: a function of its arguments and options that returns the exit status.

    Args:
        name: the command's name.
        parameters: its arguments, and options of its own.
        options: the names of those options of a run that it has, too.
        group: the group that it belongs to.
        context_settings: see Click.
        text: its help; None for the function's docstring.
    """
    params = [*parameters, *map(OPTIONS.__getitem__, options), OPTIONS["quiet"], _VERBOSE, OPTIONS["debug"]]
    return group.command(
        name, cls=SectionedCommand, params=params, help=text, context_settings=context_settings
    )


of_run = partial(command, context_settings=WITHOUT_ENVIRONMENT)  # adds a command about an earlier run


def plan_of(directory: Path) -> RunPlan:
    """The plan of an earlier run, of its settings.toml alone."""
    settings = default_map(directory / SETTINGS, OPTIONS.values())
    images = tuple(map(path_of, settings.pop("images", ())))
    context = click.get_current_context()
    names = (VALUES | {SHORT_FORM}) & settings.keys()
    values = {name: OPTIONS[name].type_cast_value(context, settings[name]) for name in names}
    return RunPlan.from_values(images=images, **values)


def alter_option(name: str, **changes: Any) -> SectionOption:
    """An option of a run that means something else to a command."""
    option = copy(OPTIONS[name])
    vars(option).update(changes)
    return option


_VERBOSE = alter_option("verbose", help="Also name the environment variables that set options.")


@command("models", Argument(["patterns"], nargs=-1))
def models(patterns: tuple[str, ...], **_: Any) -> int:
    """List the models by name.

    With PATTERNS, such as resnet or 's*n_v2_?', lists only the names that match, also of timm. Exit status: 1 if
    nothing matches.
    """
    from ebcli.models import model_names
    from ebcli.models.keywords import TASKS

    words = map(str.lower, patterns or ("*",))
    globs = [word if set(word) & set("*?[") else f"*{word}*" for word in words]
    groups = {task.capitalize(): model_names(task) for task in TASKS}
    if patterns:  # timm has too many to list them all
        try:
            groups["timm"] = [f"timm/{name}" for name in import_optional("timm").list_models()]
        except ConfigurationError as error:
            note(f"timm is not searched: {error}")

    def matches(name: str) -> bool:
        return any(fnmatch(name.lower().removeprefix("timm/"), glob) for glob in globs)

    has_match = False
    for group, names in groups.items():
        matching = [*filter(matches, names)]
        if matching:
            has_match = True
            note(f"{group}:")
            write_out("\n".join(matching))
    if not has_match:
        note(f"No name matches {' or '.join(map(repr, patterns))}")
    sources = "timm/NAME, hf/NAME, clip/NAME, open_clip/NAME, ultralytics/NAME, FILE.onnx, FILE.pt2 and FILE.py:FACTORY"
    note(f"Also accepted: {sources}; see --model in --help")
    return 0 if has_match else SOME_FAILED


@command("layers", options=[*in_section("Model"), "target", "similar_to"])
def layers(**options: Any) -> int:
    """List the layers of a model.

    Prints the name, type, output and stride in pixels of each layer. * marks the default. For a network that returns
    several outputs, its heads, it also prints their names and shapes.
    """
    from ebcli.models import default_layer, layers, load_model
    from ebcli.models.keywords import UNTRAINED
    from ebcli.models.sources import takes_texts

    # layers depend neither on the weights, so none are downloaded, nor on texts
    values = values_in(options)
    if options["weights"] == ModelSpec.weights:
        values["weights"] = UNTRAINED
    if takes_texts(options["model"]) and not any(map(options.get, ("target", "similar_to", "class_names"))):
        values["target"] = ("a photo",)
    model = RunPlan.from_values(**values, images=(Path("photo"),)).model
    with sign_of_life(f"Loading {model.name} ..."):
        loaded = load_model(device="cpu", **vars(model))
    if loaded.heads:
        heads = [("HEAD", "OUTPUT", "EXPLAINED")]
        for name, shape in loaded.heads.items():
            heads.append((name, _shape(shape), "*" if name == loaded.head else ""))
        _write_table(heads)
    default = None
    with suppress(LayerError):  # none has a map
        default = default_layer(loaded)
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE", "DEFAULT")]
    for layer in layers(loaded):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        mark = "*" if layer.name == default else ""
        rows.append((layer.name, layer.type, _shape(layer.shape), stride, mark))
    _write_table(rows)
    return 0


def _shape(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape))


def _write_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, and the first row, the heading, to stderr."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading, *lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    note(heading)
    write_out("\n".join(lines))


@command(
    "doctor",
    OPTIONS["device"],
    alter_option("output", metavar="DIR", help="Check that a run can write to this directory."),
    alter_option("as_json", help="Print a JSON object per check."),
)
def doctor(device: str, output: Path, as_json: bool, **_: Any) -> int:
    """Check the installation with a small run on --device."""
    from ebcli.cli.doctor import examine

    status = 0
    for check in examine(device, output):
        line = f"{'ok' if check.ok else 'FAILED':<7} {check.check:<32} {display_path(check.found)}"
        write_out(json.dumps(check._asdict()) if as_json else line)
        if not check.ok:
            status = SOME_FAILED
    return status


@command("info", Argument(["file"], type=PATH), alter_option("as_json", help="Print a JSON object."))
def info(file: Path, as_json: bool, **_: Any) -> int:
    """Print how a result was made.

    FILE is a picture, a figure or a .npz file of a run.
    """
    from ebcli.files.encoding import read_facts

    try:
        facts = read_facts(file)
    except OSError as error:
        raise ConfigurationError(f"cannot read '{file}': {error.strerror or error}") from error
    if not facts:
        raise ConfigurationError(
            f"'{file}' contains no eb-saliency metadata: only its own pictures and .npz files do"
        )
    if as_json:
        write_out(json.dumps(facts))
        return 0
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        write_out(f"{name + ':':<{width}}{display_path(value)}")
    return 0


@of_run("verify", Argument(["directory"], type=DIRECTORY))
def verify(directory: Path, **_: Any) -> int:
    """Check that the results of a run are intact.

    Prints the results in DIRECTORY that are missing or altered.
    """
    from ebcli.files.results import verify

    results = verify(directory)
    problems = {path: problem for path, problem in results.items() if problem}
    for path, problem in problems.items():
        write_out(quote_path(directory / path) + f": {problem}".encode())
    note(f"{len(results)} results: {len(results) - len(problems)} intact, {len(problems)} altered or missing")
    if not problems:
        return 0
    # an altered file may have its size still, by which --skip-existing would keep it
    note("To repair them, delete those that are altered and repeat the run with --skip-existing")
    return SOME_FAILED


@of_run(
    "compare",
    Argument(["run_a"], type=DIRECTORY),
    Argument(["run_b"], type=DIRECTORY),
    PHOTOS,
    alter_option("output", metavar="DIR", help="Write the page to comparison/index.html in this directory."),
    options=["overwrite"],
)
def compare(run_a: Path, run_b: Path, images: Paths, output: Path, overwrite: bool, **_: Any) -> int:
    """Write a page that compares two runs.

    RUN_A and RUN_B are directories of runs with --raw. The page shows the PHOTOS if they are given.
    """
    from ebcli.evaluate import rank_correlation
    from ebcli.gallery.comparison import read_pairs, write_comparison

    write_path(write_comparison(output, read_pairs(run_a, run_b), rank_correlation, images, overwrite))
    return 0


@of_run(
    "report",
    Argument(["directory"], type=DIRECTORY),
    PHOTOS,
    options=[*in_section("Appearance"), "workers", "overwrite"],
)
def report(directory: Path, images: Paths, **options: Any) -> int:
    """Write the gallery page of a run.

    DIRECTORY has the results. The page shows the PHOTOS if they are given.
    """
    from ebcli.gallery.page import write_gallery

    plan = RunPlan.from_values(**values_in(options), images=images or (directory,))
    write_path(write_gallery(directory, plan.style, plan.execution.workers, plan.output.overwrite, images))
    return 0


_NETWORK_OPTIONS = [name for name in in_section("Model") if name not in ("model", "weights")]
_NETWORK_OPTIONS += ["layer", "device", "dtype", "max_pixels", "max_bytes", "image_timeout"]


def _repeatable(name: str, text: str, default: tuple[str, ...]) -> click.Option:
    """An option of a run that this command takes several times."""
    return alter_option(name, multiple=True, help=f"{OPTIONS[name].help} {text}", default=default)


@command(
    "serve",
    PHOTOS,
    _repeatable("model", "Repeatable: several networks.", (ModelSpec.name,)),
    _repeatable("weights", "Repeatable: one for each --model.", ()),
    option("Server", "--host ADDRESS", "Listen at this address.", default="127.0.0.1"),
    option(
        "Server", "--port", "Listen at this port; 0 for a free one.", type=IntRange(0, 65535), default=8722
    ),
    option("Server", "--open/--no-open show", "Open the page in the browser.", default=True),
    option("Server", "--camera", "Show what the network sees in the browser's camera.", default=False),
    options=[*_NETWORK_OPTIONS, "method"],
)
def serve(
    images: Paths,
    model: Names,
    weights: Names,
    host: str,
    port: int,
    show: bool,
    camera: bool,
    **options: Any,
) -> int:
    """Explain photos on a live page in the browser.

    The page shows the PHOTOS and photos that are dropped on it. With a network for volumes, they are volumes. The page
    opens only at the printed address, which has a token, and only on this machine, unless --host names another address.
    Ctrl-C ends the server.
    """
    from ebcli.files.images import decoding_memory
    from ebcli.serve.app import Page
    from ebcli.serve.network import Network
    from ebcli.serve.photos import CAMERA, Photos
    from ebcli.serve.server import serve as run
    from ebcli.workers import Workers, enough_for

    if len(weights) > len(model):
        raise click.UsageError(f"there are {len(weights)} --weights for {len(model)} --model: drop some")
    values = values_in(options)
    networks = zip_longest(model, weights, fillvalue=ModelSpec.weights)
    photo = (Path("photo"),)
    plans = [
        RunPlan.from_values(**values, images=photo, model=name, weights=state) for name, state in networks
    ]
    inputs = plans[0].inputs
    workers = Workers(enough_for(1), options["image_timeout"], decoding_memory(inputs.max_pixels))
    photos = Photos(images, workers, inputs.remote, inputs.max_pixels)
    with suppress(KeyboardInterrupt):
        page = Page(photos, [Network(plan, workers) for plan in plans], workers, say_error)
        run(page, host, port, show, write_out, CAMERA if camera else None)
    exit_at_once()
