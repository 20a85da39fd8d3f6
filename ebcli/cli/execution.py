"""A plan carried out: where its results go, a summary on the terminal, and files that sum them up."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from ebcli.cli.console import (
    SOME_FAILED,
    display_path,
    handle_signals,
    is_quiet,
    note,
    one_line,
    say,
    sign_of_life,
    write_out,
)
from ebcli.cli.options import Options
from ebcli.cli.record_printer import RecordPrinter
from ebcli.datatypes.explanation import HARDLY_ANY, Sufficiency
from ebcli.drawing.style import ATLAS, DrawingStyle
from ebcli.errors import ConfigurationError, EbcliError, plural
from ebcli.files.naming import COCO, FIFTYONE_FILES, PAGE, STDOUT
from ebcli.files.paths import without_secrets
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DETECTION, FACTORY, PAD, WHOLE
from ebcli.run.plan import CHOOSING, RunPlan, as_command
from ebcli.run.plan_parts import HEATMAPS, OutputOptions

if TYPE_CHECKING:
    from ebcli.files.records import Record
    from ebcli.files.sink import Sink
    from ebcli.run.pipeline import Run

_MOST_NAMED = 3  # inputs in a command; with more, the line would be long


def sink_of(plan: RunPlan, out: IO[str]) -> Sink | None:
    """Where the only picture of a run goes, a file or ``out``; None if results go to a directory.

    Raises:
        ConfigurationError: the file is not this program's own, or stdout is a terminal.
        OutputError: the file cannot be written.
    """
    from ebcli.files.sink import OneFile, Stdout

    output = plan.output
    if output.directory == STDOUT:
        if out.isatty():
            raise ConfigurationError(
                "stdout is a terminal: redirect it, as in > out.png, or name a file with -o"
            )
        return Stdout(partial(write_out, out=out, nl=False), output.format)
    if not output.is_file:
        return None
    path = output.directory
    if path.exists() and any(map(path.samefile, filter(os.path.exists, plan.inputs.images))):
        raise ConfigurationError(f"'{path}' is the image that is explained: choose another --output")
    file = OneFile(path, output.format, output.overwrite)
    file.check()
    return file


def execute(plan: RunPlan, options: Options, out: IO[str], sink: Sink | None = None) -> int:
    """Run a plan, print to ``out`` as the options of the command say, and return the exit status."""
    is_dry_run = plan.execution.dry_run
    if not is_dry_run:
        _check_summaries(plan.output)
    with sign_of_life(f"Loading {plan.model.name} ..."):
        from ebcli.run import engine

        work = engine.run(plan, sink)
    status = print_results(work, plan, options, out)
    if is_dry_run or not (work.sources or work.skipped):
        return status
    _write_summaries(work, plan)
    if status == 0 and out.isatty() and sys.stderr.isatty() and not options["as_json"]:
        hint = next_step(work, plan)
        if hint:
            note(hint)
    return status


def _check_summaries(output: OutputOptions) -> None:
    """Raise an error if a file that sums up a run cannot be written after it."""
    if output.report:
        from ebcli.files.directory import refuse_foreign_files

        refuse_foreign_files(output.directory, [PAGE], output.overwrite)
    if output.records is not None:
        from ebcli.gallery.exports import check_table

        check_table(output.records, output.overwrite)


def _write_summaries(work: Run, plan: RunPlan) -> None:
    """Write the files that sum up a run."""
    output = plan.output
    directory = output.directory
    configuration = work.common.configuration
    if output.annotations:
        _write_annotations(output, configuration)
    if output.records is not None:
        from ebcli.gallery.exports import write_table

        write_table(output.records, directory, work.configurations, plan.words is not None)
        note(f"Table: {display_path(output.records)}")
    if output.report:
        from ebcli.gallery.page import write_gallery

        workers = plan.execution.workers
        page = write_gallery(directory, work.options.style, workers, output.overwrite, plan.inputs.images)
        note(f"Gallery page: {display_path(page)}")


def _write_annotations(output: OutputOptions, configuration: str) -> None:
    from ebcli.files.directory import OutputFolder
    from ebcli.gallery.exports import coco_files, fiftyone_files

    directory = output.directory
    files = coco_files
    path = COCO
    if output.annotations == HEATMAPS:
        files = fiftyone_files
        path = FIFTYONE_FILES[0].parent
    with OutputFolder(directory, overwrite=True) as folder:
        folder.record()  # there may be no records yet
        folder.add(files(directory, configuration))
    note(f"Annotations: {display_path(directory / path)}")


def print_results(work: Run, plan: RunPlan, options: Options, out: IO[str]) -> int:
    """Print results to ``out`` as they come, as the command's options say, and return the exit status."""
    from tqdm import tqdm

    unit = _unit(work, plan)
    total = len(work.sources)
    if options["verbose"]:
        common = work.common
        head = "" if common.head is None else f"head {common.head}, "
        say(f"{common.model} ({common.weights}), {head}layer {common.layer}, on {work.device}")
        for path in work.skipped:
            say(f"{display_path(path)}: up to date, skipped")
    _print_choices(work, plan)
    printer = RecordPrinter(plan, options, out, is_only=total == 1)
    totals = _Totals(unit=unit, style=plan.style)
    counts = totals.counts
    start = time.perf_counter()
    hidden = is_quiet() or total < 2 or None  # None: tqdm shows the bar on a terminal only
    signals: list[int] = []  # after the first, images in progress are finished; the second aborts

    def stop(number: int, _frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        work.stopping.set()

    with handle_signals(stop):
        try:
            # images in progress are finished and recorded
            with (
                _bar_of_passes(work),
                _bar_of_frames(work),
                _answer_so_far(work, plan),
                closing(work.results) as results,
            ):
                for record in tqdm(results, total=total, unit=unit, leave=False, disable=hidden):
                    totals.add(record)
                    with tqdm.external_write_mode():
                        printer.print(record)
            if counts["done"] > 1 and not signals:
                _note_speed(counts["done"], unit, time.perf_counter() - start)
        finally:
            if total > 1:
                totals.print_sufficiency()
            totals.print_evidence()
            totals.print_accuracy()
            counts |= work.counts
            mapless = totals.mapless
            if plan.maps.only is None:
                mapless = Counter()
            _summarize(work, plan, counts, mapless, is_interrupted=bool(signals))
    if signals:
        return 128 + signals[0]
    if counts["failed"] or totals.num_incomplete:
        return SOME_FAILED
    if not (counts["done"] or counts["planned"] or counts["not said"] or work.skipped or plan.inputs.shard):
        raise EbcliError(_nothing_found(plan, counts["not an image"], work.reader.unit))
    return 0


@contextmanager
def _bar_of_passes(work: Run) -> Iterator[None]:
    """Say how many forward passes an image takes, and show them on the terminal, if there are many."""
    explainer = work.explainer
    passes = explainer.passes if explainer else {}
    if explainer is None or not passes:
        yield
        return
    from tqdm import tqdm

    for name, count in passes.items():
        note(f"{name} takes {count:,} forward passes for each {work.reader.unit}")
    with tqdm(unit="pass", leave=False, disable=is_quiet() or None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        explainer.on_passes = show
        yield


@contextmanager
def _bar_of_frames(work: Run) -> Iterator[None]:
    """Show on the terminal how many frames of a video are explained, and how long the rest will take."""
    from tqdm import tqdm

    bars: dict[str, tqdm[Any]] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in bars:
            for bar in bars.values():
                bar.close()
            bars[name] = tqdm(desc=display_path(name), unit="frame", leave=False, disable=is_quiet() or None)
        bars[name].total = total
        bars[name].update(done - bars[name].n)

    def note_resumed(name: str) -> None:
        note(f"{display_path(name)}: resumes where an earlier run ended")

    work.on_frames = show
    work.on_resume = note_resumed
    try:
        yield
    finally:
        for bar in bars.values():
            bar.close()


@contextmanager
def _answer_so_far(work: Run, plan: RunPlan) -> Iterator[None]:
    """Show on the terminal what a vision-language model says, while it does."""
    explainer = work.explainer
    if explainer is None or plan.words is None:
        yield
        return
    from tqdm import tqdm

    with tqdm(bar_format="{desc}", leave=False, disable=is_quiet() or None) as line:

        def show(answer: str) -> None:
            room = shutil.get_terminal_size().columns - 1
            line.set_description_str(one_line(answer.strip())[-room:])

        explainer.on_text = show
        yield


def _unit(work: Run, plan: RunPlan) -> str:
    """What is counted: inputs, or answers about them."""
    return work.reader.unit if plan.words is None else "answer"


@dataclass(kw_only=True)
class _Totals:
    """What is said of all records together.

    Attributes:
        unit: what an input is called.
        style: how maps are drawn.
        counts: how many records have each status.
        predictions: how many of these are right, and how many wrong.
        evidence: of how many maps only the score is poor, see ``ClassRecord``.
        tests: how many maps have each obstacle, see ``Sufficiency``; the empty one if they suffice.
        unlooked: how many words have hardly any evidence in the picture, and how many have more.
        mapless: how many images have no map, by what is said of their prediction.
        num_incomplete: how many videos could be explained in part only.
    """

    unit: str
    style: DrawingStyle
    counts: Counter[str] = field(default_factory=Counter)
    predictions: Counter[bool] = field(default_factory=Counter)
    evidence: Counter[bool | None] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)
    unlooked: Counter[bool] = field(default_factory=Counter)
    mapless: Counter[str] = field(default_factory=Counter)
    num_incomplete: int = 0

    def add(self, record: Record) -> None:
        self.counts[record.status] += 1
        if record.problem:
            self.num_incomplete += 1
        if record.is_without_maps:
            self.mapless[record.prediction_words] += 1
        if record.label is not None:
            self.predictions[record.label == record.predicted] += 1
        for class_ in record.classes:
            if class_.share is not None:
                self.unlooked[class_.evidence == HARDLY_ANY] += 1
            elif self.style.name != ATLAS:  # which compares also the unlikely
                self.evidence[class_.only_score_is_poor] += 1
            if class_.sufficiency is not None:
                self.tests[Sufficiency.from_record(class_.sufficiency).obstacle] += 1

    def print_sufficiency(self) -> None:
        """Print how many maps were not shown to suffice."""
        reasons = self.tests.keys() - {""}
        if not reasons:
            return
        total = self.tests.total()
        reason = min(reasons)
        if len(reasons) > 1:
            reason = "the pictures, the page and --verbose say why"
        note(f"sufficiency not shown for {total - self.tests['']} of {total} maps: {reason}")

    def print_evidence(self) -> None:
        """Print how many maps have hardly any evidence."""
        if self.unlooked[True]:
            count = f"{self.unlooked[True]} of {plural(self.unlooked.total(), 'word')}"
            note(f"Hardly any evidence in the picture: {count}")
        total = self.evidence.total()
        num_faint = total - self.evidence[None]
        if not num_faint:
            return
        subject = "The map has"
        noise = "it is about as strong as a map of noise"
        ending = ". It is drawn faint"
        if total > 1:
            subject = f"{num_faint} of {total} maps have"
            noise = "they are about as strong as maps of noise"
            ending = ". They are drawn faint"
        if self.style.vmax is not None:
            ending = ""
        num_unlikely = self.evidence[True]
        words = noise
        if num_unlikely == num_faint:
            words = "the score is below chance"
        elif num_unlikely:
            words = f"{num_faint - num_unlikely} as strong as maps of noise, {num_unlikely} with a score below chance"
        note(f"{subject} hardly any evidence: {words}{ending}")

    def print_accuracy(self) -> None:
        """Print how many predictions were right."""
        count = self.predictions.total()
        if count:
            right = self.predictions[True]
            share = f"{right} of {count} labeled {self.unit}s"
            note(f"Accuracy {right / count:.3f}: {share} classified correctly")


def _note_speed(count: int, unit: str, seconds: float) -> None:
    rate = f"{seconds / count:.1f} s per {unit}"
    if seconds < count:
        rate = f"{count / seconds:.1f} {unit}s/s"
    note(f"{count} {unit}s in {seconds:.1f} s, {rate}")


def _print_choices(work: Run, plan: RunPlan) -> None:
    """Say what the run does where the user may expect something else."""
    common = work.common
    end = work.options.style.vmax
    if common.weights == FACTORY:
        note(f"{common.model} has the weights that its factory returns; --weights FILE loads a checkpoint")
    if common.head is not None and plan.model.head is None:
        note(
            f"{common.model} returns several outputs: {common.head} is explained; --head NAME chooses another"
        )
    # detectors were trained on padded images
    if plan.model.preprocessing.fit == WHOLE and common.fit == PAD and work.task != DETECTION:
        tiles = "--tiles 1 explains long ones in squares"
        note(f"{common.model} takes images of one size only, so they are padded (--fit pad); {tiles}")
    if end is not None and end != plan.style.vmax:
        note(f"All maps share one scale; --scale {end:g} gives the same scale without sampling")


def _nothing_found(plan: RunPlan, num_others: int, unit: str) -> str:
    """That there are no images or videos, and what to do about it."""
    inputs = plan.inputs
    place = f"the {len(inputs.images)} inputs"
    if len(inputs.images) == 1:
        place = f"'{display_path(without_secrets(inputs.images[0])[0])}'"
    problem = f"no {unit}s found in {place}"
    if num_others:
        problem += f", only {plural(num_others, 'other file')}"
    if inputs.include or inputs.exclude:
        return f"{problem}: change --include or --exclude"
    if unit != "image":
        return f"{problem}: name a {unit}, or a directory that holds some, or frames numbered without gaps"
    return f"{problem}: name an image, or a directory that holds some"


def _summarize(
    work: Run, plan: RunPlan, counts: Counter[str], mapless: Counter[str], is_interrupted: bool
) -> None:
    """Print one line, unless everything is done and that is all there is to say.

    Args:
        work: the run.
        plan: its plan.
        counts: the number of inputs by status.
        mapless: of those that are done, the number of inputs that were to have no map, by the reason.
        is_interrupted: whether the run was interrupted.
    """
    unit = _unit(work, plan)
    shard = plan.inputs.shard
    is_silent = is_quiet() and not plan.execution.dry_run
    num_skipped = len(work.skipped)
    num_others = counts["not an image"]
    total = len(work.sources)
    if shard and not total and not num_skipped:
        if not is_silent:
            say(f"Shard {shard[0]}/{shard[1]} has none of the {unit}s")
        return
    if num_others == total and not (is_interrupted or num_skipped):  # the error says so
        return
    remaining = total - counts.total()
    if not (is_interrupted or counts["failed"] or remaining):
        is_plain = not (counts["planned"] or counts["not said"] or num_skipped or num_others or mapless)
        if is_silent or is_plain:
            return
    total += num_skipped - num_others
    parts = {
        "to process": counts["planned"],
        "done": counts["done"] - mapless.total(),
        **{f"{reason} (no map)": count for reason, count in mapless.items()},
        "not said": counts["not said"],
        "up to date": num_skipped,
        "failed": counts["failed"],
        "left": remaining,
    }
    words = ", ".join(f"{count} {noun}" for noun, count in parts.items() if count) or "none done"
    message = f"{plural(total, unit)}: {words}"
    if num_others:
        message += f"; {plural(num_others, 'other file')} skipped"
    if is_interrupted:
        message = f"Interrupted. {message}"
        if remaining > 0 and total > 1:
            message += ". To resume, repeat the command with --skip-existing"
    say(message)


def next_step(work: Run, plan: RunPlan) -> str:
    """What shows more of the photos that were explained, as a command; empty if there is none."""
    images = plan.inputs.images
    output = plan.output
    model = plan.model
    if work.reader.unit != "image" or not all(map(os.path.exists, images)):
        return ""
    names = [str(image) for image in images if len(images) <= _MOST_NAMED]
    is_classified = work.task == CLASSIFICATION and not model.descriptions
    if len(work.sources) + len(work.skipped) > 1:
        if not output.report:
            words = ["eb-saliency", "report", str(output.directory), *names]
            return f"All maps on one page: {shlex.join(words)}"
        if plan.inputs.labels is None and is_classified:
            return "Which predictions are wrong? Add --labels FILE, or --labels folders"
    elif is_classified and not any(plan.values.get(name) for name in CHOOSING):
        with suppress(ConfigurationError):  # this run has options that exclude it
            return f"More classes: {as_command(plan.replace(top_k=3, panel=output.is_file or output.panel))}"
    # the page gets neither weights nor preprocessing
    if plan.words is not None or model != RunPlan.from_values(images=images, model=model.name).model:
        return ""
    if model.name != BUNDLED:
        names[:0] = ["--model", model.name]
    return f"Any class, any layer, in the browser: {shlex.join(['eb-saliency', 'serve', *names])}"
