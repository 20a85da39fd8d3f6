"""The commands that repeat a run: ``check`` with another network, ``audit`` with parts of the photos covered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ebcli.cli.click_types import DIRECTORY, PATH
from ebcli.cli.commands import alter_option, of_run
from ebcli.cli.console import SOME_FAILED, display_path, note, one_line, sign_of_life, write_out
from ebcli.cli.execution import execute
from ebcli.cli.options import OPTIONS, Options, option
from ebcli.cli.settings import parameters, read_settings
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, as_output_error, import_optional, plural
from ebcli.files.naming import SETTINGS
from ebcli.files.paths import path_of, safe_open
from ebcli.models.sources import is_network_file
from ebcli.models.spec import ModelSpec
from ebcli.run.plan import VALUES, RunPlan, values_of
from ebcli.run.plan_parts import MapOptions, OutputOptions

if TYPE_CHECKING:
    from PIL import Image

    from ebcli.gallery.audit import Candidate, Mask
    from ebcli.gallery.comparison import Comparison
    from ebcli.run.explainer import Explainer

_SUITE = "eb-saliency check"
_OF_BASELINE = ("model", "weights", "layer", "device", "batch_size", "workers")


def plan_of(directory: Path) -> RunPlan:
    """The plan of an earlier run, of its settings.toml alone."""
    path = directory / SETTINGS
    settings = dict(parameters(OPTIONS.values(), read_settings(path), f"'{path}'"))
    images = tuple(map(path_of, settings.pop("images", ())))
    context = click.get_current_context()
    values = {name: OPTIONS[name].type_cast_value(context, value) for name, value in settings.items() if name in VALUES}
    return RunPlan.from_values(images=images, **values)


_limit = partial(option, "Limits", metavar="N", type=float)


@of_run(
    "check",
    click.Argument(["baseline"], type=DIRECTORY),
    _limit("--min-correlation", "Least correlation of two maps.", default=0.9),
    _limit(
        "--min-overlap", "Least overlap (intersection over union) of the strongest fifths of their pixels.", default=0.7
    ),
    _limit("--max-shift", "Largest distance of their peaks, as a share of the diagonal.", default=0.1),
    _limit("--max-changed", "Largest share of images whose first class may change.", default=0.0),
    alter_option("output", metavar="DIR", default=None, help="Keep the new maps here, with a page that compares them."),
    option("Output", "--junit FILE", "Also write JUnit's XML.", type=PATH),
    *(alter_option(name, default=None, show_default="as in BASELINE") for name in _OF_BASELINE),
    options=["overwrite"],
)
def check(options: Options) -> int:
    """Repeat a run and compare its maps.

    BASELINE is the directory of a run with --raw. Use only runs that you trust, because settings.toml is read like
    --config. --model or --weights names another network; a checkpoint given to --model is loaded into the network of
    BASELINE. Other options come from BASELINE. Prints the maps that differ too much, worst first.

    Exit status: 0 if all maps agree, 1 if some do not.
    """
    from ebcli.evaluate import rank_correlation
    from ebcli.files.private import private_directory
    from ebcli.files.sink import check_file
    from ebcli.gallery.comparison import Limits, changes, comparison_of, latest_records, read_pairs, write_comparison

    limits = Limits(*(options[name] for name in ("min_correlation", "min_overlap", "max_shift", "max_changed")))
    baseline = options["baseline"]
    junit = options["junit"]
    output = options["output"]
    page = None
    plan = plan_of(baseline)
    if not any(path.endswith(".npz") for record in latest_records(baseline).values() for path in record.output):
        raise ConfigurationError(f"'{baseline}' has no raw maps: repeat that run with --raw")
    if output is not None:
        if os.path.realpath(output) == os.path.realpath(baseline):
            raise ConfigurationError(f"'{baseline}' would be compared with itself: choose another --output")
        import_optional("scipy.stats", "scipy")  # for the page
    if junit is not None:
        check_file(junit, options["overwrite"], lambda: _SUITE.encode() in junit.read_bytes(), "--junit")
    with private_directory() as temporary:
        directory = output or temporary / "maps"
        replacements = {name: options[name] for name in _OF_BASELINE if options[name] not in (None, ())}
        new_plan = _repeat(plan, replacements, directory, options["overwrite"])
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            status = execute(new_plan, {**options, "verbose": False, "as_json": False, "null": False}, nowhere)
        if status not in (0, SOME_FAILED):
            return status
        comparisons = [comparison_of(pair, limits) for pair in read_pairs(baseline, directory)]
        if comparisons and output is not None:
            pairs, photos = read_pairs(baseline, directory), plan.inputs.images  # again: they need much memory
            page = write_comparison(directory, pairs, rank_correlation, photos, options["overwrite"])
        comparisons += changes(baseline, directory, limits, {comparison.input for comparison in comparisons})
    comparisons.sort(key=lambda comparison: (not comparison.problems, comparison.correlation, comparison.input))
    wrong = [comparison for comparison in comparisons if comparison.problems]
    for comparison in wrong:
        write_out(one_line(comparison.words))
    if page is not None:
        write_out(os.fsencode(page))
    elif output is not None:
        note("No page: no image has maps of one class in both runs; a baseline with --target CLASS has them")
    if junit is not None:
        _write_junit(junit, comparisons)
    equal = sum(comparison.equal for comparison in comparisons)
    note(f"{len(comparisons) - len(wrong)} of {len(comparisons)} agree, {equal} of them exactly")
    return SOME_FAILED if wrong else 0


def _repeat(plan: RunPlan, replacements: dict[str, Any], directory: Path, overwrite: bool) -> RunPlan:
    """The plan of a baseline as far as maps depend on it, with other values, and raw maps in a directory."""
    model = replacements.get("model")
    if model is not None and "weights" not in replacements:
        if os.path.isfile(model) and not is_network_file(model):
            replacements["weights"] = replacements.pop("model")
        else:
            replacements["weights"] = ModelSpec.weights  # those of the baseline are of another network
    drawn_or_measured = {*values_of(OutputOptions, DrawingStyle), "scale", "compare_with", "sufficiency"}
    values = {name: value for name, value in plan.values.items() if name not in drawn_or_measured}
    return RunPlan.from_values(**values | replacements, output=directory, raw=True, overwrite=overwrite)


def _write_junit(path: Path, comparisons: Sequence[Comparison]) -> None:
    from xml.etree import ElementTree

    from ebcli.files.sink import atomic_write

    failures = str(sum(bool(comparison.problems) for comparison in comparisons))
    suites = ElementTree.Element("testsuites", name=_SUITE, tests=str(len(comparisons)), failures=failures)
    suite = ElementTree.SubElement(suites, "testsuite", suites.attrib)
    for comparison in comparisons:
        name = one_line(comparison.subject or "first class")
        case = ElementTree.SubElement(suite, "testcase", classname=one_line(display_path(comparison.input)), name=name)
        if comparison.problems:
            ElementTree.SubElement(case, "failure", message=one_line(comparison.words))
    with atomic_write(path) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)


_MAX_TESTED = 40  # photos of a finding
_TESTED_FILE = "tested.jsonl"  # beside the page, what was tested
_CHANGE, _MARGIN = 0.3, 0.2  # of the tested photos: that change class, and more than with another place covered


_Outcome = tuple[int, int | None]  # how many photos change class without the place, and without the opposite one


class Finding(NamedTuple):
    """What photos of a class rest on, and what happens if it is covered.

    Attributes:
        candidate: the class, the place and the photos.
        num_tested: of the photos, how many were tested.
        num_changed: how many of these change class if the place is covered.
        opposite: how many do if the opposite place is covered; None if they overlap.
    """

    candidate: Candidate
    num_tested: int
    num_changed: int
    opposite: int | None

    @property
    def holds(self) -> bool:
        """Whether it makes a difference."""
        margin = self.num_changed - (self.opposite or 0)
        return self.num_changed >= _CHANGE * self.num_tested and margin >= max(1, _MARGIN * self.num_tested)

    @property
    def words(self) -> str:
        """The finding in a sentence."""
        photos = [photo for photo, _ in self.candidate.photos]
        count = len(photos)
        wrong = sum(photo.is_wrong for photo in photos)
        maps = f"{count} of {self.candidate.total} '{photos[0].name}' maps share {self.candidate.place_words}"
        words = f"{maps}; covering it changes the class of {self.num_changed}"
        if self.num_tested != count:
            words += f" of {self.num_tested} tested"
        if self.opposite is not None:
            words += f", and covering the opposite place changes the class of {self.opposite}"
        if wrong:
            words += f"; {wrong} of the {count} predictions {'is' if wrong == 1 else 'are'} wrong"
        return words


@of_run(
    "audit",
    click.Argument(["directory"], type=DIRECTORY),
    option(
        "Input",
        "--annotations FILE",
        "Boxes of the objects, in COCO's format. Also find maps that share the area outside of the boxes.",
        type=PATH,
    ),
    option("Output", "--fail-on-findings", "Exit with status 1 if anything is found.", is_flag=True),
    options=["overwrite"],
)
def audit(options: Options) -> int:
    """Find image regions that a class depends on.

    DIRECTORY is the output of a run with --raw. Looks for classes whose maps share a corner, an edge, or the same thing
    at the same place. Covers the place in the photos, and prints the place if this changes their class. Writes a
    page, audit/index.html. Use only runs that you trust, because settings.toml is read like --config.
    """
    from ebcli.files.directory import refuse_foreign_files
    from ebcli.files.naming import AUDIT
    from ebcli.files.records import append_lines
    from ebcli.gallery.audit import candidates, read_boxes, read_photos, write_audit

    cluster = import_optional("sklearn.cluster", "scikit-learn")

    def clusters(features: Any, count: int) -> Any:
        return cluster.KMeans(count, n_init=3, random_state=0).fit_predict(features)

    directory = options["directory"]
    plan = plan_of(directory)
    refuse_foreign_files(directory, [AUDIT], options["overwrite"])
    boxes = {} if options["annotations"] is None else read_boxes(options["annotations"])
    classes = read_photos(directory, plan.inputs.images, boxes)
    if not classes:
        advice = "repeat that run with --raw, and audit it from the same working directory"
        raise ConfigurationError(f"'{directory}' has no raw maps of photos that are there: {advice}")
    all_candidates = [candidate for photos in classes.values() for candidate in candidates(photos, clusters)]
    file = directory / AUDIT.with_name(_TESTED_FILE)
    outcomes = _earlier_tests(file)
    missing = [candidate for candidate in all_candidates if _key(candidate) not in outcomes]
    if missing:
        with sign_of_life(f"Loading {plan.model.name} ...", options["quiet"]):
            network = _network(plan)
        for candidate in missing:
            outcome = _count_changes(candidate, network)
            outcomes[_key(candidate)] = outcome
            with as_output_error(f"write to '{file}'"):
                file.parent.mkdir(exist_ok=True)
                append_lines(file, json.dumps([_key(candidate), *outcome]))
    findings = []
    for candidate in all_candidates:
        finding = Finding(candidate, min(len(candidate.photos), _MAX_TESTED), *outcomes[_key(candidate)])
        if finding.holds:
            findings.append(finding)
    findings.sort(key=lambda finding: -finding.num_changed * len(finding.candidate.photos))
    for finding in findings:
        write_out(one_line(finding.words))
    page = write_audit(directory, [(finding.words, finding.candidate) for finding in findings], classes)
    write_out(os.fsencode(page))
    num_classes = "1 class" if len(classes) == 1 else f"{len(classes)} classes"
    summary = f"{plural(sum(map(len, classes.values())), 'photo')} of {num_classes}: {plural(len(findings), 'finding')}"
    num_dropped = len(all_candidates) - len(findings)
    if num_dropped:
        summary += f"; {num_dropped} more made no difference when covered"
    note(summary)
    return SOME_FAILED if findings and options["fail_on_findings"] else 0


def _key(candidate: Candidate) -> str:
    """What a test's outcome depends on."""
    photos = [(photo.input, *photo.state, mask.tobytes().hex()) for photo, mask in candidate.photos[:_MAX_TESTED]]
    return hashlib.sha256(json.dumps(photos).encode()).hexdigest()


def _earlier_tests(file: Path) -> dict[str, _Outcome]:
    """What an earlier audit, perhaps an interrupted one, has tested; lines that are something else are ignored."""
    outcomes: dict[str, _Outcome] = {}
    with suppress(OSError), safe_open(file, follow=False) as lines:
        for line in lines:
            with suppress(ValueError, TypeError):
                key, num_changed, opposite = json.loads(line)
                outcomes[str(key)] = int(num_changed), None if opposite is None else int(opposite)
    return outcomes


def _network(plan: RunPlan) -> Explainer:
    """The network of a run, asked for the most likely class of a photo; or which of its texts or pictures it is."""
    from ebcli.run.explainer import Explainer

    maps = plan.maps
    targets = maps.targets if plan.model.descriptions else ()
    options = MapOptions(layers=maps.layers, targets=targets, allow_unsupported=maps.allow_unsupported)
    return Explainer(replace(plan, maps=options, style=DrawingStyle(), output=OutputOptions()))


def _count_changes(candidate: Candidate, network: Explainer) -> _Outcome:
    """In how many photos the class changes without the place, and without the opposite one; None if they overlap."""
    import numpy as np

    from ebcli.drawing.overlay import downscale
    from ebcli.files.images import decode

    num_changed = 0
    opposite = 0
    for photo, mask in candidate.photos[:_MAX_TESTED]:
        image = downscale(decode(photo.path))
        full_class = _class(network, image)
        num_changed += _class(network, _cover(image, mask)) != full_class
        opposite += _class(network, _cover(image, np.flip(mask))) != full_class
    overlap = any((mask & np.flip(mask)).any() for _, mask in candidate.photos)
    return num_changed, None if overlap else opposite


def _class(network: Explainer, image: Image.Image) -> int | None:
    """The class with the highest score; None if nothing is found."""
    from ebcli.run.reading import NetworkInput

    subjects = network.subjects(NetworkInput.from_image(image, network.loaded.transforms))
    return max(subjects, key=lambda subject: subject.score).index if subjects else None


def _cover(image: Image.Image, cells: Mask) -> Image.Image:
    """A photo with its mean color in some cells."""
    from PIL import Image

    mean = image.resize((1, 1), Image.Resampling.BOX)
    mask = Image.fromarray(cells.astype("uint8") * 255).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(mean.resize(image.size), image, mask)
