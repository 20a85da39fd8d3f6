"""A plan carried out: where its results go, a line for each on the terminal, a summary, and files that sum them up."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import IO, TYPE_CHECKING

import click

from ebcli.cli.console import (
    SOME_FAILED,
    display_path,
    handle_signals,
    note,
    one_line,
    say,
    say_error,
    sign_of_life,
    write_out,
)
from ebcli.cli.options import Options
from ebcli.drawing.style import ATLAS, DrawingStyle
from ebcli.errors import ConfigurationError, EbcliError, plural
from ebcli.files.naming import COCO, FIFTYONE_FILES, PAGE, STDOUT
from ebcli.files.paths import without_secrets
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, CROP, DETECTION, FACTORY, PAD, WHOLE
from ebcli.run.plan import CHOOSING, RunPlan, as_command
from ebcli.run.plan_parts import HEATMAPS, MapOptions, OutputOptions

if TYPE_CHECKING:
    from ebcli.files.records import ClassRecord, Record
    from ebcli.files.sink import Sink
    from ebcli.run.pipeline import Run

_LOST_SHOWN = 3
_MOST_NAMED = 3  # inputs in a command; with more, the line would be long
_MAX_RANKED = 5  # classes
_LITTLE = 0.4  # of an image; the center crop of a 4:3 photo has 0.57
_WHOLE = "--fit whole explains all of it, which changes scores and perhaps the prediction"


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
            raise ConfigurationError("stdout is a terminal: redirect it, as in > out.png, or name a file with -o")
        return Stdout(partial(write_out, out=out, nl=False), output.format)
    if not output.is_file:
        return None
    if output.directory.exists() and any(map(output.directory.samefile, filter(os.path.exists, plan.inputs.images))):
        raise ConfigurationError(f"'{output.directory}' is the image that is explained: choose another --output")
    file = OneFile(output.directory, output.format, output.overwrite)
    file.check()
    return file


def execute(plan: RunPlan, options: Options, out: IO[str], sink: Sink | None = None) -> int:
    """Run a plan, print to ``out`` as the options of the command say, and return the exit status."""
    output = plan.output
    if plan.execution.dry_run:
        output = replace(output, report=False, records=None, annotations=None)
    if output.report:
        from ebcli.files.directory import refuse_foreign_files
        from ebcli.gallery.page import write_gallery

        refuse_foreign_files(output.directory, [PAGE], output.overwrite)
    if output.records is not None:
        from ebcli.gallery.exports import check_table, write_table

        check_table(output.records, output.overwrite)
    with sign_of_life(f"Loading {plan.model.name} ..."):
        from ebcli.run import engine

        work = engine.run(plan, sink)
    status = print_results(work, plan, options, out)
    if not (work.sources or work.skipped):
        return status
    if output.annotations:
        _write_annotations(output, work.common.configuration)
    if output.records is not None:
        write_table(output.records, output.directory, work.common.configuration)
        note(f"Table: {display_path(output.records)}")
    if output.report:
        workers = plan.execution.workers
        page = write_gallery(output.directory, work.options.style, workers, output.overwrite, plan.inputs.images)
        note(f"Gallery page: {display_path(page)}")
    is_watched = out.isatty() and sys.stderr.isatty() and not (options["as_json"] or plan.execution.dry_run)
    hint = next_step(work, plan) if is_watched and status == 0 else ""
    if hint:
        note(hint)
    return status


def _write_annotations(output: OutputOptions, configuration: str) -> None:
    from ebcli.files.directory import OutputFolder
    from ebcli.gallery.exports import coco_files, fiftyone_files

    is_dataset = output.annotations == HEATMAPS
    files = fiftyone_files if is_dataset else coco_files
    with OutputFolder(output.directory, overwrite=True) as folder:
        folder.record()  # there may be no records yet
        folder.add(files(output.directory, configuration))
    path = FIFTYONE_FILES[0].parent if is_dataset else COCO
    note(f"Annotations: {display_path(output.directory / path)}")


def print_results(work: Run, plan: RunPlan, options: Options, out: IO[str]) -> int:
    """Print results to ``out`` as they come, as the command's options say, and return the exit status."""
    from tqdm import tqdm

    quiet = options["quiet"]
    unit = work.reader.unit
    total = len(work.sources)
    if options["verbose"]:
        common = work.common
        say(f"{common.model} ({common.weights}), layer {common.layer}, on {work.device}")
        for path in work.skipped:
            say(f"{display_path(path)}: up to date, skipped")
    _print_choices(work, plan)
    totals = _Totals(unit, plan.style)
    counts = totals.counts
    start = time.perf_counter()
    hidden = True if quiet or total < 2 else None  # None: tqdm shows the bar on a terminal only
    interrupted: list[int] = []  # by signals; after the first, images in progress are finished; the second aborts

    def stop(number: int, _frame: object) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(number)
        work.stopping.set()

    with handle_signals(stop):
        try:
            with closing(work.results) as results:  # images in progress are finished and recorded
                for record in tqdm(results, total=total, unit=unit, leave=False, disable=hidden):
                    totals.add(record)
                    with tqdm.external_write_mode():
                        _print_record(record, options, plan, out, is_only=total == 1)
            if counts["done"] > 1 and not interrupted:
                _note_speed(counts["done"], unit, time.perf_counter() - start)
        finally:
            if total > 1:
                totals.print_sufficiency()
            totals.print_evidence()
            totals.print_accuracy()
            counts |= work.counts
            _summarize(work, counts, bool(interrupted), quiet and not plan.execution.dry_run, plan.inputs.shard)
    if interrupted:
        return 128 + interrupted[0]
    if counts["failed"]:
        return SOME_FAILED
    if not (counts["done"] or counts["planned"] or work.skipped or plan.inputs.shard):
        raise EbcliError(_nothing_found(plan, counts["not an image"], unit))
    return 0


class _Totals:
    """What is said of all records together.

    Args:
        unit: what an input is called.
        style: how maps are drawn.

    Attributes:
        counts: how many records have each status.
    """

    def __init__(self, unit: str, style: DrawingStyle) -> None:
        self._unit = unit
        self._style = style
        self.counts: Counter[str] = Counter()
        self._are_right: list[bool] = []  # whether each prediction is right
        self._faint: list[bool | None] = []  # for each map
        self._suffice: list[bool] = []  # whether each tested map does

    def add(self, record: Record) -> None:
        self.counts[record.status] += 1
        if record.label is not None:
            self._are_right.append(record.label == record.predicted)
        for class_ in record.classes:
            if self._style.name != ATLAS:  # which compares also the unlikely
                self._faint.append(class_.only_score_is_poor)
            if class_.sufficiency is not None:
                self._suffice.append(class_.sufficiency["suffices"])

    def print_sufficiency(self) -> None:
        """Print how many maps were not shown to suffice."""
        if not all(self._suffice):
            subject = f"{self._suffice.count(False)} of {len(self._suffice)} maps"
            note(f"sufficiency not shown for {subject}: the pictures, the page and --verbose say why")

    def print_evidence(self) -> None:
        """Print how many maps have hardly any evidence."""
        by_score = [is_poor for is_poor in self._faint if is_poor is not None]
        if not by_score:
            return
        subject = "The map has"
        noise = "it is about as strong as a map of noise"
        ending = ". It is drawn faint"
        if len(self._faint) > 1:
            subject = f"{len(by_score)} of {len(self._faint)} maps have"
            noise = "they are about as strong as maps of noise"
            ending = ". They are drawn faint"
        if self._style.vmax is not None:
            ending = ""
        reasons = {False: noise, True: "the score is below chance"}
        reason_words = ", or ".join(words for reason, words in reasons.items() if reason in by_score)
        note(f"{subject} hardly any evidence: {reason_words}{ending}")

    def print_accuracy(self) -> None:
        """Print how many predictions were right."""
        if self._are_right:
            right = sum(self._are_right)
            count = len(self._are_right)
            note(f"Accuracy {right / count:.3f}: {right} of {count} labeled {self._unit}s classified correctly")


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
    if plan.model.preprocessing.fit == WHOLE and common.fit == PAD and work.task != DETECTION:  # which was trained so
        tiles = "--tiles 1 explains long ones in squares"
        note(f"{common.model} takes images of one size only, so they are padded (--fit pad); {tiles}")
    if end is not None and end != plan.style.vmax:
        note(f"All maps share one scale; --scale {end:g} gives the same scale without sampling")


def _nothing_found(plan: RunPlan, num_others: int, unit: str) -> str:
    """That there are no images or videos, and what to do about it."""
    images = plan.inputs.images
    place = f"the {len(images)} inputs" if len(images) > 1 else f"'{display_path(without_secrets(images[0])[0])}'"
    problem = f"no {unit}s found in {place}"
    if num_others:
        problem += f", only {plural(num_others, 'other file')}"
    if plan.inputs.include or plan.inputs.exclude:
        return f"{problem}: change --include or --exclude"
    if unit != "image":
        return f"{problem}: name a {unit}, or a directory that holds some, or frames numbered without gaps"
    return f"{problem}: name an image, or a directory that holds some"


def _why_no_map(maps: MapOptions) -> str:
    """Why an image has no map, and what finds more."""
    if maps.above is not None:
        return f"nothing scores above {maps.above:g}"
    finding = f"none of the targets {', '.join(maps.targets)} is" if maps.targets else "nothing is"
    if maps.where is not None:
        return f"{finding} detected"
    return f"{finding} found; a lower --score or --above finds more"


def _print_record(record: Record, options: Options, plan: RunPlan, out: IO[str], *, is_only: bool) -> None:
    name = display_path(record.input)
    verbose = options["verbose"]
    if record.error is not None:
        say_error(record.error, label=name)
    if record.status == "not an image":
        if verbose:
            say(f"{name}: not an image, skipped")
        return
    if record.status == "done" and not record.classes:
        note(f"{name}: no map, as {_why_no_map(plan.maps)}")
    if record.label != record.predicted:
        note(f"{name}: {_misclassification(record)}")
    _print_maps(record, name, verbose, is_only)
    _print_hints(record, name, verbose, plan)
    if options["as_json"]:
        write_out(record.line(), out)
        return
    paths = [record.input] if record.status == "planned" else record.output
    titles: list[str] = []
    end = b"\n"
    if options["null"]:  # programs read paths alone
        end = b"\0"
    elif out.isatty() or plan.maps.at:
        titles = _titles(record, plan)
    for path, title in zip(paths, chain(titles, repeat("")), strict=False):
        # bytes: not every file name is valid text
        write_out(os.fsencode(path) + one_line(title).encode() + end, out, nl=False)


def _print_maps(record: Record, name: str, verbose: bool, is_only: bool) -> None:
    """Say what is known of each map; of usual ones only if verbose."""
    has_layers = len({class_.layer for class_ in record.classes}) > 1
    for class_ in record.classes:
        title = _map_title(class_, has_layers)
        if verbose:
            facts = [f"{name}: {title}", f"score {class_.score:.3f}"]
            if class_.mass is not None:
                facts.append(f"mass {class_.mass:.3f}")
            say(one_line(", ".join([*facts, *class_.evidence_words, *_losses(class_)])))
        if class_.sufficiency is not None and (verbose or is_only):
            note(f"{name}: {class_.sufficiency['words']}")
        if class_.blank:
            note(f"{name}: the map of {title} is blank")


def _map_title(class_: ClassRecord, has_layers: bool) -> str:
    """What a map is about, in words."""
    title = f"class {class_.index}"
    if class_.name:
        title += f" ({class_.name})"
    if has_layers:
        title += f" at {class_.layer}"
    return f"{title} against {class_.against}" if class_.against else title


def _titles(record: Record, plan: RunPlan) -> list[str]:
    """What is printed behind the path of each picture."""
    labels = [class_.name or f"class {class_.index}" for class_ in record.classes]
    pairs = list(zip(record.classes, labels, strict=True))
    if plan.maps.at is not None and record.status == "done":
        pairs.sort(key=lambda pair: -(pair[0].share_at or 0))
        shares = [f"{label} {class_.share_at:.2f}" for class_, label in pairs[:_MAX_RANKED] if class_.share_at]
        return ["  " + (", ".join(shares) or "no class has clear evidence there")]
    if plan.output.panel:
        return []
    pairs = [(class_, f"{label} against {class_.against}" if class_.against else label) for class_, label in pairs]
    return [f"  {label}, {class_.score:.3f}" for class_, label in pairs]


def _print_hints(record: Record, name: str, verbose: bool, plan: RunPlan) -> None:
    """Say what of an image is not explained, and what explains it; of the first such image only, unless verbose."""
    hints = {}
    if record.pages > 1:
        hints["pages"] = f"only the first of its {record.pages} pages or frames is explained"
    if record.tiles and plan.model.preprocessing.tiles is None:
        hints["tiles"] = f"much longer than wide, so it is explained in {record.tiles} tiles"
    if record.tiles and plan.output.raw:
        hints["raw"] = "its raw file has the joined maps, but no relevance, which each tile has on its own"
    if record.tiles and plan.maps.sufficiency:
        hints["test"] = "it is explained in tiles, so sufficiency is not tested; --fit pad explains it in one piece"
    if record.seen < _LITTLE and record.clips is None:
        hints["crop"] = f"the center crop has {record.seen:.0%} of the image; {_WHOLE}"
    elif record.fit == CROP and any(class_.at_border for class_ in record.classes):
        hints["border"] = f"a map peaks at the border of the center crop; {_WHOLE}"
    topics = click.get_current_context().meta.setdefault("ebcli.hints", set())
    for topic, hint in hints.items():
        if verbose:
            note(f"{name}: {hint}")
        elif topic not in topics:
            note(f"{name}: {hint} (--verbose says so of every image)")
        topics.add(topic)


def _losses(class_: ClassRecord) -> list[str]:
    """The operations at which the most probability was lost."""
    worst = sorted((class_.losses or {}).items(), key=lambda item: -item[1])
    parts = [f"{loss:.3f} in {site.partition(' in ')[2] or site}" for site, loss in worst if loss >= 0.0005]
    if not parts:
        return []
    if len(parts) > _LOST_SHOWN:
        parts[_LOST_SHOWN:] = ["among others"]
    return [f"lost {', '.join(parts)}"]


def _misclassification(record: Record) -> str:
    """The true class and the predicted one, with its score if its map was asked for."""
    names: dict[int | None, str | None] = {class_.index: class_.name for class_ in record.classes}
    label, predicted = (names.get(k) or f"class {k}" for k in (record.label, record.predicted))
    scores = [f" ({class_.score:.3f})" for class_ in record.classes if class_.index == record.predicted]
    return f"labeled {label}, predicted {predicted}{scores[-1] if scores else ''}"


def _summarize(work: Run, counts: Counter[str], interrupted: bool, quiet: bool, shard: tuple[int, int] | None) -> None:
    """Print one line, unless everything is done and that is all there is to say."""
    num_others = counts["not an image"]
    unit = work.reader.unit
    total = len(work.sources)
    if shard and not total and not work.skipped:
        if not quiet:
            say(f"Shard {shard[0]}/{shard[1]} has none of the {unit}s")
        return
    if num_others == total and not (interrupted or work.skipped):  # the error says so
        return
    left = total - counts.total()
    if not (interrupted or counts["failed"] or left):
        is_plain = not (counts["planned"] or work.skipped or num_others)
        if quiet or is_plain:
            return
    total += len(work.skipped) - num_others
    parts = {"to process": counts["planned"], "done": counts["done"], "up to date": len(work.skipped)}
    parts |= {"failed": counts["failed"], "left": left}
    words = ", ".join(f"{count} {noun}" for noun, count in parts.items() if count) or "none done"
    message = f"{plural(total, unit)}: {words}"
    if num_others:
        message += f"; {plural(num_others, 'other file')} skipped"
    if interrupted:
        message = f"Interrupted. {message}"
    if interrupted and left > 0 and total > 1:
        message += ". To resume, repeat the command with --skip-existing"
    say(message)


def next_step(work: Run, plan: RunPlan) -> str:
    """What shows more of the photos that were explained, as a command; empty if there is none."""
    images = plan.inputs.images
    output = plan.output
    model = plan.model
    if plan.words or work.reader.unit != "image" or not all(map(os.path.exists, images)):
        return ""
    names = [str(image) for image in images if len(images) <= _MOST_NAMED]
    is_classified = work.task == CLASSIFICATION and not model.descriptions
    if len(work.sources) + len(work.skipped) > 1:
        if not output.report:
            return f"All maps on one page: {shlex.join(['eb-saliency', 'report', str(output.directory), *names])}"
        if plan.inputs.labels is None and is_classified:
            return "Which predictions are wrong? Add --labels FILE, or --labels folders"
    elif is_classified and not any(plan.values.get(name) for name in CHOOSING):
        in_one_figure = {"panel": True} if output.is_file else {}
        with suppress(ConfigurationError):  # this run has options that exclude it
            return f"More classes: {as_command(plan.replace(top_k=3, **in_one_figure))}"
    # the page gets neither weights nor preprocessing
    if model != RunPlan.from_values(images=images, model=model.name).model:
        return ""
    if model.name != BUNDLED:
        names[:0] = ["--model", model.name]
    return f"Any class, any layer, in the browser: {shlex.join(['eb-saliency', 'serve', *names])}"
