"""The command ``check``: a run repeated with another network, and its maps compared with the first ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebcli.cli.console import SOME_FAILED, note, one_line, put, shown
from ebcli.cli.repetition import carry_out, plan_of
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError
from ebcli.files.private import scratch
from ebcli.files.sink import check_file, replacing
from ebcli.imports import import_optional
from ebcli.models.sources import is_network_file
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import RunPlan, values_of
from ebcli.run.plan_parts import OutputOptions

if TYPE_CHECKING:
    from ebcli.gallery.comparison import Comparison, Limits
    from ebcli.gallery.raw_maps import MapPair

_SUITE = "eb-saliency check"


def check(options: Mapping[str, Any], of_baseline: Sequence[str]) -> int:
    """Repeat a run as the command's options say, print what differs too much, and return the exit status.

    Options named in ``of_baseline`` take the place of the baseline's values if they are given.
    """
    from ebcli.gallery.comparison import Limits, changed_images
    from ebcli.gallery.raw_maps import latest_records

    names = {"correlation": "min_correlation", "overlap": "min_overlap", "shift": "max_shift", "changed": "max_changed"}
    limits = Limits(**{field: options[name] for field, name in names.items()})
    baseline, junit = options["baseline"], options["junit"]
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
        given = {name: options[name] for name in of_baseline if options[name] not in (None, ())}
        carry_out(_repeated(plan, given, directory, options["overwrite"]), quiet=options["quiet"])
        photos = plan.inputs.images if options["output"] is not None else None
        comparisons, page = _compared(baseline, directory, limits, photos, options["overwrite"])
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


def _compared(
    baseline: Path, directory: Path, limits: Limits, photos: Sequence[Path] | None, overwrite: bool
) -> tuple[list[Comparison], Path | None]:
    """How well the maps agree; and with ``photos``, the page that compares them."""
    from ebcli.evaluate import rank_correlation
    from ebcli.gallery.comparison import comparison_of, write_comparison
    from ebcli.gallery.raw_maps import read_pairs

    comparisons: list[Comparison] = []

    def compared() -> Iterator[MapPair]:
        for pair in read_pairs(baseline, directory):
            comparisons.append(comparison_of(pair, limits))
            yield pair

    pairs: Iterable[MapPair] = compared()
    first, page = next(iter(pairs), None), None
    if first is not None and photos is not None:
        page = write_comparison(directory, itertools.chain([first], pairs), rank_correlation, photos, overwrite)
    for _ in pairs:
        pass
    return comparisons, page


def _write_junit(path: Path, comparisons: Sequence[Comparison]) -> None:
    from xml.etree import ElementTree

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
