"""One run over many images, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from ebcli.files.directory import OutputFolder
from ebcli.files.naming import output_relpath
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.run.pipeline import Pipeline
from ebcli.run.plan import RunPlan
from ebcli.run.prepare import Prepared, prepare
from ebcli.run.stages import ImageStages
from ebcli.run.workers import Workers, processors


@dataclass(frozen=True)
class Run:
    """A run that is ready to start.

    Attributes:
        model, weights, layer, device: what is used; several layers are separated by commas.
        total: the number of files to work on; some may turn out not to be images.
        skipped: the inputs whose results are up to date.
        results: works on the files while it is iterated, and yields the record of each, in order; on Ray, in the
            order in which they finish.
        stopping: set it, from a signal handler for example, and ``results`` ends after the images in progress.
        vmax: the end of the run's shared color scale, in units of a uniform map; None if each map has its own.
        configuration: a hash of all settings, as in the records.
        unit: what the files are, ``"image"`` or ``"video"``.
        recorded: the number of records written so far, by status; after an interrupt more than were yielded.
    """

    model: str
    weights: str
    layer: str
    device: str
    total: int
    skipped: Collection[Path]
    results: Generator[Record]
    stopping: Event = field(default_factory=Event)
    vmax: float | None = None
    recorded: Counter[str] = field(default_factory=Counter)
    configuration: str = ""
    unit: str = "image"


def run(plan: RunPlan) -> Run:
    """Check the plan and load what all images share; the images are worked on while ``results`` is iterated.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: (also from ``results``) the output directory cannot be written to.
    """
    stopping, recorded = Event(), Counter[str]()
    skipped: Collection[Path]
    if plan.execution.engine == "ray" and not plan.execution.dry_run:
        from ebcli.run.ray_driver import Cluster

        cluster = Cluster(plan)
        stages, device, total, skipped = cluster.stages, cluster.device, cluster.total, cluster.skipped
        results = cluster.results(stopping, recorded)
    else:
        prepared = prepare(plan)
        stages = prepared.stages
        device = plan.execution.device if prepared.explainer is None else prepared.explainer.device
        total, skipped = len(prepared.sources), prepared.skipped
        is_dry = plan.execution.dry_run
        results = _planned(prepared.sources, stages) if is_dry else _results(plan, prepared, stopping, recorded)
    common, vmax = stages.common, stages.options.style.vmax
    shown = common.model, common.weights, common.layer, device
    return Run(*shown, total, skipped, results, stopping, vmax, recorded, common.configuration, stages.reader.unit)


def _planned(sources: Sequence[Source], stages: ImageStages) -> Generator[Record]:
    for source in sources:
        record = replace(stages.common, input=source.name, place=str(output_relpath(source.path)))
        yield record if stages.reader.accepts(source) else replace(record, status="not an image")


def _results(plan: RunPlan, prepared: Prepared, stopping: Event, recorded: Counter[str]) -> Generator[Record]:
    sources = prepared.sources
    if not sources:
        return
    count = plan.execution.workers
    if count is None:
        # starting a worker takes as long as drawing a few photos, and a single image needs none
        count = min(processors(), len(sources) // 2)
    output, execution = plan.output, plan.execution
    if prepared.explainer is None:
        count = 0
    folder = OutputFolder(output.directory, output.overwrite)
    with closing(folder), Workers(count, execution.image_timeout) as workers:
        folder.start(output.settings)
        if prepared.explainer is None:
            yield from _unreadable(prepared, folder, recorded)
            return
        pipeline = Pipeline(
            prepared.explainer, folder, workers, prepared.stages, execution.fail_fast, stopping, recorded
        )
        yield from pipeline.run(sources)


def _unreadable(prepared: Prepared, folder: OutputFolder, recorded: Counter[str]) -> Generator[Record]:
    """The records of files none of which can be read."""
    for source in prepared.sources:
        record = prepared.stages.load(source, lambda function, *arguments: function(*arguments))
        if isinstance(record, Record):  # otherwise the file has appeared since, and is left to the next run
            if record.status != "not an image":
                folder.record(record)
                recorded[record.status] += 1
            yield record
