"""The command ``ask``: a question about a photo, and the map of each word of the answer."""

import os
import sys
from collections.abc import Mapping
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click

from ebcli.cli.commands import altered, command
from ebcli.cli.console import SOME_FAILED, one_line, put, say_error, shown, sign_of_life
from ebcli.cli.execution import sink_of
from ebcli.cli.options import option
from ebcli.cli.parameters import PATH
from ebcli.errors import ConfigurationError
from ebcli.files.naming import STDOUT, answer_relpath
from ebcli.run.plan import VALUES, RunPlan, part_of
from ebcli.run.plan_parts import WordOptions

_of_answer = partial(option, "Answer")


@command(
    "ask",
    click.Argument(["photo"], type=PATH),
    click.Argument(["question"], default=""),
    altered(
        "model",
        required=True,
        default=None,
        shell_complete=None,
        help="Vision-language model: hf/NAME, or a directory written by save_pretrained().",
    ),
    _of_answer("--answer TEXT", "Explain this answer instead of the model's own."),
    _of_answer("--word words WORD", "Explain this word of the answer. Repeatable.", default=()),
    _of_answer("--all-words", "Also explain words such as 'the' and 'of'.", is_flag=True),
    _of_answer("--against WORD", "Contrast with a word that the model could have said instead.", default=None),
    _of_answer("--max-tokens", "Longest answer of the model, in tokens.", type=click.IntRange(1), default=64),
    altered("output", help="Output directory, or a file for the figure alone, without the page."),
    altered("format", help="Format of the figure; auto is png."),
    altered("as_json", help="Print a JSON record with all words instead."),
    altered("cmap", show_default="violet"),
    options=["cell_size", "dpi", "overwrite", "device", "dtype"],
)
def ask(options: Mapping[str, Any]) -> int:
    """Ask a vision-language model about a photo, and see which part made it say each word.

    Writes a figure, and a page on which pointing at a word shows its map. Prints the answer, and for each word the
    share of its evidence that is in the picture. The rest of the evidence is in the question and in the earlier words.
    Without QUESTION, the model describes the photo.
    """
    if options["model"] is None:
        raise ConfigurationError("ask needs a vision-language model: add --model hf/NAME, or a directory with one")
    words = part_of(WordOptions, options)
    values = {name: options[name] for name in (VALUES & options.keys()) - vars(words).keys()}
    plan = RunPlan.of(**values, images=(options["photo"],), words=words, workers=0)
    if plan.output.directory == STDOUT:
        raise ConfigurationError("ask prints the answer to stdout: name a directory or a file with -o")
    sink = sink_of(plan, sys.stdout)
    with sign_of_life(f"Asking {plan.model.name} ...", options["quiet"]), redirect_stdout(sys.stderr):
        from ebcli.run import engine

        with closing(engine.run(plan, sink).results) as results:
            record = next(results, None)
    if record is None or record.answer is None:
        reason = "it is a result of this program" if record is None else record.error
        say_error(f"{shown(options['photo'])}: {reason}")
        return SOME_FAILED
    if options["as_json"]:
        put(record.line())
        return 0
    put(one_line(record.answer.strip()))
    for one in record.classes:
        put(one_line(f"{one.name}: {one.share:.2f} from the picture"))
    page = plan.output.directory / answer_relpath(Path(record.place), record.question, "html")
    for written in (*record.output, *([] if sink else [str(page)])):
        put(os.fsencode(written))
    return 0
