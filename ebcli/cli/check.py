"""The command ``check``: a run repeated with another network, and its maps compared with the first ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebcli.cli.commands import DIRECTORY, WITHOUT_ENVIRONMENT, altered, command
from ebcli.cli.console import SOME_FAILED, note, one_line, put, shown
from ebcli.cli.execution import execute, plan_of
from ebcli.cli.options import option
from ebcli.cli.parameters import PATH
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, import_optional
from ebcli.models.sources import is_network_file
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import RunPlan, values_of
from ebcli.run.plan_parts import OutputOptions

if TYPE_CHECKING:
    from ebcli.gallery.comparison import Comparison

_SUITE = "eb-saliency check"


_OF_BASELINE = ("model", "weights", "layer", "device", "batch_size", "workers")


_limit = partial(option, "Limits", metavar="N", type=float)


@command(
    "check",
    click.Argument(["baseline"], type=DIRECTORY),
    _limit("--min-correlation", "Least correlation of two maps.", default=0.9),
    _limit(
        "--min-overlap", "Least overlap (intersection over union) of the strongest fifths of their pixels.", default=0.7
    ),
    _limit("--max-shift", "Largest distance of their peaks, as a share of the diagonal.", default=0.1),
    _limit("--max-changed", "Largest share of images whose first class may change.", default=0.0),
    altered("output", metavar="DIR", default=None, help="Keep the new maps here, with a page that compares them."),
    option("Output", "--junit FILE", "Also write JUnit's XML.", type=PATH),
    *(altered(name, default=None, show_default="as in BASELINE") for name in _OF_BASELINE),
    options=["overwrite"],
    settings=WITHOUT_ENVIRONMENT,
)
def check(options: Mapping[str, Any]) -> int:
    """Repeat a run and compare its maps.

    BASELINE is the directory of a run with --raw. Use only runs that you trust, because settings.toml is read like
    --config. --model or --weights names another network; a checkpoint given to --model is loaded into the network of
    BASELINE. Other options come from BASELINE. Prints the maps that differ too much, worst first.

    Exit status: 0 if all maps agree, 1 if some do not.
    """
    from ebcli.evaluate import rank_correlation
    from ebcli.files.ownership import scratch
    from ebcli.files.sink import check_file
    from ebcli.gallery.comparison import Limits, changed_images, comparison_of, write_comparison
    from ebcli.gallery.raw_maps import latest_records, read_pairs

    limits = Limits(*(options[name] for name in ("min_correlation", "min_overlap", "max_shift", "max_changed")))
    baseline, junit, page = options["baseline"], options["junit"], None
    plan = plan_of(baseline)
    if not any(path.endswith(".npz") for one in latest_records(baseline).values() for path in one.output):
        raise ConfigurationError(f"'{baseline}' has no raw maps: repeat that run with --raw")
    if options["output"] is not None and os.path.realpath(options["output"]) == os.path.realpath(baseline):
        raise ConfigurationError(f"'{baseline}' would be compared with itself: choose another --output")
    if options["output"] is not None:
        import_optional("scipy.stats", "scipy")  # for the page
    if junit is not None:
        check_file(junit, options["overwrite"], lambda: _SUITE.encode() in junit.read_bytes(), "--junit")
    with scratch() as temporary:
        directory = options["output"] or temporary / "maps"
        given = {name: options[name] for name in _OF_BASELINE if options[name] not in (None, ())}
        repeated = _repeated(plan, given, directory, options["overwrite"])
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            status = execute(repeated, {**options, "verbose": False, "as_json": False, "null": False}, nowhere)
        if status not in (0, SOME_FAILED):
            return status
        comparisons = [comparison_of(pair, limits) for pair in read_pairs(baseline, directory)]
        if comparisons and options["output"] is not None:
            pairs, photos = read_pairs(baseline, directory), plan.inputs.images  # again: they need much memory
            page = write_comparison(directory, pairs, rank_correlation, photos, options["overwrite"])
        comparisons += changed_images(baseline, directory, limits)
    comparisons.sort(key=lambda one: (not one.problems, one.correlation, one.input))
    wrong = [one for one in comparisons if one.problems]
    for one in wrong:
        put(one_line(one.words))
    if page is not None:
        put(os.fsencode(page))
    elif options["output"] is not None:
        note("No page: no image has maps of one class in both runs; a baseline with --target CLASS has them")
    if junit is not None:
        _write_junit(junit, comparisons)
    equal = sum(one.equal for one in comparisons)
    note(f"{len(comparisons) - len(wrong)} of {len(comparisons)} agree, {equal} of them exactly")
    return SOME_FAILED if wrong else 0


def _repeated(plan: RunPlan, given: dict[str, Any], directory: Path, overwrite: bool) -> RunPlan:
    """The plan of a baseline as far as maps depend on it, with other values, and raw maps in a directory."""
    model = given.get("model")
    if model is not None and "weights" not in given:
        if os.path.isfile(model) and not is_network_file(model):
            given["weights"] = given.pop("model")
        else:
            given["weights"] = ModelSpec.weights  # those of the baseline are of another network
    drawn_or_measured = {*values_of(OutputOptions, DrawingStyle), "scale", "compare_with", "sufficiency"}
    same = {name: value for name, value in plan.values.items() if name not in drawn_or_measured}
    return RunPlan.of(**same | given, output=directory, raw=True, overwrite=overwrite)


def _write_junit(path: Path, comparisons: Sequence[Comparison]) -> None:
    from xml.etree import ElementTree

    from ebcli.files.sink import replacing

    failures = str(sum(bool(one.problems) for one in comparisons))
    suites = ElementTree.Element("testsuites", name=_SUITE, tests=str(len(comparisons)), failures=failures)
    suite = ElementTree.SubElement(suites, "testsuite", suites.attrib)
    for one in comparisons:
        name = one_line(one.subject or "first class")
        case = ElementTree.SubElement(suite, "testcase", classname=one_line(shown(one.input)), name=name)
        if one.problems:
            ElementTree.SubElement(case, "failure", message=one_line(one.words))
    with replacing(path) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
