"""The command ``eb-saliency``: options -> RunPlan -> run."""

import os
import sys
from contextlib import redirect_stdout
from typing import IO, Any

import click
from click import Argument
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ebcli.cli import ask, audit, check  # noqa: F401  they add their commands
from ebcli.cli.benchmark import benchmark
from ebcli.cli.click_types import Input, SectionedCommand
from ebcli.cli.commands import Paths, main
from ebcli.cli.console import display_path
from ebcli.cli.execution import execute, sink_of
from ebcli.cli.inputs import shard_from_environment, with_listed, with_stdin
from ebcli.cli.options import CONTEXT, OPTIONS, values_in
from ebcli.errors import ConfigurationError, closest
from ebcli.files.naming import STDIN, STDOUT
from ebcli.files.paths import path_of
from ebcli.imports import installed_version
from ebcli.run.plan import CHOOSING, RunPlan

__all__ = ["main", "run"]

# Unless this is set before PyTorch's threads start, those that wait for others keep their CPUs busy. The processes that
# decode and draw lack them then: on a busy machine, a run takes several times as long
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

EPILOG = """
Without --model, the bundled EfficientNet-Lite0 and its ImageNet weights are used; nothing is downloaded.

Options can be set in files, which --config names, and in the environment:
EB_SALIENCY_TOP_K for --top-k, EB_SALIENCY_CONTRASTIVE=0 for --marginal, EB_SALIENCY_TARGET="tabby;tiger cat"
for several targets. The command line takes precedence over the environment, which takes precedence over files.

Each image's record is also appended to records.jsonl in the output directory, one JSON object per line. The
settings of the run are written to settings.toml there; --config with that file repeats it.

Exit status: 0 if all images succeeded, 1 if some failed, 2 on any other error, 75 if a Ray cluster was lost,
130 if interrupted (143 by SIGTERM, 129 by SIGHUP), 141 if stdout was closed, as by head.
"""


def print_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"eb-saliency {installed_version()}")
        context.exit()


def complete_first(ctx: click.Context, _images: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of commands, where one can be, and files."""
    is_first = incomplete and ParameterSource.COMMANDLINE not in map(ctx.get_parameter_source, ctx.params)
    names = [name for name in main.commands if is_first and name.startswith(incomplete)]
    # bash forgets what comes before files
    return [CompletionItem(incomplete, type="file"), *map(CompletionItem, names)]


@click.command(
    cls=SectionedCommand,
    params=[
        # inputs that cannot be read fail on their own, later
        Argument(["images"], nargs=-1, type=Input(readable=False), shell_complete=complete_first),
        *OPTIONS.values(),
    ],
    context_settings=CONTEXT,
    epilog=EPILOG,
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def run(images: Paths, from_file: IO[bytes] | None, **options: Any) -> int:
    """Highlight the image regions that support a network's prediction.

    IMAGES are files, directories (searched recursively), tar files and URLs; - is an image on stdin. Writes one picture
    per image and class, or per detected object, and prints its path.
    """
    context = click.get_current_context()
    if not images and from_file is None:
        images = tuple(map(path_of, context.lookup_default("images") or ()))
    if images:
        _refuse_misspelled_command(str(images[0]))
    _drop_replaced_choices(context, options)
    images = with_listed(images, from_file, options["null"])
    values = values_in(options) | {
        "images": images,
        "shard": options["shard"] or shard_from_environment(),
        "track_lost_mass": options["verbose"],
    }
    # stdout is for results: networks print, and so does Ray
    out = sys.stdout
    is_named = context.get_parameter_source("output") != ParameterSource.DEFAULT
    needs_directory = any(map(options.get, ("as_json", "at", "dry_run", "raw", "report")))
    if images == (STDIN,) and not (is_named or needs_directory or out.isatty()):
        values["output"] = STDOUT
    if options["as_json"] and values["output"] == STDOUT:
        raise ConfigurationError(
            "stdout takes one picture, but --json prints records there: drop one of them"
        )
    plan = RunPlan.from_values(**values)
    sink = sink_of(plan, out)
    plan = with_stdin(plan, options)
    with redirect_stdout(sys.stderr):
        return execute(plan, options, out, sink)


def _refuse_misspelled_command(word: str) -> None:
    """Raise UsageError if there is no such file, but a command with a name like that."""
    if len(word) < 3 or os.path.lexists(word):
        return
    near = closest(word, main.commands)
    if near:
        raise click.UsageError(f"'{display_path(word)}' is neither a file nor a command: {near}")


def _drop_replaced_choices(context: click.Context, options: dict[str, Any]) -> None:
    """Drop choices of classes that ones with precedence replace, such as a file's by the command line's."""
    sources = {
        name: context.get_parameter_source(name) for name in CHOOSING if options[name] not in ((), None)
    }
    for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
        if source in sources.values():
            replaced = [name for name in sources if sources[name] != source]
            options |= {name: OPTIONS[name].default for name in replaced}
            return


run.examples = {
    "eb-saliency img.jpg -o out.png": "the most likely class",
    'eb-saliency img.jpg --target "tiger cat" --target espresso --panel': "two classes in one figure",
    "eb-saliency photos -o maps --skip-existing --report": "a directory, with a gallery page; again, it resumes",
    "eb-saliency serve photos": "a live page in the browser",
}
main.nameless = run
main.help = run.help
main.add_command(benchmark)
run.commands_beside = main.commands
