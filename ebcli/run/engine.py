"""One run over many images, on this machine or on a Ray cluster."""

from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from ebcli.drawing.style import DrawingStyle
from ebcli.files.directory import OutputFolder
from ebcli.files.images import decoding_memory
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.models.keywords import CLASSIFICATION
from ebcli.run.pipeline import Pipeline
from ebcli.run.plan import RunPlan
from ebcli.run.plan_text import as_settings
from ebcli.run.prepare import Prepared, prepare
from ebcli.workers import Workers, enough_for


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready to start.

    Attributes:
        common: a record with the fields that all files share: the network, the layer, the configuration.
        device: the device, or those of a cluster, in words.
        total: the number of files to work on; some may turn out not to be images.
        skipped: the inputs whose results are up to date.
        results: works on the files while it is iterated, and yields the record of each, in order; on Ray, in the
            order in which they finish.
        stopping: set it, from a signal handler for example, and ``results`` ends after the images in progress.
        recorded: the number of records written so far, by status; after an interrupt more than were yielded.
        style: how maps are drawn; its ``vmax`` ends the run's shared color scale, if there is one.
        unit: what the files are, ``"image"`` or ``"video"``.
        task: what the network does.
    """

    common: Record
    device: str
    total: int
    skipped: Collection[Path]
    results: Generator[Record]
    stopping: Event = field(default_factory=Event)
    recorded: Counter[str] = field(default_factory=Counter)
    style: DrawingStyle = field(default_factory=DrawingStyle)
    unit: str = "image"
    task: str = CLASSIFICATION


def run(plan: RunPlan, sink: Sink | None = None) -> Run:
    """Check the plan and load what all images share; the images are worked on while ``results`` is iterated.

    Args:
        plan: the run.
        sink: where its results go; None for the output directory.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: (also from ``results``) the output directory cannot be written to.
    """
    stopping, recorded = Event(), Counter[str]()
    sink = sink or OutputFolder(plan.output.directory, plan.output.overwrite)
    if plan.execution.engine == "ray" and not plan.execution.dry_run:
        from ebcli.run.ray_driver import Cluster

        cluster = Cluster(plan, sink)
        prepared, device, results = cluster.prepared, cluster.device, cluster.results(stopping, recorded)
    else:
        prepared = prepare(plan, sink)
        device = plan.execution.device if prepared.explainer is None else prepared.explainer.device
        results = _planned(prepared) if plan.execution.dry_run else _results(plan, prepared, sink, stopping, recorded)
    stages = prepared.stages
    return Run(
        common=stages.common,
        device=device,
        total=len(prepared.sources),
        skipped=prepared.skipped,
        results=results,
        stopping=stopping,
        recorded=recorded,
        style=stages.options.style,
        unit=stages.reader.unit,
        task=prepared.task,
    )


def _planned(prepared: Prepared) -> Generator[Record]:
    for source in prepared.sources:
        is_image = prepared.stages.reader.accepts(source)
        yield prepared.stages.record(source, "planned" if is_image else "not an image")


def _results(
    plan: RunPlan, prepared: Prepared, sink: Sink, stopping: Event, recorded: Counter[str]
) -> Generator[Record]:
    execution, sources = plan.execution, prepared.sources
    if not sources:
        return
    count = execution.workers
    if prepared.explainer is None:
        count = 0
    elif count is None:
        count = enough_for(len(sources))
    with sink, Workers(count, execution.image_timeout, decoding_memory(plan.inputs.max_pixels)) as workers:
        sink.start(as_settings(plan) if plan.words is None else None)  # settings are those of the command
        pipeline = Pipeline(
            explainer=prepared.explainer,
            sink=sink,
            workers=workers,
            stages=prepared.stages,
            fail_fast=execution.fail_fast,
            stopping=stopping,
            recorded=recorded,
        )
        yield from pipeline.run(sources)
