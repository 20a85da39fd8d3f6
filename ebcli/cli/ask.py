"""The command ``ask``: a question about a photo, and the map of each word of the answer."""

import os
import sys
from collections.abc import Mapping
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

from ebcli.cli.console import SOME_FAILED, one_line, put, say_error, shown, sign_of_life
from ebcli.errors import ConfigurationError
from ebcli.files.naming import answer_relpath
from ebcli.run.plan import VALUES, RunPlan, part_of
from ebcli.run.plan_parts import WordOptions


def ask(options: Mapping[str, Any]) -> int:
    """Ask as the command's options say, print the answer and what was written, and return the exit status."""
    if options["model"] is None:
        raise ConfigurationError("ask needs a vision-language model: add --model hf/NAME, or a directory with one")
    words = part_of(WordOptions, options)
    values = {name: options[name] for name in (VALUES & options.keys()) - vars(words).keys()}
    plan = RunPlan.of(**values, images=(options["photo"],), words=words, workers=0)
    with sign_of_life(f"Asking {plan.model.name} ...", options["quiet"]), redirect_stdout(sys.stderr):
        from ebcli.run import engine

        with closing(engine.run(plan).results) as results:
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
    for written in (*record.output, str(page)):
        put(os.fsencode(written))
    return 0
