"""The command ``check``: a run repeated with another network, and its maps compared with the first ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ebcli.cli.console import SOME_FAILED, note, one_line, put, shown
from ebcli.cli.options import OPTIONS
from ebcli.cli.repetition import kept, repeat
from ebcli.cli.settings import as_toml, settings_of
from ebcli.errors import ConfigurationError
from ebcli.files.sink import check_file, replacing
from ebcli.imports import import_optional
from ebcli.models.sources import is_network_file

if TYPE_CHECKING:
    from ebcli.gallery.agreement import Finding, Limits
    from ebcli.gallery.raw_maps import MapPair

_SECTIONS = ("Input", "Model", "Map", "Performance", "Cluster")  # of the options that maps depend on
_DRAWN_OR_MEASURED = ("beside", "prove")  # they are not the maps
_SUITE = "eb-saliency check"


def check(options: Mapping[str, Any], passed_on: Sequence[str]) -> int:
    """Repeat a run as the command's options say, print what differs too much, and return the exit status.

    Options of the run that are ``passed_on`` take the place of the baseline's if they are given.
    """
    from ebcli.gallery.agreement import Limits, changed_images
    from ebcli.gallery.raw_maps import latest_records

    names = {"correlation": "min_correlation", "overlap": "min_overlap", "shift": "max_shift", "changed": "max_changed"}
    limits = Limits(**{field: options[name] for field, name in names.items()})
    baseline, junit = options["baseline"], options["junit"]
    settings = settings_of(baseline)
    if not any(path.endswith(".npz") for one in latest_records(baseline).values() for path in one.output):
        raise ConfigurationError(f"'{baseline}' has no raw maps: repeat that run with --raw")
    if options["output"] is not None and os.path.realpath(options["output"]) == os.path.realpath(baseline):
        raise ConfigurationError(f"'{baseline}' would be compared with itself: choose another --output")
    if options["output"] is not None:
        import_optional("scipy.stats", "scipy")  # for the page
    if junit is not None:
        check_file(junit, options["overwrite"], lambda: _SUITE.encode() in junit.read_bytes(), "--junit")
    with TemporaryDirectory(prefix="eb-saliency-") as temporary:
        directory = options["output"] or Path(temporary, "maps")
        same = kept(settings, lambda option: option.section in _SECTIONS and option.name not in _DRAWN_OR_MEASURED)
        file = Path(temporary, "settings.toml")
        file.write_text(as_toml({"images": settings.get("images", [])} | same), encoding="utf-8")
        repeat(["--config", str(file), "--output", str(directory), "--raw", *_changes(options, passed_on)])
        inputs = [Path(image) for image in settings.get("images", ())]
        photos = inputs if options["output"] is not None else None
        findings, page = _compared(baseline, directory, limits, photos, options["overwrite"])
        findings += changed_images(baseline, directory, limits)
    findings.sort(key=lambda one: (not one.problems, one.correlation, one.input))
    wrong = [one for one in findings if one.problems]
    for one in wrong:
        put(one_line(one.words))
    if page is not None:
        put(os.fsencode(page))
    elif options["output"] is not None:
        note("No page: no image has maps of one class in both runs; a baseline with --target CLASS has them")
    if junit is not None:
        _write_junit(junit, findings)
    equal = sum(one.equal for one in findings)
    note(f"{len(findings) - len(wrong)} of {len(findings)} agree, {equal} of them exactly")
    return SOME_FAILED if wrong else 0


def _changes(options: Mapping[str, Any], passed_on: Sequence[str]) -> Iterator[str]:
    """The options of the repeated run that are given here."""
    context = click.get_current_context()
    given = {
        name: options[name]
        for name in passed_on
        if context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT
    }
    model = given.get("model")
    if model is not None and "weights" not in given:
        if os.path.isfile(model) and not is_network_file(model):
            given["weights"] = given.pop("model")
        else:
            given["weights"] = OPTIONS["weights"].default  # those of BASELINE are of another network
    for name, value in given.items():
        flag = max(OPTIONS[name].opts, key=len)
        for one in value if isinstance(value, tuple) else [value]:
            yield from [flag] if value is True else [flag, str(one)]


def _compared(
    baseline: Path, directory: Path, limits: Limits, photos: Sequence[Path] | None, overwrite: bool
) -> tuple[list[Finding], Path | None]:
    """How well the maps agree; and with ``photos``, the page that compares them."""
    from ebcli.evaluate import rank_correlation
    from ebcli.gallery.agreement import finding_of
    from ebcli.gallery.comparison import write_comparison
    from ebcli.gallery.raw_maps import read_pairs

    findings: list[Finding] = []

    def compared() -> Iterator[MapPair]:
        for pair in read_pairs(baseline, directory):
            findings.append(finding_of(pair, limits))
            yield pair

    pairs: Iterable[MapPair] = compared()
    first, page = next(iter(pairs), None), None
    if first is not None and photos is not None:
        page = write_comparison(directory, itertools.chain([first], pairs), rank_correlation, photos, overwrite)
    for _ in pairs:
        pass
    return findings, page


def _write_junit(path: Path, findings: Sequence[Finding]) -> None:
    from xml.etree import ElementTree

    failures = str(sum(bool(one.problems) for one in findings))
    suites = ElementTree.Element("testsuites", name=_SUITE, tests=str(len(findings)), failures=failures)
    suite = ElementTree.SubElement(suites, "testsuite", suites.attrib)
    for one in findings:
        name = one_line(one.subject or "first class")
        case = ElementTree.SubElement(suite, "testcase", classname=one_line(shown(one.input)), name=name)
        if one.problems:
            ElementTree.SubElement(case, "failure", message=one_line(one.words))
    with replacing(path) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
