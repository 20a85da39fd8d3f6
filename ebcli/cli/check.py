"""The command ``check``: it repeats a run, and compares the maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import Argument

from ebcli.cli.click_types import DIRECTORY, PATH
from ebcli.cli.commands import alter_option, of_run, plan_of
from ebcli.cli.console import SOME_FAILED, display_path, note, one_line, write_out, write_path
from ebcli.cli.execution import execute
from ebcli.cli.options import Options, option
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, import_optional
from ebcli.models.sources import is_network_file
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import RunPlan, values_of
from ebcli.run.plan_parts import OutputOptions

if TYPE_CHECKING:
    from ebcli.gallery.comparison import Comparison

_SUITE = "eb-saliency check"
_OF_BASELINE = ("model", "weights", "head", "layer", "device", "batch_size", "workers")
_LIMITS = ("min_correlation", "min_overlap", "max_shift", "max_changed")
_PATHS_ONLY = {"verbose": False, "as_json": False, "null": False}  # of options of a run

_limit = partial(option, "Limits", metavar="N", type=float)


@of_run(
    "check",
    Argument(["baseline"], type=DIRECTORY),
    _limit("--min-correlation", "Least correlation of two maps.", default=0.9),
    _limit(
        "--min-overlap",
        "Least overlap (intersection over union) of the strongest fifths of their pixels.",
        default=0.7,
    ),
    _limit("--max-shift", "Largest distance of their peaks, as a share of the diagonal.", default=0.1),
    _limit("--max-changed", "Largest share of images whose first class may change.", default=0.0),
    alter_option(
        "output", metavar="DIR", default=None, help="Keep the new maps here, with a page that compares them."
    ),
    option("Output", "--junit FILE", "Also write JUnit's XML.", type=PATH),
    *(alter_option(name, default=None, show_default="as in BASELINE") for name in _OF_BASELINE),
    options=["overwrite"],
)
def check(baseline: Path, output: Path | None, junit: Path | None, overwrite: bool, **options: Any) -> int:
    """Repeat a run and compare its maps.

    BASELINE is the directory of a run with --raw. Use only runs that you trust, because settings.toml is read like
    --config. --model or --weights names another network; a checkpoint given to --model is loaded into the network of
    BASELINE. Other options come from BASELINE. Prints the maps that differ too much, worst first.

    Exit status: 0 if all maps agree, 1 if some do not.
    """
    from ebcli.evaluate import rank_correlation
    from ebcli.files.private import private_directory
    from ebcli.files.sink import check_file
    from ebcli.gallery.comparison import Limits, changes, comparison_of, read_pairs, write_comparison

    limits = Limits(*map(options.__getitem__, _LIMITS))
    plan = plan_of(baseline)
    _check_directories(baseline, output)
    if junit is not None:
        check_file(junit, overwrite, lambda: _SUITE.encode() in junit.read_bytes(), "--junit")
    page = None
    with private_directory() as temporary:
        directory = output or temporary / "maps"
        repetition = _repeat(plan, options, output=directory, raw=True, overwrite=overwrite)
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            status = execute(repetition, _PATHS_ONLY, nowhere)
        if status not in (0, SOME_FAILED):
            return status
        comparisons = [comparison_of(pair, limits) for pair in read_pairs(baseline, directory)]
        if comparisons and output is not None:
            pairs = read_pairs(baseline, directory)  # again: they need much memory
            page = write_comparison(directory, pairs, rank_correlation, plan.inputs.images, overwrite)
        comparisons += changes(baseline, directory, limits, {comparison.input for comparison in comparisons})
    comparisons.sort(key=lambda item: (not item.problems, item.correlation, item.input))
    wrong = [comparison for comparison in comparisons if comparison.problems]
    for comparison in wrong:
        write_out(one_line(comparison.words))
    if page is not None:
        write_path(page)
    elif output is not None:
        note("No page: no image has maps of one class in both runs; a baseline with --target CLASS has them")
    if junit is not None:
        _write_junit(junit, comparisons)
    equal = sum(comparison.equal for comparison in comparisons)
    note(f"{len(comparisons) - len(wrong)} of {len(comparisons)} agree, {equal} of them exactly")
    return SOME_FAILED if wrong else 0


def _check_directories(baseline: Path, output: Path | None) -> None:
    """Raise ConfigurationError if the maps of a baseline cannot be compared with those of another directory."""
    from ebcli.gallery.comparison import latest_records

    outputs = chain.from_iterable(record.output for record in latest_records(baseline).values())
    if not any(path.endswith(".npz") for path in outputs):
        raise ConfigurationError(f"'{baseline}' has no raw maps: repeat that run with --raw")
    if output is not None:
        if os.path.realpath(output) == os.path.realpath(baseline):
            raise ConfigurationError(f"'{baseline}' would be compared with itself: choose another --output")
        import_optional("scipy.stats", "scipy")  # for the page


def _repeat(plan: RunPlan, options: Options, **changes: Any) -> RunPlan:
    """The plan of a baseline as far as maps depend on it, with other values."""
    changes |= {name: options[name] for name in _OF_BASELINE if options[name] not in (None, ())}
    if "model" in changes and "weights" not in changes:
        if os.path.isfile(changes["model"]) and not is_network_file(changes["model"]):
            changes["weights"] = changes.pop("model")
        else:
            changes["weights"] = ModelSpec.weights  # those of the baseline are of another network
    drawn_or_measured = {*values_of(OutputOptions, DrawingStyle), "scale", "compare_with", "sufficiency"}
    values = {name: value for name, value in plan.values.items() if name not in drawn_or_measured}
    return RunPlan.from_values(**values | changes)


def _write_junit(path: Path, comparisons: Sequence[Comparison]) -> None:
    from xml.etree import ElementTree

    from ebcli.files.sink import atomic_write

    failures = sum(bool(comparison.problems) for comparison in comparisons)
    suites = ElementTree.Element(
        "testsuites", name=_SUITE, tests=str(len(comparisons)), failures=str(failures)
    )
    suite = ElementTree.SubElement(suites, "testsuite", suites.attrib)
    for comparison in comparisons:
        path_name = one_line(display_path(comparison.input))
        name = one_line(comparison.subject or "first class")
        case = ElementTree.SubElement(suite, "testcase", classname=path_name, name=name)
        if comparison.problems:
            ElementTree.SubElement(case, "failure", message=one_line(comparison.words))
    with atomic_write(path) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
