"""What the user reads of a run: results on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebcli.errors import EbcliError

if TYPE_CHECKING:
    from ebcli.cli.doctor import Finding
    from ebcli.files.records import ClassRecord, Record
    from ebcli.run.engine import Run
    from ebcli.run.plan import RunPlan

_LOSSES_SHOWN = 3

SOME_FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def say(message: str) -> None:
    """A line on stderr."""
    click.echo(message, err=True)


def report(work: Run, plan: RunPlan, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Read the results as they come and print them; exit with a status unless all is done."""
    from tqdm import tqdm

    if verbose:
        say(f"{work.model} ({work.weights}), layer {work.layer}, on {work.device}")
        for path in work.already:
            say(f"{_shown(path)}: already done")
    if plan.vmax is None and work.vmax is not None and not quiet:
        say(f"All maps are drawn on one scale: --vmax {work.vmax:g} gives the same without looking at a sample first")
    counts: Counter[str] = Counter()
    hidden = True if quiet or work.total < 2 else None  # None: tqdm shows the bar on a terminal only
    with _interrupts_stop(work.stopping) as interrupted:
        try:
            for record in tqdm(work.results, total=work.total, unit="image", leave=False, disable=hidden):
                counts[record.status] += 1
                with tqdm.external_write_mode():
                    _report_one(record, as_json, quiet, verbose)
        finally:
            _summarise(work, counts, bool(interrupted), quiet and not plan.dry_run)
    if work.page is not None and not quiet:
        say(f"The page of all results: {_shown(work.page)}")
    if interrupted:
        sys.exit(128 + interrupted[0])
    if counts["failed"]:
        sys.exit(SOME_FAILED)
    if not (counts["done"] or counts["planned"] or work.already or plan.shard):
        raise EbcliError("there is no image among the files")


def report_findings(findings: Iterable[Finding], as_json: bool) -> None:
    """Print the lines of the self-check as they come; exit with a status unless all is well."""
    failed = False
    for finding in findings:
        failed = failed or not finding.ok
        line = f"{'ok' if finding.ok else 'FAILED':<7} {finding.check:<32} {_shown(finding.found)}"
        click.echo(json.dumps(asdict(finding)) if as_json else line)
    if failed:
        sys.exit(SOME_FAILED)


def _report_one(record: Record, as_json: bool, quiet: bool, verbose: bool) -> None:
    name = _shown(record.input)
    if record.error is not None:
        say(f"{name}: {record.error}")
    if record.status == "not an image":
        if verbose:
            say(f"{name}: left out, it is not an image")
        return
    several = len({shown.layer for shown in record.classes}) > 1
    for shown in record.classes:
        title = f"class {shown.index}" + f" ({shown.name})" * bool(shown.name) + f" at {shown.layer}" * several
        if verbose:
            say(f"{name}: {title}, probability {shown.score:.3f}, mass {shown.mass:.3f}{_lost(shown)}")
        if shown.blank and not quiet:
            say(f"{name}: the map of {title} is empty, so the picture shows none")
    if as_json:
        click.echo(record.line())
        return
    for path in [record.input] if record.status == "planned" else record.output:
        click.echo(os.fsencode(path))  # bytes: not every file name is valid text


def _lost(shown: ClassRecord) -> str:
    """Where most of what is missing from the mass got lost."""
    worst = sorted((shown.losses or {}).items(), key=lambda item: -item[1])[:_LOSSES_SHOWN]
    said = [f"{lost:.3f} in {site.partition(' in ')[2] or site}" for site, lost in worst if lost >= 0.0005]
    return f", lost {', '.join(said)}" * bool(said)


def _summarise(work: Run, counts: Counter[str], interrupted: bool, quiet: bool) -> None:
    """One line where there is more to say than that everything was done."""
    others = counts["not an image"]
    left = work.total - counts.total()
    said = {
        "planned": counts["planned"],
        "done": counts["done"],
        "already done": len(work.already),
        "failed": counts["failed"],
        "left": left,
    }
    trouble = interrupted or counts["failed"] or left
    if trouble or (not quiet and (counts["planned"] or work.already or others)):
        total = work.total + len(work.already) - others
        parts = ", ".join(f"{count} {what}" for what, count in said.items() if count) or "none done"
        say(
            ("Interrupted. " if interrupted else "")
            + f"Of {total} image{'s' * (total != 1)}: {parts}"
            + f"; {others} other file{'s are no images' if others > 1 else ' is no image'}" * bool(others)
        )


@contextmanager
def _interrupts_stop(stopping: threading.Event) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM lets what has begun come to its end, the second does not; yields the first."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield caught
        return

    def stop(number: int, _frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(path: Path | str) -> str:
    name = click.format_filename(path)
    return name if name.isprintable() else repr(name)  # line breaks and escape sequences are shown, not obeyed


@contextmanager
def plain_errors(debug: bool) -> Iterator[None]:
    """One sentence on stderr and the exit status for whatever goes wrong; the traceback with ``--debug``."""
    try:
        yield
    except KeyboardInterrupt:
        say("Interrupted.")
        sys.exit(INTERRUPTED)
    except (click.exceptions.Exit, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of stdout has gone; Click ends the program quietly
        if debug:
            import traceback

            say(traceback.format_exc().rstrip())
        elif isinstance(error, EbcliError):
            say(f"Error: {error}")
        else:
            reason = " ".join(str(error).split())
            say(f"Error: {type(error).__name__}: {reason} (unexpected; --debug shows where)")
        sys.exit(MISUSED)


@contextmanager
def plain_warnings(quiet: bool) -> Iterator[None]:
    """Warnings as one line each on stderr, without the source line that raised them."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        else:
            # Pillow's warning at half the size that it refuses; it would not name the file
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
            warnings.showwarning = lambda message, *_, **__: say(f"Warning: {message}")
        yield
