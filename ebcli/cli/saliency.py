"""The command ``eb-saliency``: options -> RunPlan -> run; and ``ask``, a run over one photo and a question about it."""

import codecs
import os
import sys
from contextlib import closing, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from click import Argument, Choice, IntRange
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ebcli.cli import audit, check  # noqa: F401  they add their commands
from ebcli.cli.benchmark import benchmark
from ebcli.cli.click_types import PATH, Input, SectionedCommand, SectionOption
from ebcli.cli.commands import Paths, alter_option, command, main
from ebcli.cli.console import (
    SOME_FAILED,
    display_path,
    note,
    one_line,
    say_error,
    sign_of_life,
    write_out,
    write_path,
)
from ebcli.cli.execution import execute, sink_of
from ebcli.cli.options import CONTEXT, OPTIONS, option, values_in
from ebcli.errors import ConfigurationError, closest
from ebcli.files.naming import STDIN, STDOUT, answer_relpath
from ebcli.files.paths import path_of
from ebcli.imports import installed_version
from ebcli.run.plan import CHOOSING, RunPlan, part_of
from ebcli.run.plan_parts import DTYPES, WordOptions

__all__ = ["main", "run"]

# Unless this is set before PyTorch's threads start, those that wait for others keep their CPUs busy. The processes that
# decode and draw lack them then: on a busy machine, a run takes several times as long
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_LONGEST_LIST = 1 << 28  # bytes; millions of paths

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
    if from_file is not None:
        if STDIN in images and getattr(from_file, "name", "<stdin>") == "<stdin>":
            raise click.UsageError("stdin is either an image or a list: drop - or --from-file -")
        images += _read_list(from_file, options["null"])
    values = values_in(options) | {
        "images": images,
        "shard": options["shard"] or _rank(),
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
    if STDIN in images:
        plan = replace(plan, inputs=replace(plan.inputs, stdin=_read(options["max_bytes"])))
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


def _read(limit: int) -> bytes:
    """The image on stdin."""
    redirect = "redirect an image to it, as in eb-saliency - < in.jpg"
    if sys.stdin.buffer.isatty():
        raise ConfigurationError(f"stdin is a terminal: {redirect}")
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise ConfigurationError(f"stdin holds more than {limit} bytes: raise EB_SALIENCY_MAX_BYTES")
    if not content:
        raise ConfigurationError(f"stdin is empty: {redirect}")
    return content


def _read_list(file: IO[bytes], null: bool) -> tuple[Path, ...]:
    """The paths in a list; they are bytes, as not every file name is text."""
    content = file.read(_LONGEST_LIST + 1)
    problem = ""
    if len(content) > _LONGEST_LIST:
        problem = "is larger than 256 MiB: split it, or name directories"
    elif b"\0" in content and not null:
        problem = "contains NUL characters: add -0"
    if problem:
        raise click.UsageError(f"the list {click.format_filename(file.name)} {problem}")
    names = content.split(b"\0") if null else _lines(content)
    return tuple(path_of(os.fsdecode(name)) for name in names if name)


def _lines(content: bytes) -> list[bytes]:
    """Lines without their ends, also those of editors on Windows, which may begin a file with a byte order mark."""
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if all(line.endswith(b"\r") for line in lines if line):
        return [line.removesuffix(b"\r") for line in lines]
    return lines


def _rank() -> tuple[int, int] | None:
    """The shard of one process among many, as torchrun and others number them from 0."""
    rank = os.environ.get("RANK", "")
    size = os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    note(f"Processing shard {int(rank) + 1}/{size}, from RANK={rank} and WORLD_SIZE={size}")
    return int(rank) + 1, int(size)


_of_answer = partial(option, "Answer")


@command(
    "ask",
    Argument(["photo"], type=PATH),
    Argument(["question"], default=""),
    alter_option(
        "model",
        required=True,
        default=None,
        shell_complete=None,
        help="Vision-language model: hf/NAME, or a directory written by save_pretrained().",
    ),
    _of_answer("--answer TEXT", "Explain this answer instead of the model's own."),
    _of_answer("--word words WORD", "Explain this word of the answer. Repeatable.", default=()),
    _of_answer("--all-words", "Also explain words such as 'the' and 'of'.", is_flag=True),
    _of_answer(
        "--against WORD", "Contrast with a word that the model could have said instead.", default=None
    ),
    _of_answer("--max-tokens", "Longest answer of the model, in tokens.", type=IntRange(1), default=64),
    alter_option("output", help="Output directory, or a file for the figure alone, without the page."),
    alter_option("format", help="Format of the figure; auto is png."),
    alter_option("as_json", help="Print a JSON record with all words instead."),
    alter_option("cmap", show_default="violet"),
    SectionOption(
        ["--dtype"],
        section="Performance",
        help="Compute in this type; bfloat16 takes half the memory, but is coarser.",
        type=Choice(DTYPES),
        default=DTYPES[0],
        show_default=True,
    ),
    options=["cell_size", "dpi", "overwrite", "device"],
)
def ask(photo: Path, **options: Any) -> int:
    """Ask a vision-language model about a photo, and see which part made it say each word.

    Writes a figure, and a page on which pointing at a word shows its map. Prints the answer, and for each word the
    share of its evidence that is in the picture. The rest of the evidence is in the question and in the earlier words.
    Without QUESTION, the model describes the photo.
    """
    if options["model"] is None:
        raise ConfigurationError(
            "ask needs a vision-language model: add --model hf/NAME, or a directory with one"
        )
    words = part_of(WordOptions, options)
    values = values_in(options) | {"against": None}  # here, it is a word
    plan = RunPlan.from_values(**values, images=(photo,), words=words, workers=0)
    if plan.output.directory == STDOUT:
        raise ConfigurationError("ask prints the answer to stdout: name a directory or a file with -o")
    sink = sink_of(plan, sys.stdout)
    with sign_of_life(f"Asking {plan.model.name} ..."), redirect_stdout(sys.stderr):
        from ebcli.run import engine

        with closing(engine.run(plan, sink).results) as results:
            record = next(results, None)
    if record is None or record.answer is None:
        reason = record.error if record else "it is a result of this program"
        say_error(f"{display_path(photo)}: {reason}")
        return SOME_FAILED
    if options["as_json"]:
        write_out(record.line())
        return 0
    write_out(one_line(record.answer.strip()))
    for word in record.classes:
        write_out(one_line(f"{word.name}: {word.share:.2f} from the picture"))
    for path in record.output:
        write_path(path)
    if sink is None:
        write_path(plan.output.directory / answer_relpath(Path(record.place), record.question, "html"))
    return 0


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
