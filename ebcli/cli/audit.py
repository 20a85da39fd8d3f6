"""The command ``audit``: it covers what the maps of a run rest on, and asks the network again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import Argument

from ebcli.cli.click_types import DIRECTORY, PATH
from ebcli.cli.commands import of_run, plan_of
from ebcli.cli.console import SOME_FAILED, note, one_line, sign_of_life, write_out, write_path
from ebcli.cli.options import option
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, as_output_error, import_optional, plural
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import MapOptions, OutputOptions

if TYPE_CHECKING:
    from PIL import Image

    from ebcli.gallery.audit import Candidate, Finding
    from ebcli.run.explainer import Explainer

_TESTED_FILE = "tested.jsonl"  # beside the page, what was tested


@of_run(
    "audit",
    Argument(["directory"], type=DIRECTORY),
    option(
        "Input",
        "--annotations FILE",
        "Boxes of the objects, in COCO's format. Also find maps that share the area outside of the boxes.",
        type=PATH,
    ),
    option("Output", "--fail-on-findings", "Exit with status 1 if anything is found.", is_flag=True),
    options=["overwrite"],
)
def audit(
    directory: Path, annotations: Path | None, fail_on_findings: bool, overwrite: bool, **_: Any
) -> int:
    """Find image regions that a class depends on.

    DIRECTORY is the output of a run with --raw. Looks for classes whose maps share a corner, an edge, or the same thing
    at the same place. Covers the place in the photos, and prints the place if this changes their class. Writes a
    page, audit/index.html. Use only runs that you trust, because settings.toml is read like --config.
    """
    from ebcli.files.directory import refuse_foreign_files
    from ebcli.files.naming import AUDIT
    from ebcli.gallery.audit import candidates, read_boxes, read_photos, write_audit

    cluster = import_optional("sklearn.cluster", "scikit-learn")

    def clusters(features: Any, count: int) -> Any:
        return cluster.KMeans(count, n_init=3, random_state=0).fit_predict(features)

    plan = plan_of(directory)
    refuse_foreign_files(directory, [AUDIT], overwrite)
    boxes = {} if annotations is None else read_boxes(annotations)
    classes = read_photos(directory, plan.inputs.images, boxes)
    if not classes:
        advice = "repeat that run with --raw, and audit it from the same working directory"
        raise ConfigurationError(f"'{directory}' has no raw maps of photos that are there: {advice}")
    all_candidates = [*chain.from_iterable(candidates(photos, clusters) for photos in classes.values())]
    tests = _test(all_candidates, plan, directory)
    findings = [finding for finding in tests if finding.holds]
    findings.sort(key=lambda finding: -finding.num_changed * len(finding.candidate.photos))
    for finding in findings:
        write_out(one_line(finding.words))
    write_path(write_audit(directory, findings, classes))
    num_photos = sum(map(len, classes.values()))
    num_classes = "1 class" if len(classes) == 1 else f"{len(classes)} classes"
    summary = f"{plural(num_photos, 'photo')} of {num_classes}: {plural(len(findings), 'finding')}"
    num_dropped = len(all_candidates) - len(findings)
    if num_dropped:
        summary += f"; {num_dropped} more made no difference when covered"
    note(summary)
    return SOME_FAILED if findings and fail_on_findings else 0


def _test(candidates: Sequence[Candidate], plan: RunPlan, directory: Path) -> Iterator[Finding]:
    """Cover the place of each candidate, unless an earlier audit of the run has, and save what happens."""
    from ebcli.files.naming import AUDIT
    from ebcli.files.paths import make_folder
    from ebcli.files.records import append_lines
    from ebcli.gallery.audit import Finding, count_changes, read_outcomes

    file = directory / AUDIT.with_name(_TESTED_FILE)
    outcomes = read_outcomes(file)
    missing = [candidate for candidate in candidates if candidate.key not in outcomes]
    if missing:
        with sign_of_life(f"Loading {plan.model.name} ..."):
            network = _network(plan)
        for candidate in missing:
            outcome = count_changes(candidate, partial(_classify, network))
            outcomes[candidate.key] = outcome
            with as_output_error(f"write to '{file}'"):
                make_folder(directory, AUDIT.parent)
                append_lines(file, json.dumps([candidate.key, *outcome]))
    for candidate in candidates:
        yield Finding(candidate, len(candidate.tested), *outcomes[candidate.key])


def _network(plan: RunPlan) -> Explainer:
    """The network of a run, asked for the most likely class of a photo; or which of its texts or pictures it is."""
    from ebcli.run.explainer import Explainer

    maps = plan.maps
    targets = maps.targets if plan.model.descriptions else ()
    options = MapOptions(layers=maps.layers, targets=targets, allow_unsupported=maps.allow_unsupported)
    return Explainer(replace(plan, maps=options, style=DrawingStyle(), output=OutputOptions()))


def _classify(network: Explainer, image: Image.Image) -> int | None:
    """The class with the highest score; None if nothing is found."""
    from ebcli.run.reading import NetworkInput

    subjects = network.subjects(NetworkInput.from_image(image, network.loaded.transforms))
    return max(subjects, key=lambda subject: subject.score).index if subjects else None
