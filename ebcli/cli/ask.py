"""The command ``ask``: a run over photos with questions to a vision-language model."""

import os
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from click import Argument, Choice, IntRange

from ebcli.cli.click_types import PATH, SectionOption
from ebcli.cli.commands import alter_option, command
from ebcli.cli.console import display_path
from ebcli.cli.execution import execute, sink_of
from ebcli.cli.inputs import shard_from_environment, with_listed, with_stdin
from ebcli.cli.options import option, values_in
from ebcli.errors import ConfigurationError
from ebcli.files.naming import STDIN, STDOUT
from ebcli.files.paths import path_of, url_of
from ebcli.run.plan import RunPlan, part_of
from ebcli.run.plan_parts import DTYPES, WordOptions

_of_answer = partial(option, "Answer")
_INPUT = "from_file null include exclude shard timeout retries max_bytes max_pixels image_timeout".split()
_OUTPUT = "report cell_size dpi skip_existing overwrite dry_run fail_fast workers device".split()


@command(
    "ask",
    Argument(["photos"], nargs=-1, type=str, metavar="PHOTOS... [QUESTION]"),
    alter_option(
        "model",
        required=True,
        default=None,
        shell_complete=None,
        help="Vision-language model: hf/NAME, or a directory written by save_pretrained().",
    ),
    _of_answer(
        "--questions FILE",
        "Ask each of these questions, one per line; or those of a CSV file of photo,question.",
        type=PATH,
        default=None,
    ),
    _of_answer("--answer TEXT", "Explain this answer instead of the model's own.", default=None),
    _of_answer(
        "--answers FILE",
        "Explain these answers, such as captions: a CSV file of photo,answer or photo,question,answer.",
        type=PATH,
        default=None,
    ),
    _of_answer("--word words WORD", "Explain this word where it is said. Repeatable.", default=()),
    _of_answer(
        "--phrase phrases TEXT",
        "Explain these words together, in one map, where they are said. Repeatable.",
        default=(),
    ),
    _of_answer("--all-words", "Also explain words such as 'the' and 'of'.", is_flag=True),
    _of_answer(
        "--against WORD", "Contrast with a word that the model could have said instead.", default=None
    ),
    _of_answer("--max-tokens", "Longest answer of the model, in tokens.", type=IntRange(1), default=64),
    alter_option("output", help="Output directory, or a file for a single figure, without its page."),
    alter_option("format", help="Format of the figures; auto is png."),
    alter_option("records", help="Also write a table with a row per word, to a .csv or .parquet file."),
    alter_option("as_json", help="Print one JSON record with all words per answer instead."),
    alter_option("cmap", show_default="violet"),
    SectionOption(
        ["--dtype"],
        section="Performance",
        help="Compute in this type; bfloat16 takes half the memory, but is coarser.",
        type=Choice(DTYPES),
        default=DTYPES[0],
        show_default=True,
    ),
    options=[*_INPUT, *_OUTPUT],
)
def ask(photos: tuple[str, ...], from_file: IO[bytes] | None, **options: Any) -> int:
    """Ask a vision-language model about photos, and see which part made it say each word.

    PHOTOS are files, directories (searched recursively), tar files and URLs. Without QUESTION, the model describes
    them. Writes a figure for each answer, and a page on which pointing at a word shows its map. Of a single photo,
    prints the answer, and for each word the share of its evidence that is in the picture. The rest of the evidence is
    in the question and in the earlier words.
    """
    if options["model"] is None:
        raise ConfigurationError(
            "ask needs a vision-language model: add --model hf/NAME, or a directory with one"
        )
    names, question = _split(photos, has_list=from_file is not None)
    values = values_in(options) | {
        "images": with_listed(tuple(map(path_of, names)), from_file, options["null"]),
        "shard": options["shard"] or shard_from_environment(),
        "words": part_of(WordOptions, options | {"question": question}),
        "against": None,  # here, it is a word
    }
    plan = RunPlan.from_values(**values)
    if plan.output.directory == STDOUT:
        raise ConfigurationError("ask prints the answer to stdout: name a directory or a file with -o")
    out = sys.stdout  # networks print, too
    sink = sink_of(plan, out)
    plan = with_stdin(plan, options)
    with redirect_stdout(sys.stderr):
        return execute(plan, options, out, sink)


def _split(words: tuple[str, ...], has_list: bool) -> tuple[tuple[str, ...], str]:
    """The photos, and the question behind them, which is no photo; empty if there is none."""
    if len(words) + has_list < 2:
        return words, ""
    *photos, last = words
    path = Path(last)
    if os.path.lexists(last) or url_of(path) is not None or path == STDIN:
        return words, ""
    from ebcli.files.media.medium import INPUT_FORMATS  # which the help need not wait for

    if len(last.split()) == 1 and any(medium.has_suffix(path) for medium in INPUT_FORMATS):
        raise click.UsageError(
            f"'{display_path(last)}' is no file: correct its name, or ask in several words"
        )
    return tuple(photos), last
